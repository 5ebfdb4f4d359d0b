"""The queue board and the fair-share page: what people see of the order, and the buttons that change it."""

import queue
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus.models import Node
from jobs import board as boards
from jobs import dispatch
from jobs.board import board, queue_order
from jobs.models import Allocation, Job, Membership, Quota, Run, Team
from jobs.standings import standings
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories
from tests.rigs.processes import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return factories.make_node("alpha", gpus=8)


def used(owner: User, node: Node, hours: float, *, gpus: int = 1) -> None:
    """GPU-hours that ended just now."""
    run = factories.make_run(factories.make_job(owner, gpus=gpus), node)
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(state=RunState.ENDED)
    run.allocation.slots.update(released_at=now)
    Allocation.objects.filter(run=run).update(created_at=now - timedelta(hours=hours), released_at=now)
    Job.objects.filter(pk=run.job_id).update(state="SUCCEEDED")


def post(client: Client, job: Job, verb: str, **sent: Any) -> Any:
    return client.post(f"/jobs/{job.pk}/{verb}/", {"back": "queue", **sent})


# --- the board ---


def test_the_board_marks_my_jobs_and_lets_them_change_places(client: Client, alice: User, bob: User) -> None:
    first, theirs, second = (factories.make_job(owner) for owner in (alice, bob, alice))
    client.force_login(alice)
    page = client.get("/queue/").text
    assert f'id="up-{first.pk}"' in page
    assert f'id="up-{theirs.pk}"' not in page
    assert post(client, second, "reorder", to="up").headers["Location"] == "/queue/"
    assert list(queue_order()) == [second.pk, theirs.pk, first.pk]
    post(client, second, "reorder", to=str(first.pk))
    assert list(queue_order()) == [first.pk, theirs.pk, second.pk]
    post(client, second, "reorder", to="sideways")
    assert list(queue_order()) == [first.pk, theirs.pk, second.pk]


def test_a_lone_job_has_nothing_to_change_places_with(client: Client, alice: User) -> None:
    factories.make_job(alice)
    client.force_login(alice)
    assert "reorder/" not in client.get("/queue/").text


def test_only_what_changes_the_order_has_buttons_for_it(client: Client, alice: User) -> None:
    """A job to start later stands by its time, and neither it nor one on hold is passed by a job in line."""
    first, second = factories.make_job(alice), factories.make_job(alice)
    held = factories.make_job(alice, state=JobState.HELD, held_by_user=True)
    later = [factories.make_job(alice, start_after=timezone.now() + timedelta(hours=h)) for h in (1, 2)]
    Job.objects.filter(pk__in=[held.pk, later[0].pk]).update(queued_at=first.queued_at)
    client.force_login(alice)
    page = client.get("/queue/").text
    assert [f'id="up-{job.pk}"' in page for job in (first, second, held, *later)] == [True, True, False, False, False]
    assert [entry.first for entry in board(alice).entries] == [True, False]
    post(client, second, "reorder", to="up")
    assert list(queue_order()) == [second.pk, first.pk]
    post(client, later[1], "reorder", to="up")
    assert [entry.job.pk for entry in board(alice).later] == [job.pk for job in later]


def test_what_would_help_is_told_to_the_owner_of_a_job_on_the_board(client: Client, alice: User, bob: User) -> None:
    """Others learn why it waits; what to change of it is nothing for them."""
    factories.make_run(factories.make_job(alice), factories.make_node("beta", gpus=2))
    factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    for reader, told in ((alice, True), (bob, False)):
        client.force_login(reader)
        page = client.get("/queue/").text
        assert "2 GPUs asked, and 1 of 2 is free." in page
        assert ("It would fit now with 1 GPU." in page) is told


def test_a_colleague_moves_nothing_but_an_admin_pins(client: Client, alice: User, bob: User, root_admin: User) -> None:
    first, second = factories.make_job(alice), factories.make_job(alice)
    client.force_login(bob)
    for verb in ("reorder", "pin", "priority"):
        post(client, second, verb, to="up", priority="2")
    assert list(queue_order()) == [first.pk, second.pk]
    client.force_login(root_admin)
    assert "act-pin" in client.get(f"/jobs/{second.pk}/").text
    post(client, second, "pin")
    assert list(queue_order()) == [second.pk, first.pk]
    assert "pinned" in client.get("/queue/").text


def test_an_owner_chooses_a_priority_up_to_the_ceiling(client: Client, alice: User) -> None:
    Quota.objects.create(user=alice, priority=2)
    job = factories.make_job(alice)
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").text
    assert '<option value="2">' in page
    assert '<option value="3">' not in page
    post(client, job, "priority", priority="2")
    job.refresh_from_db()
    assert job.priority == 2
    answer = client.post(f"/jobs/{job.pk}/priority/", {"priority": "3"}, follow=True)
    assert "Your quota allows priority up to high; urgent asked." in answer.text


def test_the_api_does_the_same(client: Client, alice: User, root_admin: User) -> None:
    first, second = factories.make_job(alice), factories.make_job(alice)

    def call(job: Job, verb: str, **body: Any) -> Any:
        return client.post(f"/api/jobs/{job.pk}/{verb}", body, content_type="application/json")

    client.force_login(alice)
    assert call(second, "reorder", to="up").json()["changed"]
    assert call(second, "reorder", to=first.pk).json()["changed"]
    assert list(queue_order()) == [first.pk, second.pk]
    assert call(second, "priority", priority="urgent").json()["job"]["priority"] == 3
    assert call(second, "priority", priority="highest").status_code == 422
    assert call(first, "pin").status_code == 403
    client.force_login(root_admin)
    assert call(first, "pin").json()["job"]["pinned"]
    assert [entry["pinned"] for entry in client.get("/api/queue").json()["queued"]] == [True, False]


# --- fair shares ---


def test_everybody_sees_the_teams_and_only_their_own_members(
    client: Client, alice: User, bob: User, node: Node
) -> None:
    speech = factories.make_team("speech")
    factories.make_user("carol", teams=(speech,))
    used(alice, node, 3)
    client.force_login(alice)
    page = client.get("/fairshare/").text
    assert "speech" in page
    assert "carol" not in page
    assert "It has had the most of its part, so its jobs go after those of every other team." in page
    client.force_login(factories.make_admin())
    assert "carol" in client.get("/fairshare/").text


def test_standings_tell_part_due_rank_and_what_it_does(alice: User, bob: User, node: Node) -> None:
    vision = alice.teams.get()
    speech = factories.make_team("speech")
    carol = factories.make_user("carol", teams=(speech,))
    Team.objects.filter(pk=vision.pk).update(shares=3)
    Membership.objects.filter(user=alice).update(shares=2)
    for owner, hours in ((alice, 2), (bob, 4), (carol, 3)):
        used(owner, node, hours)
    found = standings(alice, timezone.now())
    first, second = found.rows
    assert [row.name for row in found.rows] == ["vision", "speech"]
    assert (first.standing.rank, first.standing.due) == (1, 0.75)
    assert first.standing.part == pytest.approx(6 / 9, abs=0.01)
    assert first.sentences == ("It has had the least of its part, so its jobs go before those of every other team.",)
    assert [(row.name, row.mine) for row in first.members] == [("alice", True), ("bob", False)]
    assert first.members[1].sentences == ("Has had the most of their part, so their jobs go last in the team.",)
    assert (second.members, second.hidden) == ((), 1)


def test_a_passed_soft_mark_is_told_where_it_counts(alice: User, node: Node) -> None:
    Quota.objects.create(user=alice, gpu_hours_soft=2, window_days=7)
    used(alice, node, 1)
    (team,) = standings(alice, timezone.now()).rows
    assert len(team.members[0].sentences) == 1
    used(alice, node, 2)
    (team,) = standings(alice, timezone.now()).rows
    said = "More than 2 GPU-hours in 7 days: jobs start after all that are within their mark."
    assert team.members[0].sentences[1] == said


def test_what_runs_counts_as_promised(alice: User, node: Node) -> None:
    factories.make_run(factories.make_job(alice, limit_seconds=7200, gpus=2), node)
    (team,) = standings(alice, timezone.now()).rows
    assert team.standing.promised == pytest.approx(2 * 7200, rel=0.01)


def test_without_any_use_the_older_job_goes_first(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert "Nobody has used a GPU lately, so the older job goes first." in client.get("/fairshare/").text


def test_the_api_tells_the_same(client: Client, alice: User, node: Node) -> None:
    used(alice, node, 2)
    client.force_login(alice)
    found = client.get("/api/fairshare").json()
    (team,) = found["teams"]
    assert found["half_life_days"] == 7
    assert (team["name"], team["rank"], team["gpu_hours"]) == ("vision", 1, pytest.approx(2, abs=0.05))
    assert [member["name"] for member in team["members"]] == ["alice"]


def test_a_row_says_why_a_job_that_ran_already_waits_again(client: Client, alice: User, charlie: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    winner = factories.make_job(charlie, priority=2)
    run = factories.make_run(factories.make_job(alice, preemptible=True), node, makes_way_for=winner)
    run.end(RunState.RUNNING, EndReason.PREEMPTED, JobState.QUEUED, now=timezone.now())
    said = f"It made room for job #{winner.pk}, and waits at its old place to run again."
    client.force_login(alice)
    assert said in client.get("/queue/").content.decode()
    rows = client.get("/api/queue").json()["queued"]
    assert {row["id"]: row["put_back"] for row in rows} == {winner.pk: None, run.job_id: said}
    client.force_login(charlie)
    assert "It made room" not in client.get("/queue/").content.decode(), "strangers see owner, state and size"


def test_why_a_host_is_closed_is_said_with_it(client: Client, alice: User) -> None:
    factories.make_node("alpha", gpus=1, cordoned=True, cordon_reason="new fans.")
    factories.make_node("beta", gpus=1, cordoned=True)
    factories.make_job(alice)
    dispatch.run_pass()
    client.force_login(alice)
    said = "Closed to new jobs by an administrator: alpha (new fans), beta."
    assert said in client.get("/queue/").content.decode()
    assert "Closed to new jobs by an administrator: alpha (new fans)." in client.get("/").content.decode()
    Node.objects.update(cordon_reason="new fans")
    dispatch.run_pass()
    assert "administrator: alpha, beta (new fans)." in client.get("/queue/").content.decode()


def test_pages_do_not_wait_for_an_order_that_has_only_just_grown_too_old(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """A thread behind them works out the next; one that is much too old is worked out before it is shown."""
    settings.ORDER_REREAD = 600.0
    go_on, workers = threading.Event(), queue.SimpleQueue[str]()

    def work_out() -> None:
        assert go_on.wait(60)
        workers.put(threading.current_thread().name)

    monkeypatch.setattr(boards, "_work_out", work_out)
    monkeypatch.setattr(boards, "_mark", lambda: "as it was")
    for name, value in {"mark": "as it was", "order": (2, 1), "took": 0.0, "read_at": time.monotonic() - 700}.items():
        monkeypatch.setattr(boards._kept, name, value)
    assert queue_order(fresh=False) == queue_order() == (2, 1), "nobody waits"
    go_on.set()
    assert workers.get(timeout=60).startswith("order")
    monkeypatch.setattr(boards._kept, "read_at", time.monotonic() - 7000)
    wait_until(lambda: not boards._turn.locked(), "the thread is done")
    queue_order()
    assert workers.get(timeout=0) == threading.current_thread().name
