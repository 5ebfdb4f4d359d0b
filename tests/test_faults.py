"""Hardware that fails jobs: charged with it, kept from others, and the job tried once more elsewhere."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpus.models import GPU, HostEvent, Node
from jobs import blame, dispatch, hostfacts, lastwords, wording
from jobs.finish import end_without_container
from jobs.models import Job, Run
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db
UNKNOWN_DEVICE = "running hook: nvidia-container-cli: device error: unknown device"
SLOW = "running hook: nvidia-container-cli: initialization error: driver rpc error: timed out"


def placed(job: Job) -> Run:
    """The run that a pass has made of the job, which its node has begun to start."""
    dispatch.run_pass()
    run = Run.objects.select_related("job", "node").get(job=job, state=RunState.PLACED)
    run.advance(RunState.PLACED, RunState.STARTING, starting_at=timezone.now())
    return run


def fails_to_start(job: Job, reason: EndReason, words: str) -> Run:
    run = placed(job)
    assert end_without_container(run, reason, words)
    job.refresh_from_db()
    return run


def quarantined() -> dict[str, str]:
    return dict(GPU.objects.exclude(quarantine_reason="").values_list("uuid", "quarantine_reason"))


def test_a_gpu_that_is_not_handed_over_is_quarantined_and_its_job_starts_on_another(alice: User) -> None:
    """NVIDIA/nvidia-container-toolkit#29, #108: charged to the GPU and not to the user, twice at most."""
    node = factories.make_node(gpus=3)
    job = factories.make_job(alice)
    first = fails_to_start(job, EndReason.GPU_START_FAILED, UNKNOWN_DEVICE)
    assert job.state == JobState.QUEUED
    assert quarantined() == {first.gpu_uuids[0]: f"job {job.pk} could not be started on it"}
    event = HostEvent.objects.get(node=node, kind="GPU_QUARANTINED")
    assert f"job {job.pk} could not be started" in wording.host_event(event)
    second = fails_to_start(job, EndReason.GPU_START_FAILED, UNKNOWN_DEVICE)
    assert second.gpu_uuids != first.gpu_uuids
    assert (job.state, job.end_reason, job.runs.count()) == ("FAILED", "GPU_START_FAILED", 2)
    assert placed(factories.make_job(alice)).gpu_uuids[0] not in quarantined()


def test_of_several_gpus_the_one_that_the_engine_names_is_quarantined(alice: User) -> None:
    factories.make_node(gpus=4)
    run = placed(factories.make_job(alice, gpus=2))
    assert end_without_container(run, EndReason.GPU_START_FAILED, f"{UNKNOWN_DEVICE}: {run.gpu_uuids[1]}")
    assert list(quarantined()) == [run.gpu_uuids[1]]


def test_a_start_that_was_slow_costs_no_gpu_until_it_happens_three_times_in_a_row(alice: User) -> None:
    """epam/cloud-pipeline#828: without a persistence daemon the first start times out."""
    factories.make_node(gpus=1)
    job = factories.make_job(alice)
    for state in (JobState.QUEUED, JobState.FAILED):
        fails_to_start(job, EndReason.GPU_START_FAILED, SLOW)
        assert (job.state, quarantined()) == (state, {})
    fails_to_start(factories.make_job(alice), EndReason.GPU_START_FAILED, SLOW)
    assert len(quarantined()) == 1


@pytest.mark.parametrize("gpus", [1, 0])
def test_a_job_for_whose_start_a_disk_had_no_room_goes_to_another_host(alice: User, gpus: int) -> None:
    """The full host would have been chosen again: it is the emptier one of two that are packed."""
    factories.make_node("alpha", gpus=1)
    factories.make_node("beta", gpus=4)
    job = factories.make_job(alice, gpus=gpus)
    assert fails_to_start(job, EndReason.DISK_FULL, "no space left on device").node.name == "alpha"
    assert job.state == JobState.QUEUED
    assert placed(job).node.name == "beta"


def test_a_job_that_a_driver_s_mismatch_kept_from_starting_goes_to_another_host(alice: User) -> None:
    """pando85/homelab#4110: another GPU of the same host would have failed it too, and for good."""
    factories.make_node("alpha", gpus=2)
    factories.make_node("beta", gpus=8)
    job = factories.make_job(alice)
    words = "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"
    assert fails_to_start(job, EndReason.GPU_START_FAILED, words).node.name == "alpha"
    assert quarantined() == {}
    assert placed(job).node.name == "beta"


def test_where_there_is_no_other_hardware_the_same_is_tried_again(alice: User) -> None:
    factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice)
    fails_to_start(job, EndReason.DISK_FULL, "no space left on device")
    assert placed(job).node.name == "alpha"


def test_a_host_without_room_on_a_disk_takes_no_job_and_says_so(alice: User) -> None:
    """A full disk fails every start, and every log."""
    disk = {"what": ["engine"], "path": "/var/lib/docker", "free_mib": 100, "total_mib": 100000}
    node = factories.make_node("alpha", facts={"disks": [disk]})
    job = factories.make_job(alice)
    dispatch.run_pass()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    said = [wording.wait_reason(reason) for reason in job.wait_reasons]
    assert "alpha takes no jobs: less than 512 MiB are free on the disk of /var/lib/docker." in said
    Node.objects.filter(pk=node.pk).update(facts={"disks": [{**disk, "free_mib": 90000}]})
    assert placed(job).node.name == "alpha"


def test_a_host_with_a_full_disk_looks_at_it_more_often_than_at_one_with_room(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Jobs wait for what somebody deletes."""
    settings.NODE_NAME = factories.make_node("alpha").name
    looks: list[str] = []
    monkeypatch.setattr(hostfacts, "tell", lambda: looks.append("look"))
    for free in (90000, 100, 90000):
        Node.objects.update(facts={"disks": [{"free_mib": 90000}, {"free_mib": free}]})
        hostfacts.look_at_full_disks()
    assert len(looks) == 1


@pytest.mark.parametrize(("between", "broken"), [(None, True), (EndReason.COMPLETED, False)])
def test_a_gpu_on_which_three_jobs_in_a_row_met_a_fault_takes_no_more(
    alice: User, between: EndReason | None, broken: bool
) -> None:
    """NVIDIA/k8s-device-plugin#267, MFlowCode/MFC#1748: a broken GPU is always free, and so swallows every job."""
    node = factories.make_node(gpus=1)
    for reason in (EndReason.GPU_FAULT, EndReason.GPU_FAULT, between, EndReason.GPU_FAULT):
        if reason is not None:
            run = factories.make_run(factories.make_job(alice), node)
            run.end(RunState.RUNNING, reason, JobState.FAILED, now=timezone.now())
            blame.charge(run, reason, "")
    assert bool(quarantined()) is broken


def test_a_program_that_ran_for_long_had_a_gpu_to_work_on(alice: User) -> None:
    node = factories.make_node(gpus=1)
    for _ in range(3):
        run = factories.make_run(factories.make_job(alice), node)
        run.end(RunState.RUNNING, EndReason.GPU_FAULT, JobState.FAILED, now=timezone.now() + timedelta(hours=1))
        blame.charge(run, EndReason.GPU_FAULT, "")
    assert quarantined() == {}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", EndReason.GPU_FAULT),
        ("CUDA-capable device(s) is/are busy or unavailable", EndReason.GPU_FAULT),
        ("RuntimeError: CUDA unknown error - this may be due to", EndReason.GPU_FAULT),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None),
        ("RuntimeError: CUDA error: device-side assert triggered", None),
    ],
)
def test_a_fault_of_the_hardware_is_told_from_one_of_the_program(said: str, reason: EndReason | None) -> None:
    """Azure/azurehpc#648: only what tells of hardware counts."""
    found = lastwords.read(f"epoch 1\n{said}\n".encode(), 1, has_gpus=True)
    assert (found and found[0]) is reason
    assert lastwords.read(f"{said}\n".encode(), 1, has_gpus=False) is None


def test_whatever_characters_a_program_s_last_words_have_its_end_frees_its_gpus(alice: User) -> None:
    node = factories.make_node(gpus=1)
    job = factories.make_job(alice)
    said = lastwords.read(b"sh: 1: a\x00b: not found\n", 127, has_gpus=True)
    assert said is not None
    run = fails_to_start(job, said[0], f"{said[1]} \udcff")
    run.refresh_from_db()
    assert (run.end_reason, run.engine_message) == ("COMMAND_NOT_FOUND", "sh: 1: a\ufffdb: not found \ufffd")
    assert len(factories.free_gpus(node)) == 1


@pytest.mark.parametrize(("fields", "hint"), [({}, True), ({"preemptible": True}, False), ({"movable": True}, False)])
def test_who_lost_a_program_to_its_host_hears_how_it_would_be_tried_again(
    alice: User, fields: dict[str, bool], hint: bool
) -> None:
    """clearml/clearml#311: a host's reboot looked like a failure of the user's program."""
    run = factories.make_run(factories.make_job(alice, **fields), factories.make_node())
    run.end(RunState.RUNNING, EndReason.HOST_REBOOT, JobState.FAILED, now=timezone.now())
    said = str(wording.suggestion(run.job, run))
    assert said.startswith("Resubmit it.")
    assert bool(re.search("tried once more by itself", said)) is hint
