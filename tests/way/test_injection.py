"""GPUs in containers, by each way of injection, on a real engine: exactly those that were leased, whoever asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpus.models import GPU, Node
from jobs import wording
from jobs.models import Job
from portal.busybox import busybox_tar
from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack
from tests.way.gpuhost import GpuHost, gpu_host
from tests.way.lab import Lab

GREEDY = "dockyard-test/greedy:latest"
ENV = "env | grep -i -e '^nvidia' -e '^cuda' | sort"


def gpus_of(lab: Lab, job: Job) -> list[str]:
    run = lab.run(job)
    return lab.call(lambda: run.gpu_uuids)


def gpus_there(lab: Lab, host: "GpuHost") -> list[GPU]:
    return lab.call(lambda: list(GPU.objects.filter(uuid__in=host.uuids)))


@pytest.fixture(scope="module")
def host(stack: Stack) -> Iterator[GpuHost]:
    with gpu_host(stack) as running:
        yield running


@pytest.fixture
def greedy(engine: Engine) -> str:
    """An image that wants every GPU."""
    changes = ["ENV PATH=/bin", "ENV NVIDIA_VISIBLE_DEVICES=all", "ENV NVIDIA_DRIVER_CAPABILITIES=all",
               "ENV CUDA_VISIBLE_DEVICES=0,1", "ENV nvidia_visible_devices=all"]  # fmt: skip
    with engine.client() as client:
        client.api.import_image_from_data(
            busybox_tar(), repository=GREEDY.partition(":")[0], tag="latest", changes=changes
        )
    return GREEDY


@pytest.fixture(autouse=True)
def _hook(engine: Engine) -> Iterator[None]:
    yield
    engine.hook_works()
    engine.configure()


def variables(log: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in log.decode().splitlines())


def test_two_jobs_see_exactly_the_gpu_of_each(lab: Lab, host: GpuHost) -> None:
    """codalab/codalab-worksheets#895: asked for by count, both got card 0."""
    jobs = [lab.start(f"{ENV}; exec sleep 600", gpus=1) for _ in range(2)]
    leased = [gpus_of(lab, job) for job in jobs]
    assert sorted(uuid for uuids in leased for uuid in uuids) == sorted(host.uuids)
    for job, uuids in zip(jobs, leased, strict=True):
        wait_until(lambda job=job: lab.log(job).count(b"\n") >= 3, "its environment")
        assert variables(lab.log(job)) == {
            "NVIDIA_VISIBLE_DEVICES": uuids[0], "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }  # fmt: skip
        request = lab.inspect(job)["HostConfig"]["DeviceRequests"]
        assert [(r["Count"], r["DeviceIDs"], r["Capabilities"]) for r in request] == [(0, uuids, [["gpu"]])]
        assert lab.run(job).granted == {"verified": True, "gpus": uuids, "mismatch": False}
        lab.cancel(job)
    for job in jobs:
        lab.end(job)


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_an_image_sets_never_wins(lab: Lab, host: GpuHost, greedy: str, gpus: int) -> None:
    """ytsaurus/ytsaurus#269, microsoft/pai#1667: NVIDIA_VISIBLE_DEVICES=all of an image gave every GPU of the host."""
    calls = lab.engine.hook_calls
    job = lab.end(lab.submit(ENV, image=greedy, gpus=gpus))
    seen = variables(lab.log(job))
    leased = gpus_of(lab, job)
    assert seen.pop("NVIDIA_VISIBLE_DEVICES") == (leased[0] if gpus else "void")
    assert seen == (
        {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {}
    )
    assert lab.engine.hook_calls - calls == gpus


def test_a_hook_that_fails_is_the_host_s_fault_and_leaves_nothing(lab: Lab, host: GpuHost) -> None:
    """lablup/backend.ai#1510, NVIDIA/nvidia-container-toolkit#29: tried once more; then no further job is eaten."""
    lab.engine.hook_does("echo 'nvidia-container-cli: device error: unknown device' >&2; exit 1")
    jobs = [lab.submit("true", gpus=2) for _ in range(3)]
    first = lab.end(jobs[0])
    assert (first.state, first.end_reason, first.requeues) == ("FAILED", "GPU_START_FAILED", 1)
    assert lab.call(first.runs.count) == 2
    assert "unknown device" in lab.run(first).engine_message
    wait_until(lambda: all(gpu.quarantine_reason for gpu in gpus_there(lab, host)), "both GPUs are quarantined")
    wait_until(lambda: {r["code"] for r in lab.fresh(jobs[2]).wait_reasons} >= {"GPU_QUARANTINED"}, "the reason")
    assert lab.held_slots() == 0
    assert lab.containers() == []
    lab.engine.hook_works()
    lab.call(lambda: GPU.objects.update(quarantine_reason=""))
    assert [lab.end(job).state for job in jobs[1:]] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_hook_that_fails_once_costs_only_time(lab: Lab, host: GpuHost) -> None:
    """epam/cloud-pipeline#828: without a persistence daemon the first start times out."""
    lab.engine.hook_does('[ -e "$0.once" ] || { touch "$0.once"; echo "driver rpc error: timed out" >&2; exit 1; }')
    job = lab.end(lab.submit("echo second try", gpus=1))
    assert (job.state, job.requeues, lab.log(job)) == ("SUCCEEDED", 1, b"second try\n")
    Path(f"{lab.engine.hook}.once").unlink()


def waits_for_engine(lab: Lab, job: Job) -> str:
    """The sentence of the reason ENGINE, once the job waits for that."""
    found = [reason for reason in lab.fresh(job).wait_reasons if reason["code"] == "ENGINE"]
    return wording.wait_reason(found[0]) if found else ""


# From here on the node is restarted with other ways of injection; the module's end brings the usual one back.


def test_an_engine_too_old_for_cdi_gets_no_job_and_says_why(lab: Lab, host: GpuHost) -> None:
    host.restart("cdi")
    job = lab.submit("true", gpus=1)
    sentence = wait_until(lambda: waits_for_engine(lab, job), "the reason")
    assert "GPU_INJECTION=cdi needs Docker 25 or newer" in sentence
    lab.cancel(job)


def test_a_job_sent_before_the_host_knew_that_its_engine_is_too_old_waits_again(lab: Lab, host: GpuHost) -> None:
    """NVIDIA/nvidia-container-toolkit#150: what an operator set wrong is no failure of the job, whose try it costs."""
    host.restart("cdi")
    job = lab.submit("true", gpus=1)

    def is_sent() -> bool:
        if lab.call(job.runs.exists):
            return True
        lab.call(lambda: Node.objects.update(engine_error=""))
        return False

    wait_until(is_sent, "a run")
    wait_until(lambda: waits_for_engine(lab, job), "the reason")
    run = lab.run(job)
    assert (run.number, run.end_reason) == (1, "GPU_START_FAILED")
    assert "could not select device driver" in run.engine_message
    lab.cancel(job)


def test_the_nvidia_runtime_is_asked_for_where_it_is_the_way(
    lab: Lab, host: GpuHost, greedy: str, tmp_path: Path
) -> None:
    """Rootless and older hosts: the runtime reads the variable, so that it must be ours for every job."""
    host.restart("runtime")
    waiting = lab.submit(ENV, image=greedy, gpus=1)
    wait_until(lambda: "nvidia-ctk" in waits_for_engine(lab, waiting), "the reason of this restart")
    runtime = tmp_path / "nvidia-runtime"
    runtime.write_text('#!/bin/sh\nexec runc "$@"\n')
    runtime.chmod(0o755)
    lab.engine.configure(runtimes={"nvidia": {"path": str(runtime)}})
    assert variables(lab.log(lab.end(waiting)))["NVIDIA_VISIBLE_DEVICES"] in host.uuids
    job = lab.start(f"{ENV}; exec sleep 600", image=greedy, gpus=2)
    assert lab.inspect(job)["HostConfig"]["Runtime"] == "nvidia"
    assert lab.run(job).granted == {"verified": True, "gpus": host.uuids, "mismatch": False}
    lab.cancel(job)
    lab.end(job)
    without = lab.end(lab.submit(ENV, image=greedy))
    assert variables(lab.log(without)) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert lab.run(without).facts["runtime"] != "nvidia"
