"""Whose processes are on a GPU, and who counts as somebody from outside."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpus.attribute import Rules, attribute, unexplained_mib
from gpus.claims import Claim
from gpus.readings import GpuReading, HostReading, Process, decode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS, THEIRS = "a" * 64, "b" * 64
RULES = Rules(
    system_processes=frozenset({"Xorg", "nvidia-cuda-mps-control"}), memory_floor_mib=512, grace=10
)  # fmt: skip


def claim(gpu: str = "GPU-0", container: str = OURS, job: int = 7, ended: datetime | None = None) -> Claim:
    return Claim(gpu_uuid=gpu, container_id=container, job=job, run=job * 10, owner="alice", ended=ended)


def host(*processes: Process, used: int | None = 100, others: tuple[GpuReading, ...] = ()) -> HostReading:
    gpu = GpuReading(uuid="GPU-0", index=0, memory_mib=40960, memory_used_mib=used, processes=processes)
    return HostReading(node="alpha", at=NOW.timestamp(), status="ok", gpus=(gpu, *others))


def judge(reading: HostReading, *claims: Claim) -> GpuReading:
    return attribute(reading, claims, RULES).gpus[0]


IN_OUR_CONTAINER = Process(pid=1, memory_mib=90, container=OURS, user="20001", name="python3")
OF_BOB = Process(pid=2, memory_mib=90, user="bob", name="python3")
IN_A_STRANGE_CONTAINER = Process(pid=3, memory_mib=90, container=THEIRS, user="root", name="python3")
OF_THE_SYSTEM = Process(pid=4, memory_mib=90, user="root", name="Xorg")
LONG_NAMED = Process(pid=5, memory_mib=90, user="root", name="nvidia-cuda-mps")  # as the kernel cuts it
NOT_TO_BE_FOUND = Process(pid=6, memory_mib=90)


@pytest.mark.parametrize(
    ("process", "claims", "kind", "outside", "reason"),
    [
        (IN_OUR_CONTAINER, [claim()], "job", False, "its container is that of the claim"),
        (IN_OUR_CONTAINER, [], "foreign", True, "no claim: a container like any other"),
        (IN_OUR_CONTAINER, [claim("GPU-1")], "foreign", True, "a job's process on a GPU that is not the job's"),
        (IN_OUR_CONTAINER, [claim(ended=NOW - timedelta(seconds=9))], "job", False, "ended less than the grace ago"),
        (IN_OUR_CONTAINER, [claim(ended=NOW - timedelta(seconds=11))], "foreign", True, "ended, and still there"),
        (OF_BOB, [], "foreign", True, "a process of the host on a free GPU"),
        (OF_BOB, [claim()], "foreign", True, "a process of the host beside a job"),
        (IN_A_STRANGE_CONTAINER, [claim()], "foreign", True, "another engine user's container"),
        (OF_THE_SYSTEM, [], "system", False, "on the list"),
        (LONG_NAMED, [], "system", False, "the kernel keeps fifteen characters of a name"),
        (NOT_TO_BE_FOUND, [claim()], "unknown", False, "not to be attributed, and the claim explains it"),
        (NOT_TO_BE_FOUND, [claim(container="")], "unknown", False, "the claim's container is not made yet"),
        (NOT_TO_BE_FOUND, [], "foreign", True, "whoever it is, it is not ours"),
    ],
)
def test_kinds_of_processes(process: Process, claims: list[Claim], kind: str, outside: bool, reason: str) -> None:
    """NVIDIA/nvidia-docker#1483, tkestack/gpu-manager#60, clearml/clearml-agent#71, roscisz/TensorHive#208."""
    gpu = judge(host(process), *claims)
    assert (gpu.processes[0].kind, gpu.busy_outside) == (kind, outside), reason


def test_without_the_hosts_process_ids_our_own_job_is_no_intruder() -> None:
    """NVIDIA/nvidia-docker#1483: seen from inside a container, a host pid may even name somebody else's container."""
    mistaken = Process(pid=8, memory_mib=90, container=THEIRS)  # no user: not looked up with certainty
    gpu = judge(host(mistaken), claim())
    assert (gpu.processes[0].kind, gpu.busy_outside) == ("unknown", False)


def test_a_job_on_a_gpu_that_is_not_its_own_is_named() -> None:
    [process] = judge(host(IN_OUR_CONTAINER), claim("GPU-1", job=9)).processes
    assert (process.kind, process.job, process.owner) == ("foreign", 9, "alice")


def test_the_gpu_names_its_live_job_and_owner() -> None:
    gone, live = claim(job=3, ended=NOW), claim(job=4)
    gpu = judge(host(), gone, live)
    assert (gpu.job, gpu.owner) == (4, "alice")
    assert judge(host(), gone).job is None


@pytest.mark.parametrize(
    ("used", "processes", "claims", "outside", "reason"),
    [
        (8192, [], [], True, "memory that nobody listed holds"),
        (512, [], [], False, "the floor itself is allowed"),
        (513, [], [], True, "above the floor"),
        (8192, [], [claim()], False, "a job may use what it likes"),
        (8192, [], [claim(ended=NOW - timedelta(seconds=2))], False, "the driver is still cleaning up after a job"),
        (8192, [], [claim(ended=NOW - timedelta(seconds=60))], True, "it should have been cleaned up"),
        (700, [Process(pid=4, memory_mib=600, user="root", name="Xorg")], [], False, "the desktop's own memory"),
        (8192, [OF_THE_SYSTEM], [], True, "more than the desktop holds"),
        (8192, [Process(pid=4, user="root", name="Xorg")], [], False, "process memory not available"),
        (None, [], [], False, "unified memory is nobody's"),
    ],
)
def test_memory_without_a_process(
    used: int | None, processes: list[Process], claims: list[Claim], outside: bool, reason: str
) -> None:
    """microsoft/pai#3372, #3375, NVIDIA/k8s-device-plugin#12, Syllo/nvtop#432."""
    assert judge(host(*processes, used=used), *claims).busy_outside is outside, reason


containers = st.sampled_from([None, OURS, THEIRS, "c" * 64])
processes_ = st.builds(
    Process, pid=st.integers(1, 99), memory_mib=st.none() | st.integers(0, 9000), container=containers,
    user=st.sampled_from([None, "root", "bob"]), name=st.sampled_from([None, "Xorg", "python3"]),
)  # fmt: skip
claims_ = st.builds(
    claim, gpu=st.sampled_from(["", "GPU-0", "GPU-1"]), container=st.sampled_from(["", OURS, THEIRS]),
    ended=st.none() | st.sampled_from([NOW, NOW - timedelta(seconds=60)]),
)  # fmt: skip


@given(st.lists(processes_, max_size=5), st.none() | st.integers(0, 40960), st.lists(claims_, max_size=4))
def test_judging_invents_and_loses_nothing(processes: list[Process], used: int | None, claims: list[Claim]) -> None:
    reading = host(*processes, used=used)
    gpu = judge(reading, *claims)
    assert [process.pid for process in gpu.processes] == [process.pid for process in processes]
    assert (gpu.uuid, gpu.memory_used_mib) == ("GPU-0", used)
    if any(process.kind == "foreign" for process in gpu.processes):
        assert gpu.busy_outside
    held = any(c.gpu_uuid == "GPU-0" and c.ended is None for c in claims)
    assert (gpu.job is not None) == held
    for process in gpu.processes:
        if process.kind == "job":
            assert any(c.container_id == process.container and c.gpu_uuid == "GPU-0" for c in claims)


@given(st.none() | st.integers(0, 40960), st.lists(processes_, max_size=5))
def test_unexplained_memory_is_never_below_nought_nor_above_what_is_used(
    used: int | None, processes: list[Process]
) -> None:
    assert 0 <= unexplained_mib(used, processes) <= (used or 0)


@given(st.lists(processes_, max_size=3), st.none() | st.integers(0, 40960), st.text(max_size=20))
def test_json_and_back(processes: list[Process], used: int | None, message: str) -> None:
    from dataclasses import replace

    reading = replace(host(*processes, used=used), message=message)
    assert decode(reading.encode()) == reading
    assert "\n" not in reading.encode()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"gpus": 3}', "nonsense", '{"gpus": [{}], "containers": []}']
)
def test_what_is_no_reading_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_a_shared_gpu_tells_all_the_jobs_it_is_given_to() -> None:
    gpu = judge(host(), claim(job=9), claim(job=7), claim(job=5, ended=NOW - timedelta(seconds=1)))
    assert (gpu.job, gpu.jobs) == (7, (7, 9))
    read = decode(HostReading(node="alpha", at=NOW.timestamp(), status="ok", gpus=(gpu,)).encode())
    assert read.gpus == (gpu,)
