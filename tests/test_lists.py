"""Dashboard, job list, queue and history: who sees what, in which order, at a bounded cost, and never an empty page."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from gpus import history
from gpus.models import Node
from jobs import dashboard, gpustrip
from jobs.board import board, places, queue_order
from jobs.models import Allocation, Job, Quota, Run, Team
from jobs.preview import preview
from jobs.request import JobRequest
from jobs.states import EndReason, JobState, RunState
from jobs.status import status
from portal import live
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db

PAGES = ("/", "/jobs/", "/jobs/?whose=all", "/queue/", "/history/", "/history/?whose=all", "/jobs/new/")


def make_ended(owner: User, node: Node, reason: EndReason = EndReason.COMPLETED, **fields: Any) -> Job:
    """A job that ran for an hour on one GPU and ended now."""
    end = fields.pop("ended_at", timezone.now())
    begin = end - timedelta(hours=1)
    fields = {"state": JobState.SUCCEEDED, "exit_code": 0, "gpus": 1, **fields}
    job = factories.make_job(owner, started_at=begin, ended_at=end, end_reason=reason, **fields)
    run = Run.objects.create(
        job=job, node=node, number=1, state=RunState.ENDED, started_at=begin, ended_at=end, end_reason=reason,
        exit_code=fields["exit_code"],
    )  # fmt: skip
    Allocation.objects.create(
        run=run, node=node, user=owner, team=job.team, gpus=1, gpu_milli=1000, millicpus=1, memory_mib=1,
        created_at=begin, released_at=end,
    )  # fmt: skip
    return job


def fill(owner: User, node: Node, count: int) -> None:
    """`count` more jobs of each kind."""
    for _ in range(count):
        reason = {"code": "BUSY_GPUS", "asked": 1, "free": 0, "total": 4, "node": "alpha"}
        factories.make_job(owner, wait_reasons=[reason])
        factories.make_run(factories.make_job(owner, gpus=0), node)
        make_ended(owner, node)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_costs_as_many_queries_with_many_jobs_as_with_few(
    client: Client, alice: User, path: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    node = factories.make_node("alpha")
    Quota.objects.create(user=alice, gpus=4, gpu_hours=100)
    client.force_login(alice)
    fill(alice, node, 12)
    with django_assert_max_num_queries(50):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/jobs/?q=job&state=failed", "/history/?whose=all&reason=TIME_LIMIT"])
def test_no_page_counts_or_skips_all_jobs(client: Client, alice: User, path: str) -> None:
    """Pages are read by key, and only what waits is counted: a million ended jobs cost nothing."""
    fill(alice, factories.make_node("alpha"), 2)
    client.force_login(alice)
    with CaptureQueriesContext(connection) as asked:
        assert client.get(path).status_code == 200
    sql = [query["sql"] for query in asked.captured_queries]
    assert [text for text in sql if " OFFSET " in text] == []
    assert [text for text in sql if "COUNT(" in text and 'FROM "jobs_job"' in text and '"state"' not in text] == []


@pytest.mark.parametrize("path", PAGES)
def test_an_empty_page_says_what_to_do_next(client: Client, alice: User, path: str) -> None:
    client.force_login(alice)
    answer = client.get(path)
    assert answer.status_code == 200
    assert "/jobs/" in answer.text.partition("<main")[2]


@pytest.mark.parametrize("path", PAGES[:-1])
def test_a_list_alone_is_sent_to_htmx(client: Client, alice: User, path: str) -> None:
    client.force_login(alice)
    answer = client.get(path, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<html" not in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/account/tokens/"])
def test_without_log_in_there_is_only_the_log_in(client: Client, db: None, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/")


def test_a_fragment_whose_session_is_over_leads_to_the_log_in(client: Client, db: None) -> None:
    answer = client.get("/queue/", headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/queue/"})
    assert answer["HX-Redirect"] == "/accounts/login/?next=/queue/"


@pytest.mark.parametrize("path", ["/jobs/?whose=all", "/history/?whose=all", "/jobs/?whose=all&q=secret", "/"])
def test_strangers_jobs_are_in_no_list(client: Client, alice: User, charlie: User, path: str) -> None:
    """xuxueli/xxl-job#3983"""
    node = factories.make_node("alpha")
    make_ended(charlie, node, name="secret ended")
    factories.make_run(factories.make_job(charlie, name="secret running"), node)
    factories.make_job(charlie, name="secret waiting")
    client.force_login(alice)
    assert "secret " not in client.get(path).text


def test_the_team_of_a_filter_does_not_open_other_teams(client: Client, alice: User, charlie: User) -> None:
    factories.make_job(charlie, name="secret waiting")
    audio = Team.objects.get(name="audio")
    client.force_login(alice)
    assert "secret" not in client.get(f"/jobs/?whose={audio.pk}").text


def test_the_queue_shows_strangers_only_as_owner_state_and_size(client: Client, alice: User, charlie: User) -> None:
    job = factories.make_job(charlie, name="secret waiting", image="secret/image", script="secret script")
    client.force_login(alice)
    text = client.get("/queue/").text
    assert "charlie" in text
    assert "audio" in text
    assert f"#{job.pk}" in text
    assert "secret" not in text
    assert f"/jobs/{job.pk}/" not in text


def test_every_reason_to_wait_is_on_the_queue(client: Client, alice: User, bob: User) -> None:
    """microsoft/pai#824, ROCm/spur#379: why a job waits is told, all of it."""
    reasons = [
        {"code": "QUOTA_GPUS", "field": "gpus", "scope": "user", "name": "bob", "asked": 1, "limit": 2, "used": 2,
         "nearest": None},
        {"code": "NODES_SILENT", "nodes": ["beta"]},
    ]  # fmt: skip
    factories.make_job(bob, wait_reasons=reasons)
    client.force_login(alice)
    text = client.get("/queue/").text
    assert "The quota of bob (2 GPUs) is in use: 2 used, 1 asked." in text
    assert "No sign of life from beta." in text


def test_the_queue_is_in_the_schedulers_order(alice: User, bob: User) -> None:
    now = timezone.now()
    late = factories.make_job(alice, queued_at=now)
    early = factories.make_job(alice, queued_at=now - timedelta(hours=1))
    urgent = factories.make_job(bob, queued_at=now, priority=3)
    low = factories.make_job(bob, queued_at=now - timedelta(hours=23), priority=0)
    held = factories.make_job(bob, state=JobState.HELD, held_by_user=True)
    factories.make_job(bob, state=JobState.SUCCEEDED)
    assert list(queue_order()) == [urgent.pk, early.pk, late.pk, low.pk]
    shown = board(alice)
    assert [(e.job.pk, e.place, e.mine) for e in shown.entries] == [
        (urgent.pk, 1, False), (early.pk, 2, True), (late.pk, 3, True), (low.pk, 4, False)
    ]  # fmt: skip
    assert [e.job.pk for e in shown.held] == [held.pk]


def test_who_cannot_start_yet_is_ahead_of_nobody(client: Client, alice: User, bob: User) -> None:
    now = timezone.now()
    hour = timedelta(hours=1)
    later = factories.make_job(bob, queued_at=now - 3 * hour, start_after=now + hour, pinned=True)
    factories.make_job(bob, queued_at=now - 2 * hour, state=JobState.HELD, held_by_user=True)
    due = factories.make_job(bob, queued_at=now - hour, start_after=now - timedelta(seconds=1))
    mine = factories.make_job(alice)
    assert places([due.pk, later.pk, mine.pk]) == ({due.pk: 1, mine.pk: 2}, 2)
    shown = board(alice)
    assert [e.job.pk for e in shown.entries] == [due.pk, mine.pk]
    assert [(e.job.pk, e.place) for e in shown.later] == [(later.pk, None)]
    client.force_login(alice)
    assert "To start later, as asked" in client.get("/queue/").text
    assert status(later, bob)["place"] is None


def test_a_preview_counts_only_those_who_could_start_now(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(bob), node)
    for _number in range(2):
        factories.make_job(bob, start_after=timezone.now() + timedelta(hours=1), priority=3)
    team = alice.teams.get()
    asked = JobRequest(name="a", image="a", script="true", gpus=1)
    assert preview(asked, owner=alice, team=team).position == 1
    later = replace(asked, start_after=timezone.now() + timedelta(hours=1))
    assert preview(later, owner=alice, team=team).position == 0


def test_a_place_is_told_and_moves(client: Client, alice: User) -> None:
    """determined-ai/determined#2937, DalgoT4D/DDP_backend#949"""
    first, second = factories.make_job(alice), factories.make_job(alice)
    assert places([second.pk]) == ({second.pk: 2}, 2)
    client.force_login(alice)
    assert "2nd of 2" in client.get("/jobs/").text
    first.advance(JobState.QUEUED, JobState.CANCELLED)
    assert "1st of 1" in client.get("/jobs/").text


def test_a_long_queue_comes_in_pages(alice: User) -> None:
    for _ in range(5):
        factories.make_job(alice)
    first = board(alice, size=2)
    assert ([e.place for e in first.entries], first.after, first.total) == ([1, 2], 2, 5)
    assert [e.place for e in board(alice, after=4, size=2).entries] == [5]
    assert board(alice, after=4, size=2).after is None


# --- filters and pages ---


def numbers(answer: Any) -> list[int]:
    return [job.pk for job in answer.context["jobs"]]


def on_all_pages(client: Client, path: str) -> list[int]:
    """The numbers of all jobs of a list, page by page."""
    seen = []
    while path:
        answer = client.get(path)
        seen += numbers(answer)
        path = answer.context["next"] and "/jobs/" + answer.context["next"]
    return seen


def test_jobs_are_found_by_name_image_number_and_owner(client: Client, alice: User, bob: User) -> None:
    one = factories.make_job(alice, name="Resnet", image="a:1")
    two = factories.make_job(bob, name="bert", image="torch:2")
    client.force_login(alice)
    for text, found in (("resn", one), ("TORCH", two), (f"#{two.pk}", two), (str(one.pk), one), ("bob", two)):
        assert numbers(client.get("/jobs/", {"q": text})) == [found.pk], text
    assert numbers(client.get("/jobs/")) == [one.pk]
    assert numbers(client.get("/jobs/", {"whose": "all"})) == [two.pk, one.pk]


def test_states_are_filtered_by_chips(client: Client, alice: User) -> None:
    node = factories.make_node("alpha")
    running = factories.make_job(alice)
    factories.make_run(running, node)
    waiting = factories.make_job(alice)
    failed = factories.make_job(alice, state=JobState.FAILED, end_reason="EXIT_CODE")
    client.force_login(alice)
    assert numbers(client.get("/jobs/?state=active")) == [running.pk]
    assert numbers(client.get("/jobs/?state=waiting&state=failed")) == [failed.pk, waiting.pk]


@pytest.mark.parametrize("sort", ["new", "old", "name"])
def test_pages_of_some_states_show_what_is_mine_and_my_teams_once_in_order(
    client: Client, alice: User, bob: User, charlie: User, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of one's own is its team's too, and each state has pages of its own in the index."""
    monkeypatch.setattr("jobs.paging.page.__defaults__", (2,))
    mixed = [JobState.FAILED, JobState.HELD, JobState.SUCCEEDED, JobState.LOST, JobState.QUEUED, JobState.TIMED_OUT]
    wanted = []
    for number, state in enumerate(mixed * 2):
        for owner in (alice, bob, charlie):
            job = factories.make_job(owner, state=state, name=f"name {number % 3}")
            if owner != charlie and state != JobState.SUCCEEDED:
                wanted.append(job.pk)
    client.force_login(alice)
    seen = on_all_pages(client, f"/jobs/?whose=all&state=failed&state=waiting&sort={sort}")
    keys = {"new": ["-id"], "old": ["id"], "name": ["name", "id"]}[sort]
    assert seen == list(Job.objects.filter(pk__in=wanted).order_by(*keys).values_list("id", flat=True))


@pytest.mark.parametrize("sort", ["new", "old", "name", "gpus"])
def test_pages_by_key_show_each_job_once_in_order(
    client: Client, alice: User, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.paging.page.__defaults__", (3,))
    for n in range(10):
        factories.make_job(alice, name=f"name {n % 3}", gpus=n % 2)
    client.force_login(alice)
    seen = on_all_pages(client, f"/jobs/?sort={sort}")
    keys = {"new": ["-id"], "old": ["id"], "name": ["name", "id"], "gpus": ["-gpus", "-id"]}[sort]
    assert seen == list(Job.objects.order_by(*keys).values_list("id", flat=True))


@pytest.mark.parametrize("query", [
    "after=x", "after=[]", 'after=["a"]', "after=[null]", "after=[99999999999999999999]", "sort=evil", "state=x",
    "whose=99999999999999999999", "whose=x", "q=%00", "q=%23", "q=99999999999999999999999", "since=x",
    "until=9999-12-31", "reason=x", "since=2026-13-45", "sort=name&after=[1,1]", 'after=["2026-01-01",1]',
    "whose=%E2%91%A0", "whose=" + 4400 * "9", "after=" + 5000 * "[", 'sort=name&after=["\\ud800",1]',
    'after=["0001-01-01T00:00:00%2B14:00",1]', 'after=["9999-12-31T23:59:59-14:00",1]',
], ids=lambda query: query[:40])  # fmt: skip
@pytest.mark.parametrize("path", ["/jobs/", "/history/"])
def test_nonsense_in_the_address_is_no_error(client: Client, alice: User, path: str, query: str) -> None:
    factories.make_job(alice)
    client.force_login(alice)
    assert client.get(f"{path}?{query}").status_code == 200


@pytest.mark.parametrize("after", ["x", "-1", "99999999999", "①", "100"])
def test_nonsense_in_the_address_of_the_queue_is_no_error(client: Client, alice: User, after: str) -> None:
    factories.make_job(alice)
    client.force_login(alice)
    assert client.get("/queue/", {"after": after}).status_code == 200


# --- history ---


def test_history_tells_why_how_long_and_at_what_cost(client: Client, alice: User) -> None:
    node = factories.make_node("alpha")
    job = make_ended(alice, node, EndReason.OOM_KILLED, state=JobState.FAILED, exit_code=137, memory_mib=16384)
    factories.make_job(alice, name="still waiting")
    client.force_login(alice)
    answer = client.get("/history/")
    assert numbers(answer) == [job.pk]
    assert "needed more than its 16 GiB of memory" in answer.text
    assert "Raise memory to 24 GiB and resubmit." in answer.text
    assert "1.00" in answer.text


def test_history_is_filtered_by_day_and_reason(client: Client, alice: User) -> None:
    node, now = factories.make_node("alpha"), timezone.now()
    make_ended(alice, node, ended_at=now - timedelta(days=9))
    recent = make_ended(alice, node, EndReason.TIME_LIMIT, state=JobState.TIMED_OUT, ended_at=now - timedelta(days=1))
    client.force_login(alice)
    day = f"{now - timedelta(days=2):%Y-%m-%d}"
    assert numbers(client.get("/history/", {"since": day})) == [recent.pk]
    assert numbers(client.get("/history/", {"reason": "TIME_LIMIT"})) == [recent.pk]
    assert recent.pk not in numbers(client.get("/history/", {"until": day}))


def test_csv_has_what_the_page_has_and_no_formula(client: Client, alice: User, charlie: User) -> None:
    node = factories.make_node("alpha")
    make_ended(alice, node, name='=HYPERLINK("http://evil")')
    make_ended(charlie, node, name="secret")
    client.force_login(alice)
    answer = client.get("/history/?whose=all&format=csv")
    text = b"".join(answer).decode("utf-8-sig")  # type: ignore[call-overload]
    assert answer["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == ['\'=HYPERLINK("http://evil")']
    assert (rows[0]["gpu_hours"], rows[0]["reason"], rows[0]["owner"]) == ("1.0", "COMPLETED", "alice")


# --- dashboard ---


def test_the_dashboard_tells_what_i_have_and_whether_there_is_room(
    client: Client, alice: User, charlie: User, vision: Team
) -> None:
    node = factories.make_node("alpha", gpus=4)
    Quota.objects.create(user=alice, gpus=2)
    mine = factories.make_job(alice, name="my running job")
    factories.make_run(mine, node)
    other = factories.make_job(charlie, name="secret")
    factories.make_run(other, node)
    sick = node.gpus.get(index=3)
    sick.quarantine_reason = "ECC errors"
    sick.save()
    client.force_login(alice)
    answer = client.get("/")
    assert _cells(answer) == ["mine", "taken", "unknown", "closed"], "free is only what was read to be free"
    assert (answer.context["free"], answer.context["unknown"]) == (0, 1)
    read = {"node": "alpha", "at": timezone.now().timestamp(), "gpus": [{"uuid": g.uuid} for g in node.gpus.all()]}
    live.connection().set(history.host_key("alpha"), json.dumps(read))
    answer = client.get("/")
    assert _cells(answer) == ["mine", "taken", "free", "closed"]
    assert (answer.context["free"], answer.context["gpus"]) == (1, 4)
    assert "my running job" in answer.text
    assert "secret" not in answer.text
    assert "charlie" in answer.text
    assert "1 / 2" in answer.text


def _cells(answer: Any) -> list[str]:
    return [cell.kind for _host, cells in answer.context["hosts"] for cell in cells]


def test_a_spark_line_begins_with_the_job_and_breaks_where_nothing_was_read(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice)
    now = timezone.now()
    run = factories.make_run(job, node, started_at=now - timedelta(seconds=200))
    uuid = run.gpu_uuids[0]
    for ago, busy in ((400, 99), (190, 10), (180, 20), (60, 30), (50, 40)):
        sample = {"at": now.timestamp() - ago, "utilisation": busy}
        live.connection().lpush(history.gpu_key(uuid), json.dumps(sample))
    line = dashboard.sparks({job.pk}, gpustrip.holders())[job.pk]
    pieces = [[point.partition(",")[2] for point in piece.split("L")] for piece in line.split("M")[1:]]
    assert pieces == [["90", "80"], ["70", "60"]]


def test_the_dashboard_stands_without_redis(client: Client, alice: User, redis_server: Any) -> None:
    """rommapp/romm#3195: what Redis holds is no truth, and no page needs it."""
    factories.make_node("alpha")
    factories.make_job(alice)
    client.force_login(alice)
    redis_server.stop()
    for path in PAGES:
        assert client.get(path).status_code == 200


def test_all_pages_tell_the_same_state(client: Client, alice: User) -> None:
    """NVIDIA/DIGITS#729"""
    node = factories.make_node("alpha")
    job = factories.make_job(alice, name="one job")
    factories.make_run(job, node, state=RunState.STARTING)
    client.force_login(alice)
    for path in ("/", "/jobs/", f"/jobs/{job.pk}/"):
        assert 'data-state="STARTING"' in client.get(path).text, path
