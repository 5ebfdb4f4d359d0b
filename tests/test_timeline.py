"""The timeline: what ran where, what comes, who may see what, and how it is thinned over months."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gpus.models import Node
from jobs import dispatch, hostdays, timeline
from jobs.models import Allocation, AllocationSlot, HostDay, Job, Run
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def ended(owner: User, node: Node, start: datetime, end: datetime, index: int = 0, **fields: Any) -> Run:
    """A run that held one GPU of the node for that time."""
    job = factories.make_job(owner, state=JobState.SUCCEEDED, started_at=start, ended_at=end, **fields)
    run = Run.objects.create(job=job, node=node, number=1, state=RunState.ENDED, started_at=start, ended_at=end,
                             end_reason=EndReason.COMPLETED)  # fmt: skip
    allocation = Allocation.objects.create(
        run=run, node=node, user=owner, team=job.team, gpus=1, gpu_milli=1000, millicpus=1, memory_mib=1,
        created_at=start, released_at=end,
    )  # fmt: skip
    AllocationSlot.objects.create(allocation=allocation, gpu=node.gpus.get(index=index), released_at=end)
    return run


def seen(user: User, start: datetime, end: datetime) -> dict[str, Any]:
    found = timeline.picture(user, start, end, timezone.now())
    return dict(json.loads(json.dumps(found)))  # as browsers get it


def test_a_window_has_what_ran_and_what_runs_in_it(alice: User, bob: User) -> None:
    now = timezone.now()
    node = factories.make_node("alpha", gpus=4)
    before = ended(alice, node, now - 9 * HOUR, now - 8 * HOUR)
    inside = ended(alice, node, now - 3 * HOUR, now - 2 * HOUR, index=1, name="mine")
    live = factories.make_run(factories.make_job(bob, gpus=2), node, gpus=tuple(node.gpus.filter(index__gte=2)))
    found = seen(alice, now - 4 * HOUR, now + HOUR)
    blocks = {block["job"]: block for block in found["blocks"]}
    assert blocks.keys() == {inside.job_id, live.job_id}
    assert before.job_id not in blocks
    past, now_running = blocks[inside.job_id], blocks[live.job_id]
    assert (past["lanes"], past["state"], past["mine"], past["name"]) == ([1], "SUCCEEDED", True, "mine")
    assert (now_running["lanes"], now_running["to"], now_running["state"]) == ([2, 3], None, "RUNNING")
    assert live.deadline is not None
    assert now_running["until"] == live.deadline.timestamp()


def test_strangers_jobs_are_blocks_without_a_name(client: Client, alice: User, charlie: User) -> None:
    node = factories.make_node("alpha")
    run = factories.make_run(factories.make_job(charlie, name="secret running"), node)
    factories.make_job(charlie, name="secret waiting", expected_earliest=timezone.now(),
                       expected_latest=timezone.now() + HOUR)  # fmt: skip
    client.force_login(alice)
    for path in ("/timeline/", "/timeline/data.json"):
        assert "secret" not in client.get(path).text
    (block,) = client.get("/timeline/data.json").json()["blocks"]
    assert (block["job"], block["owner"], block["name"]) == (run.job_id, "charlie", None)
    assert client.get(f"/timeline/?job={run.job_id}").status_code == 404


def test_the_table_says_what_the_picture_shows(client: Client, alice: User, charlie: User) -> None:
    now = timezone.now()
    node = factories.make_node("alpha", gpus=2)
    run = ended(alice, node, now - 3 * HOUR, now - 2 * HOUR, index=1, name="<b>mine</b>")
    other = ended(charlie, node, now - 2 * HOUR, now - HOUR, name="secret")
    waits = factories.make_job(alice, gpus=2, expected_earliest=now + HOUR, expected_latest=now + 2 * HOUR)
    client.force_login(alice)
    text = client.get("/timeline/?table=1").text
    first, second, third = (text.index(f"#{pk}</span>") for pk in (waits.pk, other.job_id, run.job_id))
    assert first < second < third  # what comes, then what ran, the newest first
    assert "start, at the latest" in text[first:second]
    assert "secret" not in text
    assert f'data-href="/jobs/{other.job_id}/"' not in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert '<td data-label="GPUs">1</td>' in text[third:]


def test_the_future_is_the_schedulers(alice: User) -> None:
    """What waits stands where the plan expects it, and on the host that is kept for it."""
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice, limit_seconds=3600), node)
    job = factories.make_job(alice, limit_seconds=600)
    dispatch.run_pass()
    job.refresh_from_db()
    assert job.kept_node == node
    now = timezone.now()
    (expected,) = seen(alice, now - HOUR, now + 3 * HOUR)["expected"]
    assert (expected["job"], expected["kept"], expected["lasts"]) == (job.pk, "alpha", 600)
    assert expected["kept_from"] == pytest.approx((now + HOUR).timestamp(), abs=60)
    Run.objects.get().end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=now)
    dispatch.run_pass()
    assert not Job.objects.filter(state=JobState.QUEUED, kept_node__isnull=False).exists()


def test_cordons_are_shown_from_when_to_when(alice: User) -> None:
    node = factories.make_node("alpha")
    for cordoned in (True, False, True):
        node.cordoned, node.cordon_reason = cordoned, "new fans" if cordoned else ""
        node.save()
    now = timezone.now()
    found = seen(alice, now - HOUR, now + HOUR)
    first, second = found["cordons"]
    assert first["from"] <= first["to"] <= second["from"]
    assert (second["to"], second["why"]) == (None, "new fans")
    assert "new fans" in found["hosts"][0]["closed"]


def test_too_many_runs_come_as_parts_of_a_host(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    node = factories.make_node("alpha", gpus=2)
    ended(alice, node, now - 6 * HOUR, now - 3 * HOUR)
    ended(alice, node, now - 6 * HOUR, now - 3 * HOUR, index=1)
    ended(alice, node, now - 2 * HOUR, now - HOUR)
    monkeypatch.setattr(timeline, "MOST_BLOCKS", 2)
    found = seen(alice, now - 12 * HOUR, now)
    assert found["blocks"] is None
    held = sum(found["bins"][0].values()) * found["step"] * 2  # GPU-seconds
    assert held == pytest.approx(7 * 3600, rel=0.02)
    assert max(found["bins"][0].values()) == 1.0


def test_months_are_drawn_from_closed_days(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    node = factories.make_node("alpha", gpus=1)
    ended(alice, node, today - 40 * DAY - 6 * HOUR, today - 40 * DAY + 6 * HOUR)  # over midnight
    ended(alice, node, today - 3 * DAY, today - 2 * DAY)
    while hostdays.roll_up(today + 12 * HOUR):
        pass
    rows = dict(HostDay.objects.filter(gpu_seconds__gt=0).values_list("day", "gpu_seconds"))
    assert rows == {(today - 41 * DAY).date(): 6 * 3600, (today - 40 * DAY).date(): 6 * 3600,
                    (today - 3 * DAY).date(): 86400}  # fmt: skip
    monkeypatch.setattr(timeline, "MOST_BLOCKS", 0)
    found = seen(alice, today - 60 * DAY, today)
    assert found["step"] == 86400
    assert sum(found["bins"][0].values()) == pytest.approx(1.5)


def test_closed_days_know_what_was_held_over_midnight(alice: User) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    node = factories.make_node("alpha", gpus=4)
    for days, lasts, index in ((20, 9 * DAY, 0), (12, HOUR, 1), (12, 20 * HOUR, 2), (11, 2 * HOUR, 1), (9, 8 * DAY, 2)):
        ended(alice, node, today - days * DAY + 6 * HOUR, today - days * DAY + 6 * HOUR + lasts, index=index)
    Allocation.objects.filter(created_at=today - 12 * DAY + 6 * HOUR, released_at__lt=today - 11 * DAY).update(
        gpu_milli=0
    )
    live = factories.make_run(factories.make_job(alice), node, gpus=(node.gpus.get(index=3),))
    Allocation.objects.filter(run=live).update(created_at=today - 13 * DAY)
    windows = [(today - days * DAY + 9 * HOUR, lasts) for days in range(1, 22) for lasts in (HOUR, 40 * HOUR)]

    def told() -> list[list[int]]:
        return [sorted(hostdays.overlapping(start, start + lasts).values_list("pk", flat=True))
                for start, lasts in windows]  # fmt: skip

    before = told()
    assert hostdays.roll_up(today + 12 * HOUR) == 20
    assert told() == before
    assert max(map(len, before)) > 2
    HostDay.objects.filter(day=(today - 11 * DAY).date()).update(held_over=None)  # written by an older version
    assert told() == before


def test_a_page_costs_the_same_queries_whatever_ran(client: Client, alice: User) -> None:
    now = timezone.now()
    node = factories.make_node("alpha", gpus=4)
    client.force_login(alice)

    def cost() -> int:
        with CaptureQueriesContext(connection) as asked:
            assert client.get("/timeline/").status_code == 200
        return len(asked)

    ended(alice, node, now - 3 * HOUR, now - 2 * HOUR)
    few = cost()
    for number in range(12):
        ended(alice, node, now - (number + 2) * HOUR, now - (number + 1) * HOUR, index=number % 4)
    assert cost() == few <= 40


@pytest.mark.parametrize(
    "query", ["from=x&to=y", "from=1e400&to=2", "from=5&to=1", "from=0&to=9e12", "job=x", "from=nan&to=1"]
)
def test_nonsense_in_the_address_shows_the_hours_around_now(client: Client, alice: User, query: str) -> None:
    factories.make_node("alpha")
    client.force_login(alice)
    found = client.get(f"/timeline/data.json?{query}").json()
    assert found["from"] < found["now"] < found["to"]


def test_a_jobs_window_is_around_its_run(client: Client, alice: User) -> None:
    start = timezone.now() - 30 * DAY
    run = ended(alice, factories.make_node("alpha"), start, start + 2 * HOUR)
    client.force_login(alice)
    answer = client.get(f"/timeline/?job={run.job_id}")
    assert f'data-href="/jobs/{run.job_id}/"' in answer.text
    assert answer.context["found"]["from"] < start.timestamp() < answer.context["found"]["to"]
