"""Scheduling passes on the database: placed once, or told why not; and nothing passes a quota, whoever races."""

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from gpus.models import GPU, Node
from jobs import control, dispatch, snapshot
from jobs.amend import amend
from jobs.models import Allocation, AllocationSlot, Cluster, Job, Quota, Run, Team
from jobs.policy import estimate, make_plan
from jobs.policy.past import Past
from jobs.policy.view import Placement, Waiting
from jobs.request import JobRequest
from jobs.states import EndReason, JobState, RunState, Wish
from jobs.submit import Refused, submit
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def codes(job: Job) -> list[str]:
    job.refresh_from_db()
    return [reason["code"] for reason in job.wait_reasons]


def state(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def test_a_pass_places_with_run_allocation_slots_and_event(alice: User) -> None:
    factories.make_node("alpha")
    job = factories.make_job(alice, gpus=2)
    result = dispatch.run_pass()
    assert result == dispatch.Result(placed=1, waiting=0)
    run = job.runs.get()
    assert (state(job), run.state, run.number, len(run.gpu_uuids)) == ("PLACED", "PLACED", 1, 2)
    assert (run.allocation.gpus, run.allocation.millicpus, run.allocation.memory_mib) == (2, 1000, 1024)
    event = job.events.get()
    assert (event.kind, event.old_state, event.new_state) == ("PLACED", "QUEUED", "PLACED")
    assert event.params["gpus"] == [0, 1]


def test_a_host_that_left_since_the_picture_was_taken_gets_nothing(alice: User) -> None:
    Cluster.get()
    node = factories.make_node("alpha")
    job = factories.make_job(alice, gpus=1)
    placement = Placement(job.pk, "alpha", (node.gpus.order_by("index")[0].uuid,))
    Node.objects.filter(pk=node.pk).update(left_at=timezone.now())
    assert dispatch._commit(placement, snapshot.waiting(job)) is None
    Node.objects.filter(pk=node.pk).update(left_at=None)
    assert dispatch._commit(placement, snapshot.waiting(job)) is not None


@pytest.mark.parametrize(
    "change",
    [{"gpu_model": "B"}, {"limit_seconds": 7200}, {"memory_mib": 4096}, {"node_labels": ["disk=nvme"]}, {"gpus": 1}],
)
def test_what_was_amended_since_the_picture_was_taken_is_planned_anew(alice: User, change: dict[str, Any]) -> None:
    node = factories.make_node("alpha", gpus=0)
    for index, model in enumerate("AABB"):
        factories.make_gpu(node, index, model=model)
    job = factories.make_job(alice, gpus=2, limit_seconds=7200, memory_mib=4096, node_labels=["disk=nvme"])
    amend(job, alice, limit_seconds=3600, memory_mib=1024, node_labels=[])
    picture = snapshot.take(timezone.now(), cluster=Cluster.get())
    (placement,) = make_plan(picture).placements
    amend(job, alice, **change)
    assert dispatch._commit(placement, picture.waiting[0]) is None
    assert state(job) == "QUEUED"


@pytest.mark.parametrize("stuck", [False, True])
def test_what_a_job_avoids_only_while_other_gpus_would_do_is_no_amendment(alice: User, stuck: bool) -> None:
    node = factories.make_node("alpha", gpus=1 if stuck else 2)
    avoided = node.gpus.order_by("index")[0].uuid
    job = factories.make_job(alice, avoid_gpus=[avoided])
    dispatch.run_pass()
    assert (job.runs.get().gpu_uuids == [avoided]) is stuck


def test_a_job_without_gpus_holds_cpus_and_memory(alice: User) -> None:
    factories.make_node("alpha", gpus=0, millicpus=2000)
    jobs = [factories.make_job(alice, gpus=0) for _ in range(3)]
    dispatch.run_pass()
    assert [state(job) for job in jobs] == ["PLACED", "PLACED", "QUEUED"]
    assert codes(jobs[2]) == ["BUSY_CPUS"]


def test_limits_that_add_up_beyond_any_calendar_keep_nobody_from_starting(alice: User, bob: User) -> None:
    Quota.objects.create(user=alice, running_jobs=1)
    factories.make_node("alpha")
    for _ in range(120):
        factories.make_job(alice, limit_seconds=2**31 - 1)
    other = factories.make_job(bob)
    dispatch.run_pass()
    assert state(other) == "PLACED"


def test_jobs_start_also_where_nobody_can_work_out_why_the_others_wait(
    alice: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: Any, **_more: Any) -> None:
        raise OverflowError("date value out of range")

    factories.make_node("alpha", gpus=1)
    jobs = [factories.make_job(alice) for _ in range(2)]
    monkeypatch.setattr(estimate, "expected", broken)
    assert dispatch.run_pass() == dispatch.Result(placed=1, waiting=1)
    assert [state(job) for job in jobs] == ["PLACED", "QUEUED"]
    assert "OverflowError" in caplog.text, "told to those who run the portal"
    monkeypatch.undo()
    dispatch.run_pass()
    assert codes(jobs[1]) == ["BUSY_GPUS"]


def test_an_elastic_job_starts_with_what_the_quota_of_its_model_leaves(alice: User, bob: User) -> None:
    node = factories.make_node("alpha")
    Quota.objects.create(user=alice, gpus_by_model={node.gpus.all()[0].model: 2})
    job, other = factories.make_job(alice, gpus=4, least_gpus=1), factories.make_job(bob)
    assert dispatch.run_pass() == dispatch.Result(placed=2, waiting=0)
    assert (len(job.runs.get().gpu_uuids), state(other)) == (2, "PLACED")


def test_what_was_to_start_and_could_not_waits_for_a_reason(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.make_node("alpha")
    job = factories.make_job(alice)
    monkeypatch.setattr(dispatch, "_place", lambda *_args: None)  # as when the picture is out of date
    assert dispatch.run_pass() == dispatch.Result(placed=0, waiting=1)
    assert codes(job) == ["BUSY_TOGETHER"]
    monkeypatch.undo()
    assert dispatch.run_pass() == dispatch.Result(placed=1, waiting=0)
    assert codes(job) == []


def test_the_hosts_reserve_is_not_given_away(alice: User) -> None:
    factories.make_node("alpha", gpus=0, millicpus=2000, reserved_millicpus=1500)
    job = factories.make_job(alice, gpus=0)
    dispatch.run_pass()
    assert codes(job) == ["TOO_LARGE_CPUS"]


def test_ten_jobs_on_one_gpu_wait_and_run_in_order(alice: User) -> None:
    """codalab/codalab-worksheets#1841: a batch failed for want of room instead of waiting."""
    factories.make_node("alpha", gpus=1)
    jobs = [factories.make_job(alice) for _ in range(10)]
    order = []
    for _ in jobs:
        dispatch.run_pass()
        (run,) = Run.objects.exclude(state=RunState.ENDED)
        order.append(run.job_id)
        run.end(RunState.PLACED, EndReason.STOPPED_BY_USER, JobState.CANCELLED, now=timezone.now())
    assert order == [job.pk for job in jobs]


def test_one_reason_for_each_cause(alice: User, root_admin: User) -> None:
    """microsoft/pai#824, SDU-eScience/UCloud#2386: users could not tell why a job was waiting."""
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice), node)
    Quota.objects.create(user=alice, gpus=2)
    causes: dict[str, dict[str, Any]] = {
        "BUSY_GPUS": {}, "NO_GPU_MODEL": {"gpu_model": "NVIDIA H100"}, "QUOTA_GPUS": {"gpus": 2},
        "START_AFTER": {"start_after": timezone.now() + timedelta(hours=1)},
        "HELD_BY_USER": {"state": JobState.HELD, "held_by_user": True},
    }  # fmt: skip
    jobs = {code: factories.make_job(alice, **fields) for code, fields in causes.items()}
    dispatch.run_pass()
    for code, job in jobs.items():
        assert code in codes(job)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"cordoned": True}, "NODES_CORDONED"), ({"last_seen": None}, "NODES_SILENT"),
     ({"engine_error": "gone"}, "ENGINE"), ({"gpu_status": "driver_mismatch"}, "DRIVER")],
)  # fmt: skip
def test_a_closed_host_is_named_and_taken_again_once_open(change: dict[str, Any], code: str, alice: User) -> None:
    node = factories.make_node("alpha")
    before = {field: getattr(node, field) for field in change}
    type(node).objects.update(**change)
    job = factories.make_job(alice)
    dispatch.run_pass()
    assert code in codes(job)
    type(node).objects.update(**before)
    dispatch.run_pass()
    assert (state(job), job.wait_reasons) == ("PLACED", [])


def test_a_gpu_never_sampled_is_not_given(alice: User) -> None:
    """roscisz/TensorHive#70: decisions were made before the first sample."""
    factories.make_node("alpha", gpus=1)
    GPU.objects.update(sampled_at=None, health=GPU.Health.UNKNOWN)
    job = factories.make_job(alice)
    dispatch.run_pass()
    assert "GPU_UNSAMPLED" in codes(job)


def test_a_pause_stops_starts_and_says_so(alice: User) -> None:
    factories.make_node("alpha")
    Cluster.objects.create(pk=1, paused=True, pause_reason="moving racks")
    job = factories.make_job(alice)
    dispatch.run_pass()
    assert job.wait_reasons == [] or state(job)
    assert codes(job) == ["PAUSED"]
    assert job.wait_reasons[0]["reason"] == "moving racks"


def test_reasons_are_written_only_when_they_change(alice: User, django_assert_max_num_queries: Any) -> None:
    factories.make_node("alpha", gpus=0)
    for _ in range(30):
        factories.make_job(alice)
    dispatch.run_pass()
    with django_assert_max_num_queries(23):
        dispatch.run_pass()


def test_only_the_schedulers_turn_makes_a_pass(alice: User) -> None:
    factories.make_node("alpha")
    job = factories.make_job(alice)
    cluster = Cluster.get()
    Cluster.objects.update(scheduler_owner="other", scheduler_lease_until=timezone.now() + timedelta(seconds=30))
    assert dispatch.run_pass() is None
    assert state(job) == "QUEUED"
    Cluster.objects.filter(pk=cluster.pk).update(scheduler_lease_until=timezone.now() - timedelta(seconds=1))
    assert dispatch.run_pass() == dispatch.Result(placed=1, waiting=0), "a stuck lease runs out"


def test_the_database_itself_refuses_a_second_holder(alice: User) -> None:
    """microsoft/pai#2910: two jobs ran on one GPU."""
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice), node)
    run = Run.objects.create(job=factories.make_job(alice), node=node, number=1)
    allocation = Allocation.objects.create(
        run=run, node=node, user=alice, team=run.job.team, gpus=1, millicpus=1, memory_mib=1
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        AllocationSlot.objects.create(allocation=allocation, gpu=node.gpus.get())


def test_a_stale_plan_places_nothing(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the picture and the commit, the job was cancelled."""
    factories.make_node("alpha")
    job = factories.make_job(alice)
    real = dispatch.make_plan

    def cancel_first(picture: Any, **rest: Any) -> Any:
        control.cancel(job, alice)
        return real(picture, **rest)

    monkeypatch.setattr(dispatch, "make_plan", cancel_first)
    dispatch.run_pass()
    assert state(job) == "CANCELLED"
    assert not Run.objects.exists()
    assert not Allocation.objects.exists()


class TestControl:
    def test_a_waiting_job_is_cancelled_at_once(self, alice: User) -> None:
        job = factories.make_job(alice)
        assert control.cancel(job, alice)
        assert (state(job), job.end_reason) == ("CANCELLED", "STOPPED_BY_USER")
        assert not control.cancel(job, alice), "a second press is harmless"

    def test_an_admins_cancel_is_told_from_the_owners(self, alice: User, root_admin: User) -> None:
        job = factories.make_job(alice)
        control.cancel(job, root_admin)
        job.refresh_from_db()
        assert job.end_reason == "STOPPED_BY_ADMIN"
        assert job.events.get().actor == root_admin

    def test_a_placed_run_is_revoked_and_its_gpus_freed(self, alice: User) -> None:
        factories.make_node("alpha")
        job = factories.make_job(alice)
        dispatch.run_pass()
        assert control.cancel(job, alice)
        assert state(job) == "CANCELLED"
        assert not AllocationSlot.objects.filter(released_at=None).exists()

    def test_a_running_job_gets_a_wish_and_a_stronger_one_replaces_it(self, alice: User) -> None:
        run = factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
        assert control.wish(run, Wish.PREEMPT)
        assert control.cancel(run.job, alice)
        assert not control.wish(run, Wish.TIME_LIMIT), "a weaker wish changes nothing"
        run.refresh_from_db()
        assert (run.wish, run.wish_by) == ("CANCEL", alice)

    def test_two_holds_and_each_lifts_its_own(self, alice: User, root_admin: User) -> None:
        job = factories.make_job(alice)
        assert control.hold(job, alice)
        job.refresh_from_db()
        assert control.hold(job, root_admin)
        assert control.release(job, alice)
        assert state(job) == "HELD"
        assert not control.release(job, alice)
        assert control.release(job, root_admin)
        assert state(job) == "QUEUED"

    def test_a_held_job_does_not_start_and_keeps_its_place(self, alice: User) -> None:
        factories.make_node("alpha", gpus=1)
        first, second = factories.make_job(alice), factories.make_job(alice)
        control.hold(first, alice)
        place = Job.objects.get(pk=first.pk).queued_at
        dispatch.run_pass()
        assert (state(first), state(second)) == ("HELD", "PLACED")
        control.release(first, alice)
        first = Job.objects.get(pk=first.pk)
        assert first.queued_at == place
        assert first.released_at is not None, "so that the time of the hold lifts no class"

    def test_a_running_job_cannot_be_held(self, alice: User) -> None:
        run = factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
        assert not control.hold(run.job, alice)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    @pytest.fixture(autouse=True)
    def _as_several_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Threads stand for processes here: nothing that only one process has may help."""
        monkeypatch.setattr(dispatch, "_turn", contextlib.nullcontext())

    def test_twenty_parallel_submits_against_a_quota_of_two_never_lease_three(self, alice: User, vision: Team) -> None:
        """PostHog/posthog#60207, southampton/cortex#127: a check and a write with a gap between them."""
        factories.make_node("alpha", gpus=8)
        Quota.objects.create(user=alice, gpus=2, queued_jobs=100)
        request = JobRequest(name="race", image="busybox", script="true", gpus=1)

        def post(number: int) -> int:
            try:
                job = submit(request, owner=alice, team=vision, submission=uuid.uuid4())
                dispatch.run_pass(owner=f"scheduler {number}")
                return job.pk
            finally:
                connection.close()

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(post, range(20)))) == 20
        Cluster.objects.update(scheduler_lease_until=None)
        dispatch.run_pass()
        held = Allocation.objects.filter(released_at=None)
        assert sum(allocation.gpus for allocation in held) == 2
        waiting = Job.objects.filter(state=JobState.QUEUED)
        assert waiting.count() == 18
        assert {r["code"] for job in waiting for r in job.wait_reasons} == {"QUOTA_GPUS"}

    def test_two_schedulers_without_a_lease_give_no_gpu_twice(
        self, alice: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if the lease failed, placing compares, swaps and has a constraint: microsoft/pai#2910."""
        monkeypatch.setattr(dispatch, "_take_lease", lambda owner, now: True)
        factories.make_node("alpha", gpus=2)
        for _ in range(10):
            factories.make_job(alice)

        def one_pass(number: int) -> None:
            try:
                dispatch.run_pass(owner=str(number))
            finally:
                connection.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one_pass, range(8)))
        assert Run.objects.count() == 2
        assert AllocationSlot.objects.filter(released_at=None).values("gpu").distinct().count() == 2

    def test_parallel_submits_against_a_queue_of_three_store_three(self, alice: User, vision: Team) -> None:
        Quota.objects.create(user=alice, queued_jobs=3)
        request = JobRequest(name="race", image="busybox", script="true")

        def post(_number: int) -> str:
            try:
                submit(request, owner=alice, team=vision, submission=uuid.uuid4())
            except Refused:
                return "refused"
            finally:
                connection.close()
            return "stored"

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(post, range(10)))
        assert sorted(outcomes) == ["refused"] * 7 + ["stored"] * 3


def test_a_brief_pass_places_at_once_and_those_who_wait_are_told_soon_after(alice: User) -> None:
    factories.make_node("alpha", gpus=1)
    first, second = factories.make_job(alice, gpus=1), factories.make_job(alice, gpus=1)
    assert dispatch.run_pass(tell=False) == dispatch.Result(placed=1, waiting=1)
    assert (state(first), codes(second)) == ("PLACED", [])
    dispatch.rest(1)
    assert codes(second)[0] == "BUSY_GPUS"


def test_a_rest_ends_although_what_was_left_untold_waits_no_more(alice: User) -> None:
    factories.make_node("alpha", gpus=1)
    factories.make_job(alice, gpus=1)
    second = factories.make_job(alice, gpus=1)
    dispatch.run_pass(tell=False)
    control.cancel(second, alice)
    dispatch.rest(1)
    dispatch.rest(0)


@pytest.mark.django_db
def test_after_a_pass_in_vain_submissions_share_the_next_one_unless_a_wish_is_urgent(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are only added find no room either; a freed GPU is given again at once."""
    monkeypatch.setattr(dispatch, "FLOOD_PART", 1e-9)
    monkeypatch.setattr(dispatch, "FLOOD_BREATH", 60.0)
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice), node)
    factories.make_job(alice)
    dispatch.run_pass()
    asked = iter([False, True])
    dispatch.breathe(lambda: next(asked))
    assert next(asked, None) is None, "asked until one was urgent, and no longer"
    factories.make_gpu(node, 1)
    result = dispatch.run_pass()
    assert result is not None
    assert result.placed == 1
    dispatch.breathe(lambda: pytest.fail("a pass that placed a job leaves no time"))


@pytest.mark.django_db
def test_a_quota_set_a_moment_ago_holds_although_a_brief_pass_has_not_read_it(
    alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits may be a little old where a pass only plans: placing reads them again, under its lock."""
    settings.TERMS_REREAD = 60.0
    monkeypatch.setattr(snapshot, "_kept", snapshot._Kept())
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice), node)
    job = factories.make_job(alice)
    dispatch.run_pass(tell=False)
    Quota.objects.create(user=alice, gpus=1)
    factories.make_gpu(node, 1)
    result = dispatch.run_pass(tell=False)
    assert result is not None
    assert result.placed == 0
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    Quota.objects.all().delete()
    assert dispatch.run_pass(tell=False) == dispatch.Result(placed=1, waiting=0), "only the quota was in its way"


@pytest.mark.django_db
def test_a_waiting_job_is_made_anew_only_where_something_of_it_changed(alice: User) -> None:
    past, cluster = Past(), Cluster.get()
    still, raised, held, barred = (factories.make_job(alice, image=f"lab/{name}") for name in "abcd")

    def read() -> dict[int, Waiting]:
        return {job.id: job for job in snapshot.waiting_jobs(past, cluster, timezone.now())}

    before = read()
    Job.objects.filter(pk=raised.pk).update(priority=2)
    control.hold(held, alice)
    cluster.image_patterns = "lab/[abc]"
    after = read()
    assert after[still.pk] is before[still.pk]
    assert after[raised.pk].priority == 2
    assert (after[held.pk].held_by, after[barred.pk].held_by) == (("user",), ("image",))
    past = Past()
    anew = read()
    assert anew == after
    assert anew[still.pk] is not after[still.pk], "another past may tell another length"
