"""Running jobs that go elsewhere: by their owner, to another size, or off a host that is emptied."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus.models import Node
from jobs import control, dispatch, snapshot, timeleft, wording
from jobs.extend import extend
from jobs.models import Allocation, Cluster, Job, JobEvent, Quota, Run
from jobs.rebind import rebind
from jobs.states import EndReason, JobState, RunState
from jobs.submit import Refused
from jobs.vacate import vacate
from portal.models import User
from tests import factories
from tests.rigs.verbs import codes, end, rules, run_of, wishes

pytestmark = pytest.mark.django_db


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
    left = timeleft.of(again.job)
    assert left is not None
    assert 500 < left < 601


def test_nobody_takes_the_place_that_a_moved_job_goes_on_at(alice: User, bob: User, root_admin: User) -> None:
    """Not while it is stopped, and not between its end and the next pass, whoever is pinned and smaller."""
    node = factories.make_node("alpha", gpus=1)
    other = factories.make_node("beta", gpus=1)
    run = run_of(alice, node)
    assert rebind(run.job, alice)
    rivals = [factories.make_job(bob, priority=2, pinned=pinned) for pinned in (True, False)]
    dispatch.run_pass()
    states = set(Job.objects.filter(pk__in=[job.pk for job in rivals]).values_list("state", flat=True))
    assert states == {"QUEUED"}
    told = [reason for reason in Job.objects.get(pk=rivals[1].pk).wait_reasons if reason["code"] == "RESERVED_FOR"]
    assert told == [{"code": "RESERVED_FOR", "job": run.job_id, "node": "beta"}]
    assert wording.wait_reason(told[0]) == f"beta is kept for job #{run.job_id}, which goes before it."
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    assert [Job.objects.get(pk=pk).runs.latest("number").node_id for pk in (run.job_id, rivals[0].pk)] == [
        other.pk, node.pk
    ]  # fmt: skip


def test_a_job_that_grows_is_kept_what_is_free_beside_its_own(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=4)
    run = run_of(alice, node, gpus=2, least_gpus=1)
    assert rebind(run.job, alice, gpus=3)
    rivals = [factories.make_job(bob), factories.make_job(bob)]
    dispatch.run_pass()
    assert [Job.objects.get(pk=job.pk).state for job in rivals] == ["PLACED", "QUEUED"]
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    assert run.job.runs.latest("number").allocation.gpus == 3


def test_a_place_is_kept_no_longer_once_the_move_was_cancelled(alice: User, bob: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=2))
    assert rebind(run.job, alice)
    waits = factories.make_job(bob)
    dispatch.run_pass()
    assert Job.objects.get(pk=waits.pk).state == "QUEUED"
    assert control.cancel(run.job, alice)
    dispatch.run_pass()
    assert Job.objects.get(pk=waits.pk).state == "PLACED"


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


def _ran(run: Run, hours: float) -> None:
    """So long since the run began, of its whole limit."""
    begun = timezone.now() - timedelta(hours=hours)
    Run.objects.filter(pk=run.pk).update(
        placed_at=begun, started_at=begun, deadline=begun + timedelta(seconds=run.job.limit_seconds or 0)
    )
    Allocation.objects.filter(run=run).update(created_at=begun)
    run.refresh_from_db()


@pytest.mark.parametrize("gpu_hours", [6, 10], ids=["all of it was promised", "some is left"])
def test_a_moved_job_keeps_the_time_that_a_budget_has_promised_it(gpu_hours: int, alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_node("beta", gpus=1)
    run = run_of(alice, node, limit_seconds=6 * 3600)
    _ran(run, hours=5)
    Quota.objects.create(user=alice, gpu_hours=gpu_hours)
    assert rebind(run.job, alice)
    end(run, EndReason.REBOUND)
    (waiting,) = snapshot.take(timezone.now(), cluster=Cluster.get()).waiting
    assert waiting.limit_seconds is not None
    assert 3000 < waiting.limit_seconds <= 3600, "what it is counted for"
    dispatch.run_pass()
    assert Job.objects.get(pk=run.job_id).state == "PLACED"


@pytest.mark.parametrize("reason", [EndReason.REBOUND, EndReason.PREEMPTED])
def test_a_job_that_was_given_more_than_the_longest_limit_starts_again(
    reason: EndReason, alice: User, root_admin: User
) -> None:
    node = factories.make_node("alpha", gpus=1)
    run = run_of(alice, node, limit_seconds=3600, preemptible=True)
    Run.objects.filter(pk=run.pk).update(deadline=timezone.now() + timedelta(hours=1))
    Quota.objects.create(user=alice, limit_seconds=3600)
    assert extend(run.job, root_admin, 3600).granted
    end(run, reason)
    fresh = factories.make_job(alice, limit_seconds=7200)
    dispatch.run_pass()
    assert Job.objects.get(pk=run.job_id).state == "PLACED"
    assert Job.objects.get(pk=fresh.pk).wait_reasons[0]["code"] == "LONGEST_LIMIT"


def test_a_moved_job_comes_back_where_it_was_once_nothing_else_is_left(alice: User, bob: User) -> None:
    alpha, beta = factories.make_node("alpha", gpus=1, labels={"disk": "fast"}), factories.make_node("beta", gpus=1)
    rules()
    run = run_of(alice, alpha, movable=True)
    winner = factories.make_job(bob, node_labels=["disk=fast"])
    dispatch.run_pass()
    Node.objects.filter(pk=beta.pk).update(last_seen=timezone.now() - timedelta(hours=1))
    end(run, EndReason.REBOUND)
    dispatch.run_pass()
    assert Job.objects.get(pk=winner.pk).state == "PLACED", "as long as that waits, the other stays away"
    control.cancel(winner, bob)
    dispatch.run_pass()
    assert Job.objects.get(pk=run.job_id).state == "PLACED"


def test_no_job_is_moved_that_quotas_would_not_let_start_again(alice: User, bob: User) -> None:
    alpha, beta = factories.make_node("alpha", gpus=2), factories.make_node("beta", gpus=2)
    rules()
    run, other = run_of(alice, alpha, movable=True), run_of(alice, beta)
    factories.make_job(bob, gpus=2)
    quota = Quota.objects.create(user=alice, gpus=1)
    with pytest.raises(Refused):
        rebind(other.job, alice)
    dispatch.run_pass()
    assert wishes(run, other) == ["", ""]
    quota.delete()
    dispatch.run_pass()
    assert wishes(run, other) == ["REBIND", ""]


def test_a_job_does_not_grow_beyond_what_a_budget_leaves(alice: User) -> None:
    node = factories.make_node("alpha", gpus=4)
    run = run_of(alice, node, gpus=1, least_gpus=1, limit_seconds=6 * 3600)
    _ran(run, hours=5)
    quota = Quota.objects.create(user=alice, gpu_hours=7)
    with pytest.raises(Refused) as refused:
        rebind(run.job, alice, gpus=4)
    assert codes(refused) == ["BUDGET_USED"]
    Quota.objects.filter(pk=quota.pk).update(gpu_hours=10)
    assert rebind(run.job, alice, gpus=4)
