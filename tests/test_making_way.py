"""Jobs that make way for others: told for whom, stopped all or none, and back at their old places."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs import control, dispatch, makeroom, snapshot, wording
from jobs.models import Allocation, Cluster, Job, JobEvent, Run
from jobs.policy import Move, Preemption
from jobs.states import EndReason, JobState, RunState, Wish
from portal.models import User
from tests import factories
from tests.rigs.verbs import end, plan, rules, run_of, wishes

pytestmark = pytest.mark.django_db


def test_a_preempted_job_is_told_for_whom_and_waits_at_its_old_place(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    rules()
    run = run_of(alice, node, preemptible=True, priority=0)
    winner = factories.make_job(bob, priority=2)
    since = run.job.queued_at
    assert makeroom.make_room(plan(Preemption(run=run.pk, job=winner.pk, why="PRIORITY"))) == 1
    run.refresh_from_db()
    assert (run.wish, run.makes_way_for_id) == ("PREEMPT", winner.pk)
    event = JobEvent.objects.get(job=run.job, kind="WISHED")
    assert wording.event_sentence(event) == f"To make room for job #{winner.pk}, which has a higher priority"
    end(run, EndReason.PREEMPTED)
    job = Job.objects.get(pk=run.job_id)
    assert (job.state, job.queued_at, job.requeues, job.started_at) == ("QUEUED", since, 0, None)
    assert f"#{winner.pk}" in wording.end_sentence(job, Run.objects.get(pk=run.pk))


def test_a_pass_stops_a_preemptible_job_starts_the_winner_and_then_the_victim_again(alice: User, bob: User) -> None:
    """The victim was submitted long before, and yet does not take the room it has made."""
    node = factories.make_node("alpha", gpus=1)
    rules()
    run = run_of(alice, node, preemptible=True, priority=0)
    winner = factories.make_job(bob, priority=2)
    dispatch.run_pass()
    assert wishes(run) == ["PREEMPT"]
    dispatch.run_pass()
    assert Run.objects.count() == 1
    end(run, EndReason.PREEMPTED)
    dispatch.run_pass()
    assert [Job.objects.get(pk=pk).state for pk in (winner.pk, run.job_id)] == ["PLACED", "QUEUED"]
    control.cancel(winner, bob)
    dispatch.run_pass()
    assert Job.objects.get(pk=run.job_id).state == "PLACED"


def test_a_winner_that_was_stopped_in_turn_does_not_go_before_the_job_that_stopped_it(alice: User, bob: User) -> None:
    """Room is made for it once: its own victim, which still waits, does not keep it first in line."""
    node = factories.make_node("alpha", gpus=1)
    rules()
    guaranteed = factories.make_team("guaranteed", guaranteed_gpus=1)
    victim = run_of(alice, node, preemptible=True, priority=0)
    winner = factories.make_job(bob, priority=2)
    dispatch.run_pass()
    end(victim, EndReason.PREEMPTED)
    dispatch.run_pass()
    borrowed = winner.runs.get()
    assert borrowed.advance(RunState.PLACED, RunState.STARTING)
    assert borrowed.advance(RunState.STARTING, RunState.RUNNING, started_at=timezone.now())
    entitled = factories.make_job(factories.make_user("carol", teams=(guaranteed,)), guaranteed, priority=1)
    dispatch.run_pass()
    assert Run.objects.get(pk=borrowed.pk).makes_way_for_id == entitled.pk
    end(borrowed, EndReason.PREEMPTED)
    dispatch.run_pass()
    assert [Job.objects.get(pk=pk).state for pk in (victim.job_id, winner.pk, entitled.pk)] == [
        "QUEUED", "QUEUED", "PLACED"
    ]  # fmt: skip


@pytest.mark.parametrize(("waited", "first"), [(1, "the urgent one"), (100, "the old one")])
def test_the_time_that_a_job_ran_lifts_no_class(waited: int, first: str, alice: User, bob: User) -> None:
    """What it had waited before still does, so that a wait stays bounded."""
    node = factories.make_node("alpha", gpus=1)
    rules(preempt_lower=False, lift_after_hours=24)
    now = timezone.now()
    run = run_of(alice, node, priority=0, preemptible=True)
    Job.objects.filter(pk=run.job_id).update(queued_at=now - timedelta(hours=120 + waited))
    Run.objects.filter(pk=run.pk).update(placed_at=now - timedelta(hours=120), started_at=now - timedelta(hours=120))
    end(run, EndReason.PREEMPTED)
    urgent = factories.make_job(bob, priority=3)
    dispatch.run_pass()
    placed = Job.objects.get(state=JobState.PLACED)
    assert placed.pk == {"the urgent one": urgent.pk, "the old one": run.job_id}[first]


@pytest.mark.parametrize(
    ("job", "cluster", "why", "reason"),
    [
        ({"preemptible": False}, {}, "PRIORITY", "its owner does not allow it"),
        ({"preemptible": True}, {"preempt_lower": False}, "PRIORITY", "the admins do not"),
        ({"preemptible": True}, {"protected_minutes": 10}, "PRIORITY", "it has just started"),
        ({"preemptible": False}, {"protected_minutes": 10}, "GUARANTEE", "borrowed, but it has just started"),
    ],
)
def test_nobody_is_stopped_who_may_not_be(
    job: dict[str, Any], cluster: dict[str, Any], why: str, reason: str, alice: User, bob: User
) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1), **job)
    rules(**cluster)
    winner = factories.make_job(bob, priority=2)
    assert makeroom.make_room(plan(Preemption(run=run.pk, job=winner.pk, why=why))) == 0, reason
    assert (wishes(run), JobEvent.objects.filter(kind="WISHED").exists()) == ([""], False)


def test_a_run_that_took_long_to_start_is_protected_and_the_older_one_makes_way(alice: User, bob: User) -> None:
    """What is planned and what may be stopped count the protected time from the same moment."""
    node = factories.make_node("alpha", gpus=2)
    rules(protected_minutes=10)
    older, fresh = (run_of(alice, node, preemptible=True, priority=0) for _ in range(2))
    for run, began in ((older, timedelta(hours=5)), (fresh, timedelta(minutes=1))):
        placed_at = timezone.now() - began - timedelta(minutes=15)
        Run.objects.filter(pk=run.pk).update(placed_at=placed_at, started_at=timezone.now() - began)
        Allocation.objects.filter(run=run).update(created_at=placed_at)
    factories.make_job(bob, priority=2)
    dispatch.run_pass()
    assert wishes(older, fresh) == ["PREEMPT", ""]


def test_all_victims_of_a_winner_are_stopped_or_none(alice: User, bob: User) -> None:
    """A victim is never stopped for a job that then does not fit."""
    node = factories.make_node("alpha", gpus=2)
    rules()
    one, other = (run_of(alice, node, preemptible=True) for _ in range(2))
    winner = factories.make_job(bob, gpus=2, priority=2)
    wanted = plan(*(Preemption(run=run.pk, job=winner.pk, why="PRIORITY") for run in (one, other)))
    other.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())
    assert (makeroom.make_room(wanted), wishes(one)) == (0, [""])


def test_nobody_is_stopped_for_a_job_that_no_longer_waits_nor_twice(alice: User, bob: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1), preemptible=True)
    rules()
    winner = factories.make_job(bob, priority=2)
    wanted = plan(Preemption(run=run.pk, job=winner.pk, why="PRIORITY"))
    control.hold(winner, bob)
    assert (makeroom.make_room(wanted), wishes(run)) == (0, [""])
    control.release(winner, bob)
    assert [makeroom.make_room(wanted), makeroom.make_room(wanted)] == [1, 0]
    assert JobEvent.objects.filter(kind="WISHED").count() == 1


def test_a_victim_that_is_cancelled_still_makes_way(alice: User, bob: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1), preemptible=True)
    winner = factories.make_job(bob)
    assert control.wish(run, Wish.PREEMPT, for_job=winner.pk)
    assert control.cancel(run.job, alice)
    run.refresh_from_db()
    assert (run.wish, run.makes_way_for_id) == ("CANCEL", winner.pk)


def test_however_often_others_go_first_no_try_is_counted(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice, preemptible=True)
    for _ in range(5):
        run = factories.make_run(job, node)
        assert control.wish(run, Wish.PREEMPT)
        end(run, EndReason.PREEMPTED)
        job.refresh_from_db()
        assert (job.state, job.requeues) == ("QUEUED", 0)


def test_a_move_for_another_keeps_the_job_off_the_gpus_it_leaves(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    rules()
    run = run_of(alice, node, movable=True)
    winner = factories.make_job(bob)
    assert makeroom.make_room(plan(Move(run=run.pk, job=winner.pk))) == 1
    job = Job.objects.get(pk=run.job_id)
    assert (wishes(run), job.avoid_gpus) == (["REBIND"], run.gpu_uuids)
    left = run.gpu_uuids
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    job.refresh_from_db()
    assert job.state == "PLACED"
    assert job.avoid_gpus == [], "once it is placed, it may be moved back"
    assert job.runs.latest("number").gpu_uuids != left


def test_the_picture_says_who_yields_to_whom(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    run = run_of(alice, node, preemptible=True)
    winner = factories.make_job(bob, priority=2)
    assert control.wish(run, Wish.PREEMPT, for_job=winner.pk)
    end(run, EndReason.PREEMPTED)
    waiting = {job.id: job for job in snapshot.take(timezone.now(), cluster=Cluster.get()).waiting}
    assert (waiting[run.job_id].yields_to, waiting[winner.pk].yields_to) == (winner.pk, None)
