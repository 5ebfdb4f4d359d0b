"""What may be done to jobs that run or wait: made to make way, moved, given more time, asked to do with less."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus.models import Node
from jobs import control, dispatch, makeroom, snapshot, wording
from jobs.amend import amend, lowered, submitted_with
from jobs.begin import seconds_left
from jobs.extend import extend
from jobs.models import AllocationSlot, Cluster, Job, JobEvent, Quota, Run
from jobs.policy import Move, Placement, Plan, Preemption
from jobs.rebind import rebind
from jobs.states import EndReason, JobState, RunState, Wish, job_state_after
from jobs.submit import Refused
from jobs.vacate import vacate
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def rules(**fields: Any) -> None:
    Cluster.get()
    Cluster.objects.update(**{"protected_minutes": 0, "preempt_lower": True, "defragment": True, **fields})


def plan(*asked: Preemption | Move) -> Plan:
    return Plan(
        placements=(), reasons={}, blocked=frozenset(),
        preemptions=tuple(one for one in asked if isinstance(one, Preemption)),
        moves=tuple(one for one in asked if isinstance(one, Move)),
    )  # fmt: skip


def wishes(*runs: Run) -> list[str]:
    return [Run.objects.get(pk=run.pk).wish for run in runs]


def run_of(owner: User, node: Node, **fields: Any) -> Run:
    return factories.make_run(factories.make_job(owner, **fields), node)


def codes(error: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [*(problem.code for problem in error.value.problems), *(found.code for found in error.value.refusals)]


def end(run: Run, reason: EndReason) -> None:
    """As its node ends a run whose wish was granted."""
    run.refresh_from_db()
    assert run.advance(RunState.RUNNING, RunState.STOPPING, stopping_at=timezone.now())
    job = Job.objects.get(pk=run.job_id)
    state = job_state_after(reason, requeues=job.requeues, max_requeues=3, held=job.is_held)
    assert run.end(RunState.STOPPING, reason, state, now=timezone.now())


# --- making way ---


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


# --- moving ---


def test_its_owner_moves_a_job_to_other_gpus_and_it_keeps_the_rest_of_its_time(alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    run = run_of(alice, node, limit_seconds=3600)
    Run.objects.filter(pk=run.pk).update(deadline=timezone.now() + timedelta(seconds=600))
    old = run.gpu_uuids
    assert rebind(run.job, alice)
    assert not rebind(run.job, alice), "a second press changes nothing"
    end(run, EndReason.REBOUND)
    factories.make_job(alice, priority=2)
    dispatch.run_pass()
    again = Job.objects.get(pk=run.job_id).runs.latest("number")
    assert (again.number, again.gpu_uuids != old) == (2, True)
    left = seconds_left(again)
    assert left is not None
    assert 500 < left < 601


def test_a_job_with_nowhere_to_go_is_left_alone_and_told_why(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    run = run_of(alice, node)
    run_of(bob, node)
    with pytest.raises(Refused) as refused:
        rebind(run.job, alice)
    assert (codes(refused), wishes(run)) == (["NO_OTHER_PLACE"], [""])
    assert wording.problem(refused.value.problems[0]).startswith("There is no other place for it now")


def test_an_elastic_job_starts_with_what_is_there_and_grows_when_asked(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=4)
    other = run_of(bob, node, gpus=2)
    job = factories.make_job(alice, gpus=4, least_gpus=1)
    dispatch.run_pass()
    run = job.runs.get()
    assert (run.allocation.gpus, run.allocation.gpu_milli, len(run.gpu_uuids)) == (2, 2000, 2)
    Run.objects.filter(pk=run.pk).update(state=RunState.RUNNING)
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING)
    with pytest.raises(Refused) as refused:
        rebind(job, alice, gpus=4)
    assert codes(refused) == ["NO_OTHER_PLACE"]
    other.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())
    assert rebind(job, alice, gpus=4)
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    assert job.runs.latest("number").allocation.gpus == 4


@pytest.mark.parametrize(
    ("fields", "gpus", "code"),
    [({}, 2, "NOT_ELASTIC"), ({"least_gpus": 2, "gpus": 2}, 1, "TOO_SMALL"),
     ({"least_gpus": 1, "gpus": 2}, 2, "SAME_SIZE"), ({"least_gpus": 1}, 3, "QUOTA_GPUS"),
     ({"gpus": 0}, None, "NO_GPUS_TO_MOVE")],
)  # fmt: skip
def test_a_size_that_cannot_be_is_refused(fields: dict[str, Any], gpus: int | None, code: str, alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"), **fields)
    Quota.objects.create(user=alice, gpus=2)
    with pytest.raises(Refused) as refused:
        rebind(run.job, alice, gpus=gpus)
    assert (codes(refused), wishes(run)) == ([code], [""])


def cordon(node: Node) -> list[Node]:
    Node.objects.filter(pk=node.pk).update(cordoned=True)
    return [Node.objects.get(pk=node.pk)]


def begun_long_ago(*runs: Run) -> None:
    Run.objects.filter(pk__in=[run.pk for run in runs]).update(started_at=timezone.now() - timedelta(hours=1))


def test_a_host_is_emptied_onto_others(alice: User, root_admin: User) -> None:
    node, other = factories.make_node("alpha", gpus=1), factories.make_node("beta", gpus=1)
    rules()
    run = run_of(alice, node)
    placed = factories.make_run(factories.make_job(alice, gpus=0), node, state=RunState.PLACED)
    moved, left = vacate(cordon(node), root_admin)
    assert ([(one.run.pk, one.to) for one in moved], left) == ([(run.pk, "beta"), (placed.pk, "beta")], [])
    placed.refresh_from_db()
    assert (wishes(run), placed.state, placed.end_reason) == (["REBIND"], "ENDED", "REBOUND")
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    assert [Job.objects.get(pk=r.job_id).runs.latest("number").node_id for r in (run, placed)] == [other.pk, other.pk]


def test_no_job_is_stopped_for_nothing_when_its_host_is_emptied(alice: User, root_admin: User) -> None:
    """The only host: all stay. A second with room for one: one goes, and no place is promised twice."""
    node = factories.make_node("alpha", gpus=2)
    rules()
    runs = [run_of(alice, node), run_of(alice, node)]
    moved, left = vacate(cordon(node), root_admin)
    assert (moved, wishes(*runs), len(left)) == ([], ["", ""], 2)
    assert [reason["code"] for one in left for reason in one.reasons] == ["NODES_CORDONED"] * 2
    factories.make_node("beta", gpus=1)
    moved, left = vacate(cordon(node), root_admin)
    assert (wishes(*runs), [one.run.pk for one in left]) == (["REBIND", ""], [runs[1].pk])
    vacate(cordon(node), root_admin, regardless=True)
    assert wishes(*runs) == ["REBIND", "REBIND"]


def test_paused_starts_leave_no_place_to_move_to(alice: User, root_admin: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_node("beta", gpus=1)
    rules(paused=True)
    run = run_of(alice, node)
    assert vacate(cordon(node), root_admin)[0] == []
    with pytest.raises(Refused):
        rebind(run.job, root_admin)
    assert wishes(run) == [""]


def test_a_job_that_has_just_begun_stays_unless_it_is_chosen_too(alice: User, root_admin: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    factories.make_node("beta", gpus=1)
    rules(protected_minutes=10)
    young, old = run_of(alice, node), run_of(alice, node)
    begun_long_ago(old)
    moved, left = vacate(cordon(node), root_admin)
    assert ([one.run.pk for one in moved], [one.run.pk for one in left]) == ([old.pk], [young.pk])
    assert left[0].is_protected
    factories.make_node("gamma", gpus=1)
    end(old, EndReason.REBOUND)
    dispatch.run_pass()
    assert [one.run.pk for one in vacate(cordon(node), root_admin, protected=True)[0]] == [young.pk]


def test_an_admin_is_told_what_would_become_of_each_job_before_a_host_is_emptied(
    client: Client, alice: User, root_admin: User
) -> None:
    node = factories.make_node("alpha", gpus=2)
    factories.make_node("beta", gpus=1)
    rules(protected_minutes=10)
    runs = [run_of(alice, node), run_of(alice, node)]
    begun_long_ago(*runs)
    client.force_login(root_admin)
    posted: dict[str, Any] = {"action": "move_away", "_selected_action": [node.pk], "reason": "new fans"}
    page = client.post("/admin/gpus/node/", posted).content.decode()
    node.refresh_from_db()
    assert (node.cordoned, wishes(*runs)) == (False, ["", ""]), "nothing is done yet"
    assert page.index("moves: there is a place on beta") < page.index("stays to its end: there is no place for it now")
    assert 'value="new fans"' in page
    assert "regardless" in page
    assert 'name="protected"' not in page
    said = client.post("/admin/gpus/node/", {**posted, "confirmed": "1"}, follow=True).content.decode()
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason, wishes(*runs)) == (True, "new fans", ["REBIND", ""])
    assert f"1 job runs to its end where it is: #{runs[1].job_id} (alpha)." in said
    client.post("/admin/gpus/node/", {**posted, "confirmed": "1", "regardless": "1"})
    assert wishes(*runs) == ["REBIND", "REBIND"]


def test_a_job_that_goes_on_with_another_number_of_gpus_is_not_said_to_move(alice: User) -> None:
    node = factories.make_node("alpha", gpus=4)
    run = run_of(alice, node, gpus=2, least_gpus=1)
    assert rebind(run.job, alice, gpus=3)
    run.refresh_from_db()
    assert run.advance(RunState.RUNNING, RunState.STOPPING, stopping_at=timezone.now())
    assert wording.headline(Job.objects.get(pk=run.job_id)) == "Stopping: it goes on with 3 GPUs."
    run.end(RunState.STOPPING, EndReason.REBOUND, JobState.QUEUED, now=timezone.now())
    event = JobEvent.objects.get(kind="ENDED")
    assert wording.event_sentence(event) == "Run ended: goes on with 3 GPUs"
    assert wording.run_label(run) == "goes on with 3 GPUs"
    assert "was stopped by alice in order to go on with 3 GPUs" in wording.end_sentence(run.job, run)
    moved = run_of(alice, node)
    assert rebind(moved.job, alice)
    end(moved, EndReason.REBOUND)
    assert wording.event_sentence(JobEvent.objects.get(run=moved, kind="ENDED")) == "Run ended: moved to other GPUs"


def test_a_run_that_has_not_begun_is_resized_in_words_too(alice: User) -> None:
    node = factories.make_node("alpha", gpus=4)
    run = factories.make_run(factories.make_job(alice, gpus=2, least_gpus=1), node, state=RunState.PLACED)
    assert rebind(run.job, alice, gpus=1)
    assert wording.event_sentence(JobEvent.objects.get(kind="WISHED")) == "Asked to go on with 1 GPU, by alice"
    assert wording.event_sentence(JobEvent.objects.get(kind="ENDED")) == "Run ended: goes on with 1 GPU, by alice"


# --- more time ---


def test_more_time_is_granted_at_once_when_nobody_waits(alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"))
    assert run.deadline is not None
    found = extend(run.job, alice, 7200)
    run.refresh_from_db()
    assert (found.granted, found.delayed, run.deadline) == (True, {}, found.until)
    assert Job.objects.get(pk=run.job_id).limit_seconds == 3600 + 7200
    assert wording.event_sentence(JobEvent.objects.get(kind="EXTENDED")).startswith("Given 2 h more, until")


def test_who_would_delay_others_is_told_whom_and_by_how_much(alice: User, bob: User, root_admin: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1))
    waits = factories.make_job(bob)
    found = extend(run.job, alice, 7200)
    run.refresh_from_db()
    assert (found.granted, list(found.delayed), run.deadline == found.until) == (False, [waits.pk], False)
    late = found.delayed[waits.pk]
    assert late is None or abs(late - 7200) < 60
    assert f"#{waits.pk} by 2 h" in wording.extension(granted=False, until=found.until, delayed=found.delayed)
    assert extend(run.job, root_admin, 7200).granted, "an administrator answers for it"


def test_admins_may_allow_some_time_in_spite_of_others(alice: User, bob: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1))
    factories.make_job(bob)
    rules(extension_hours=3)
    assert [extend(run.job, alice, 7200).granted for _ in range(2)] == [True, False], "3 hours in all"


@pytest.mark.parametrize(
    ("quota", "code"),
    [({"limit_seconds": 5000}, "LONGEST_LIMIT"), ({"gpu_hours": 2}, "BUDGET_SIZE"), ({"gpu_hours": 3}, None)],
)
def test_more_time_stays_within_the_quota(
    quota: dict[str, int], code: str | None, alice: User, root_admin: User
) -> None:
    run = run_of(alice, factories.make_node("alpha"))
    Quota.objects.create(user=alice, **quota)
    if code is None:
        assert extend(run.job, alice, 7000).granted
        return
    with pytest.raises(Refused) as refused:
        extend(run.job, alice, 7200)
    assert code in codes(refused)
    assert extend(run.job, root_admin, 7200).granted


def test_there_is_nothing_to_extend_in_a_job_that_ends(alice: User) -> None:
    node = factories.make_node("alpha")
    unlimited = run_of(alice, node, limit_seconds=None)
    stopped = run_of(alice, node)
    control.cancel(stopped.job, alice)
    for job, code in (
        (factories.make_job(alice), "NOT_RUNNING"),
        (stopped.job, "NOT_RUNNING"),
        (unlimited.job, "NO_DEADLINE"),
    ):
        with pytest.raises(Refused) as refused:
            extend(job, alice, 3600)
        assert codes(refused) == [code]


# --- less ---


def test_a_waiting_job_asks_for_less_and_keeps_its_place(alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    run_of(alice, node)
    job = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    job.refresh_from_db()
    [way] = wording.ways(job, submitted_with(job))
    question = "Start now with 1 GPU in place of 2 GPUs? Once it runs, this cannot be taken back."
    assert way == {"text": "Run now with 1 GPU", "changes": {"gpus": 1}, "question": question}
    assert amend(job, alice, **way["changes"])
    dispatch.run_pass()
    after = Job.objects.get(pk=job.pk)
    assert (after.state, after.queued_at) == ("PLACED", job.queued_at)
    assert wording.event_sentence(JobEvent.objects.get(kind="AMENDED")) == "Asks for less now: 1 GPU, by alice"


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"gpus": 3}, "ONLY_LESS"), ({"gpus": 0}, "ONLY_LESS"), ({"limit_seconds": 4000}, "ONLY_SHORTER")],
)
def test_only_less_can_be_asked_for(asked: dict[str, int], code: str, alice: User) -> None:
    job = factories.make_job(alice, gpus=2)
    with pytest.raises(Refused) as refused:
        amend(job, alice, **asked)
    assert codes(refused) == [code]


def test_cpus_and_memory_shrink_too_and_shared_memory_with_them(alice: User) -> None:
    job = factories.make_job(alice, millicpus=4000, memory_mib=4096, shm_mib=2048)
    assert amend(job, alice, millicpus=1500, memory_mib=1024)
    job.refresh_from_db()
    assert (job.millicpus, job.memory_mib, job.shm_mib) == (1500, 1024, 1024)
    said = wording.event_sentence(JobEvent.objects.get(kind="AMENDED"))
    assert said == "Asks for less now: 1.5 CPUs, 1 GiB of memory, by alice"
    for beyond in ({"millicpus": 50}, {"memory_mib": 8192}):
        with pytest.raises(Refused):
            amend(job, alice, **beyond)


def test_what_was_given_up_can_be_asked_for_again_but_no_more(alice: User, client: Client) -> None:
    job = factories.make_job(alice, gpus=4, least_gpus=2, memory_mib=4096, shm_mib=2048, limit_seconds=1800)
    assert amend(job, alice, gpus=1, memory_mib=1024, limit_seconds=60)
    assert amend(job, alice, limit_seconds=30)
    job.refresh_from_db()
    assert (job.least_gpus, job.shm_mib) == (1, 1024)
    assert lowered(job, submitted_with(job)) == {"gpus": 4, "memory_mib": 4096, "limit_seconds": 1800}
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert all(f"Back to {what}" in page for what in ("4 GPUs", "4 GiB of memory", "a time limit of 30 min"))
    for more in ({"gpus": 5}, {"memory_mib": 4097}, {"limit_seconds": 1801}):
        with pytest.raises(Refused):
            amend(job, alice, **more)
    assert amend(job, alice, gpus=4, memory_mib=4096, limit_seconds=1800)
    job.refresh_from_db()
    found = job.gpus, job.least_gpus, job.memory_mib, job.shm_mib, job.limit_seconds
    assert (found, lowered(job, submitted_with(job))) == ((4, 2, 4096, 2048, 1800), {})
    last = wording.event_sentence(JobEvent.objects.filter(kind="AMENDED").latest("pk"))
    assert last == "Asks for more again: 4 GPUs, 4 GiB of memory, a time limit of 30 min, by alice"


@pytest.mark.parametrize(("seconds", "offered"), [(600, True), (599, False)])
def test_no_limit_is_offered_that_leaves_less_than_a_third_of_the_time(
    seconds: int, offered: bool, alice: User
) -> None:
    job = factories.make_job(alice, limit_seconds=1800)
    job.wait_reasons = [{"code": "FITS_WITHIN", "seconds": seconds}]
    found = wording.ways(job, submitted_with(job))
    assert bool(found) is offered
    if found:
        asked = "Start now with a time limit of 10 min in place of a time limit of 30 min?"
        assert found[0]["question"] == f"{asked} The job is stopped once that is over."


def test_a_job_of_one_gpu_that_is_asked_for_more_is_told_what_can_be_done(alice: User) -> None:
    with pytest.raises(Refused) as refused:
        amend(factories.make_job(alice), alice, gpus=4)
    assert wording.problem(refused.value.problems[0]) == (
        "It was submitted with 1 GPU. A waiting job can be made smaller, and as large as that again, "
        "but no larger: for more, cancel it and submit a new one."
    )


def test_a_job_that_has_started_is_not_amended(alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"), gpus=2)
    assert not amend(run.job, alice, gpus=1)


def test_the_page_has_the_buttons_that_help_and_they_do_it(alice: User, client: Client) -> None:
    node = factories.make_node("alpha", gpus=2)
    run = run_of(alice, node)
    job = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Run now with 1 GPU" in page
    assert 'data-confirm="Start now with 1 GPU in place of 2 GPUs?' in page
    client.post(f"/jobs/{job.pk}/amend/", {"gpus": "1"})
    assert Job.objects.get(pk=job.pk).gpus == 1
    running = client.get(f"/jobs/{run.job_id}/").content.decode()
    assert all(word in running for word in ("act-extend", "act-move"))
    said = client.post(f"/jobs/{run.job_id}/extend/", {"extension": "half"}, follow=True).content.decode()
    assert "is no duration" in said
    said = client.post(f"/jobs/{run.job_id}/extend/", {"extension": "2h"}, follow=True).content.decode()
    assert "It may run until" in said or "would delay" in said


# --- shares ---


def test_two_halves_share_a_gpu_and_the_third_waits(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    node.gpus.update(slots=4)
    jobs = [factories.make_job(alice, gpu_milli=500) for _ in range(3)]
    dispatch.run_pass()
    assert sorted(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)) == [
        "PLACED", "PLACED", "QUEUED"
    ]  # fmt: skip
    slots = list(AllocationSlot.objects.order_by("slot").values_list("slot", flat=True))
    assert slots == [0, 1, 2, 3]
    assert {tuple(run.gpu_uuids) for run in Run.objects.all()} == {(node.gpus.get().uuid,)}


def test_a_whole_job_takes_all_slots_and_a_share_needs_shared_ones(alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    node.gpus.filter(index=0).update(slots=3)
    whole = [factories.make_job(alice) for _ in range(2)]
    dispatch.run_pass()
    assert AllocationSlot.objects.count() == 4
    share = factories.make_job(alice, gpu_milli=100)
    dispatch.run_pass()
    assert [Job.objects.get(pk=job.pk).state for job in (*whole, share)] == ["PLACED", "PLACED", "QUEUED"]


def test_a_share_is_charged_for_the_slots_that_it_takes(alice: User) -> None:
    """What quotas, budgets and the fair share count is what nobody else can have."""
    factories.make_node("alpha", gpus=1).gpus.update(slots=4)
    for percent in (300, 250):
        factories.make_job(alice, gpu_milli=percent)
    dispatch.run_pass()
    held = [(run.allocation.gpu_milli, run.allocation.slots.count()) for run in Run.objects.order_by("job_id")]
    assert held == [(500, 2), (250, 1)]
    assert [run.milli for run in snapshot.take(timezone.now(), cluster=Cluster.get()).running] == [500, 250]


def test_a_share_gets_no_gpu_that_is_not_cut_any_more(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    share = factories.make_job(alice, gpu_milli=10)
    for _ in range(2):
        dispatch.run_pass()
    share.refresh_from_db()
    assert (share.state, share.wait_reasons[0]["code"]) == ("QUEUED", "NO_SHARED_GPU")
    assert "whole GPU" in wording.way_out(share.wait_reasons[0])
    placement = Placement(job=share.pk, node=node.name, gpu_uuids=(node.gpus.get().uuid,))
    assert dispatch._commit(placement) is None, "the transaction looks again"


def test_a_share_that_would_be_charged_above_the_quota_waits(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    factories.make_node("alpha", gpus=2).gpus.update(slots=2)
    jobs = [factories.make_job(alice, gpu_milli=milli) for milli in (600, 300)]
    dispatch.run_pass()
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["PLACED", "QUEUED"]


def test_a_mig_instance_goes_to_who_asks_for_its_profile(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_gpu(node, 1, uuid="MIG-1", profile="1g.10gb", memory_mib=10240)
    part, whole, none = (factories.make_job(alice, gpu_profile=name) for name in ("1g.10gb", "", "3g.40gb"))
    dispatch.run_pass()
    assert [run.gpu_uuids for run in (part.runs.get(), whole.runs.get())] == [["MIG-1"], ["GPU-alpha-0000"]]
    assert none.runs.count() == 0


def test_the_picture_says_who_yields_to_whom(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    run = run_of(alice, node, preemptible=True)
    winner = factories.make_job(bob, priority=2)
    assert control.wish(run, Wish.PREEMPT, for_job=winner.pk)
    end(run, EndReason.PREEMPTED)
    waiting = {job.id: job for job in snapshot.take(timezone.now(), cluster=Cluster.get()).waiting}
    assert (waiting[run.job_id].yields_to, waiting[winner.pk].yields_to) == (winner.pk, None)
