"""Shares of a GPU and MIG instances, as they are given and charged."""

import pytest
from django.utils import timezone

from jobs import dispatch, snapshot, wording
from jobs.models import AllocationSlot, Cluster, Job, Quota, Run
from jobs.policy import Placement
from portal.models import User
from tests import factories
from tests.rigs.verbs import rules, wishes

pytestmark = pytest.mark.django_db


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
    assert dispatch._commit(placement, snapshot.waiting(share)) is None, "the transaction looks again"


def test_a_share_that_would_be_charged_above_the_quota_waits(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    factories.make_node("alpha", gpus=2).gpus.update(slots=2)
    jobs = [factories.make_job(alice, gpu_milli=milli) for milli in (600, 300)]
    dispatch.run_pass()
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["PLACED", "QUEUED"]


def test_no_run_is_stopped_for_a_share_on_a_gpu_that_is_not_cut(alice: User, bob: User) -> None:
    """All of a GPU in two slots is charged for it, but no GPU in one will do."""
    node = factories.make_node("alpha", gpus=2)
    node.gpus.filter(index=0).update(slots=2)
    cut, whole = node.gpus.order_by("index")
    rules()
    own = factories.make_team("own", guaranteed_gpus=2)
    carol = factories.make_user("carol", teams=(own,))
    factories.make_run(factories.make_job(carol, own), node, gpus=(cut,))
    borrowed = factories.make_run(factories.make_job(bob), node, gpus=(whole,))
    share = factories.make_job(carol, own, gpu_milli=600)
    dispatch.run_pass()
    share.refresh_from_db()
    assert (wishes(borrowed), share.wait_reasons[0]["code"]) == ([""], "BUSY_GPUS")


def test_a_mig_instance_goes_to_who_asks_for_its_profile(alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_gpu(node, 1, uuid="MIG-1", profile="1g.10gb", memory_mib=10240)
    part, whole, none = (factories.make_job(alice, gpu_profile=name) for name in ("1g.10gb", "", "3g.40gb"))
    dispatch.run_pass()
    assert [run.gpu_uuids for run in (part.runs.get(), whole.runs.get())] == [["MIG-1"], ["GPU-alpha-0000"]]
    assert none.runs.count() == 0
