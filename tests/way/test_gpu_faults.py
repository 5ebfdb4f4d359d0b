"""GPUs that go wrong under jobs: lost, used by others, behind a driver that hangs or does not match its library."""

import os
from collections.abc import Iterator

import pytest

from gpus.models import GPU, Node
from jobs import wording
from jobs.models import Job
from jobs.status import status
from tests.rigs.nvml import GPU_IS_LOST, MIB, MISMATCH
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack
from tests.way.gpuhost import GpuHost, gpu_host
from tests.way.lab import Lab

UNTIL_TOLD = "echo up; while [ ! -e end ]; do sleep 0.1; done; echo through; exit $(cat end)"


@pytest.fixture(scope="module")
def host(stack: Stack) -> Iterator[GpuHost]:
    with gpu_host(stack) as running:
        yield running


@pytest.fixture(autouse=True)
def _healthy(host: GpuHost) -> Iterator[None]:
    """Whatever a test did to the driver is undone."""
    before = dict(host.nvml.answers)
    yield
    host.nvml.answers = before
    host.nvml.set()
    host.wait_healthy()


def tell(lab: Lab, job: Job, code: int) -> None:
    """Let a job that runs UNTIL_TOLD end with this exit code."""
    folder = lab.folder(job)
    (folder / "new").write_text(f"{code}\n")
    (folder / "new").rename(folder / "end")


def warnings(lab: Lab, job: Job, code: str) -> list[dict[str, str]]:
    return [warning for warning in lab.run(job).warnings if warning["code"] == code]


def reasons(lab: Lab, job: Job) -> dict[str, str]:
    """Why it waits: the sentences by code."""
    return {reason["code"]: wording.wait_reason(reason) for reason in lab.fresh(job).wait_reasons}


def test_a_gpu_that_falls_off_the_bus_warns_its_job_and_takes_no_other(lab: Lab, host: GpuHost) -> None:
    """XuehaiPan/nvitop#139, rossumai/nvgpu#6: the monitor died of it, and nobody was told."""
    job = lab.start(UNTIL_TOLD, gpus=2)
    host.nvml.set_gpu(0, memory_rc=GPU_IS_LOST)
    wait_until(lambda: host.gpu(0).health == GPU.Health.LOST, "it is called lost")
    wait_until(lambda: warnings(lab, job, "GPU_LOST"), "its job is warned")
    assert warnings(lab, job, "GPU_LOST") == [{"code": "GPU_LOST", "uuid": host.uuids[0]}]
    said = lab.call(lambda: status(Job.objects.get(pk=job.pk), lab.user)["warnings"])
    assert any("has been lost" in sentence for sentence in said)
    assert lab.call(lambda: job.events.filter(kind="WARNED", params__code="GPU_LOST").count()) == 1
    assert lab.fresh(job).state == "RUNNING", "nobody stops it"
    assert host.gpu(1).health == GPU.Health.OK
    tell(lab, job, 1)
    ended = lab.end(job)
    assert (ended.state, ended.end_reason, ended.exit_code) == ("FAILED", "GPU_LOST", 1)
    small, large = lab.submit("echo $NVIDIA_VISIBLE_DEVICES", gpus=1), lab.submit("true", gpus=2)
    assert lab.log(lab.end(small)).decode().strip() == host.uuids[1]
    wait_until(lambda: "GPU_UNHEALTHY" in reasons(lab, large), "the reason")
    host.nvml.set_gpu(0, memory_rc=None)
    assert lab.end(large).state == "SUCCEEDED"


def test_a_job_that_survives_the_loss_of_its_gpu_has_succeeded(lab: Lab, host: GpuHost) -> None:
    job = lab.start(UNTIL_TOLD, gpus=2)
    host.nvml.set_gpu(1, memory_rc=GPU_IS_LOST)
    wait_until(lambda: warnings(lab, job, "GPU_LOST"), "its job is warned")
    tell(lab, job, 0)
    assert lab.end(job).state == "SUCCEEDED"


def test_a_gpu_that_somebody_uses_from_outside_is_given_to_nobody(lab: Lab, host: GpuHost) -> None:
    """clearml/clearml-agent#71, roscisz/TensorHive#208."""
    host.nvml.set_gpu(0, used=9216 * MIB, Compute=f"{os.getpid()}:{9000 * MIB}")
    wait_until(lambda: host.gpu(0).busy_outside_since, "it is seen")
    one, two = lab.submit("echo $NVIDIA_VISIBLE_DEVICES", gpus=1), lab.submit("true", gpus=2)
    assert lab.log(lab.end(one)).decode().strip() == host.uuids[1]
    wait_until(lambda: "GPU_BUSY_OUTSIDE" in reasons(lab, two), "the reason")
    sentence = reasons(lab, two)["GPU_BUSY_OUTSIDE"]
    assert "root" in sentence
    assert str(os.getpid()) in sentence
    host.nvml.set_gpu(0, used=3 * MIB, Compute=None)
    assert lab.end(two).state == "SUCCEEDED"


def test_an_outsider_on_a_job_s_gpu_is_warned_of_and_nobody_is_killed(lab: Lab, host: GpuHost) -> None:
    job = lab.start(UNTIL_TOLD, gpus=2)
    host.nvml.set_gpu(1, used=9216 * MIB, Compute=f"{os.getpid()}:{9000 * MIB}")
    wait_until(lambda: warnings(lab, job, "OUTSIDER"), "its job is warned")
    (found,) = warnings(lab, job, "OUTSIDER")
    assert (found["uuid"], found["by"]) == (host.uuids[1], f"root ({os.getpid()})")
    tell(lab, job, 0)
    assert lab.end(job).state == "SUCCEEDED"
    assert len(warnings(lab, job, "OUTSIDER")) == 1


def test_a_job_s_own_processes_are_no_outsiders(lab: Lab, host: GpuHost) -> None:
    """NVIDIA/nvidia-docker#1483: the driver reports the host's process ids."""
    job = lab.start(UNTIL_TOLD, gpus=2)
    pid = lab.inspect(job)["State"]["Pid"]
    for index in (0, 1):
        host.nvml.set_gpu(index, used=9216 * MIB, Compute=f"{pid}:{9000 * MIB}")
    seen = host.gpu(0).sampled_at
    wait_until(lambda: host.gpu(0).sampled_at > seen, "another sample")
    assert host.gpu(0).busy_outside_since is None
    tell(lab, job, 0)
    lab.end(job)
    host.nvml.set_gpu(0, used=3 * MIB, Compute=None)
    host.nvml.set_gpu(1, used=3 * MIB, Compute=None)
    assert warnings(lab, job, "OUTSIDER") == []


def test_a_driver_that_does_not_match_closes_the_host_and_touches_no_job(lab: Lab, host: GpuHost) -> None:
    """pando85/homelab#4110, NVIDIA/nvidia-docker#1451: after nightly updates every start failed, hundreds of times."""
    job = lab.start(UNTIL_TOLD, gpus=1)
    host.nvml.set(init_rc=MISMATCH)
    host.load_library_anew()
    wait_until(lambda: host.row().gpu_status == Node.GpuStatus.DRIVER_MISMATCH, "it is noticed")
    waiting = lab.submit("true", gpus=1)
    sentence = wait_until(lambda: reasons(lab, waiting).get("DRIVER"), "the reason")
    assert "reboot" in sentence
    assert lab.fresh(waiting).state == "QUEUED"
    tell(lab, job, 4)
    ended = lab.end(job)
    assert (ended.end_reason, ended.exit_code, lab.log(job)) == ("EXIT_CODE", 4, b"up\nthrough\n")
    host.nvml.set(init_rc=None)
    host.load_library_anew()
    assert lab.end(waiting).state == "SUCCEEDED"


def test_a_library_that_hangs_stops_telemetry_and_nothing_else(lab: Lab, host: GpuHost) -> None:
    """leptonai/gpud#117, NVIDIA/go-nvml#152."""
    job = lab.start(UNTIL_TOLD, gpus=1)
    host.nvml.set_gpu(0, utilisation_hang=1)
    wait_until(lambda: host.row().gpu_status == Node.GpuStatus.HUNG, "it is noticed")
    waiting = lab.submit("true", gpus=1)
    wait_until(lambda: "DRIVER" in reasons(lab, waiting), "the reason")
    wait_until(lambda: host.row().is_alive(), "a sign of life")
    assert len(host.samplers()) <= 1, "they don't pile up"
    tell(lab, job, 4)
    ended = lab.end(job)
    assert (ended.end_reason, ended.exit_code, lab.log(job)) == ("EXIT_CODE", 4, b"up\nthrough\n")
    host.nvml.set_gpu(0, utilisation_hang=None)
    host.load_library_anew()
    assert lab.end(waiting).state == "SUCCEEDED"
