"""From a process id to its container, user and program, and what a container uses, on both cgroup versions."""

import os
from pathlib import Path

import pytest

from gpus.cgroups import CgroupTree, ContainerUse, ProcessTable, cpu_percent, rate
from gpus.inventory import Inventory
from gpus.models import GPU
from gpus.readings import MIB, GpuReading, HostReading, Process
from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until

ID = "0123456789abcdef" * 4
OUTER = "f" * 64


@pytest.mark.parametrize(
    ("text", "container", "reason"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", ID, "v2, systemd"),
        (f"0::/docker/{ID}\n", ID, "v2, cgroupfs"),
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n", ID, "v1, cgroupfs"),
        (f"5:cpu,cpuacct:/system.slice/docker-{ID}.scope\n", ID, "v1, systemd"),
        (f"9:pids:/\n4:memory:/docker/{ID}\n", ID, "v1, one controller at the root"),
        (f"0::/docker/{OUTER}/docker/{ID}\n", ID, "an engine in a container: the inner one"),
        (f"0::/../{ID}\n", ID, "seen from a sibling's cgroup namespace"),
        (f"0::/kubepods/burstable/pod1/{ID}\n", ID, "another manager's container is a container"),
        (f"0::/docker/{ID}/init\n", ID, "a cgroup inside the container"),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None, "a person's log-in"),
        (f"0::/x/{ID}ab\n", None, "too long for an id"),
        ("0::/\n", None, "the root"),
        ("", None, "gone"),
    ],
)
def test_container_of(tmp_path: Path, text: str, container: str | None, reason: str) -> None:
    """NVIDIA/nvidia-docker#1483, NVIDIA/gpu-monitoring-tools#63, tkestack/gpu-manager#60."""
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(text)
    assert ProcessTable(tmp_path, host_pids=True).container_of(42) == container, reason


def test_without_the_hosts_process_ids_nobody_is_named(tmp_path: Path) -> None:
    """NVIDIA/nvidia-docker#1483: pid 42 there is another process than pid 42 here."""
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/docker/{ID}\n")
    (folder / "status").write_text("Name:\tinnocent\nUid:\t0\t0\t0\t0\n")
    found = ProcessTable(tmp_path).identify(Process(pid=42))
    assert found == Process(pid=42, container=ID)
    found = ProcessTable(tmp_path, host_pids=True).identify(Process(pid=42))
    assert found == Process(pid=42, container=ID, user="root", name="innocent")


def test_a_user_without_a_name_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "status").write_text("Name:\tpython3\nUid:\t4100123\t4100123\t4100123\t4100123\n")
    assert ProcessTable(tmp_path, host_pids=True).identify(Process(pid=42)).user == "4100123"


def test_a_process_that_has_gone_is_unknown() -> None:
    assert ProcessTable(host_pids=True).identify(Process(pid=2**22 + 1, memory_mib=5)) == Process(
        pid=2**22 + 1, memory_mib=5
    )


def test_a_process_with_a_made_up_name_is_known_by_its_program() -> None:
    table = ProcessTable(host_pids=True)
    before = Path("/proc/self/comm").read_text()
    Path("/proc/self/comm").write_text("Xorg")
    try:
        found = table.identify(Process(pid=os.getpid()))
    finally:
        Path("/proc/self/comm").write_text(before)
    assert found.name == os.path.basename(os.readlink("/proc/self/exe"))


@pytest.mark.django_db
def test_a_program_whose_name_is_in_no_encoding_keeps_nobody_from_seeing_the_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "status").write_text("Name:\ttrain\nUid:\t0\t0\t0\t0\n")
    os.symlink(b"/opt/train\xff (deleted)", os.fsencode(folder / "exe"))
    found = ProcessTable(tmp_path, host_pids=True).identify(Process(pid=42, kind="foreign"))
    gpu = GpuReading(uuid="GPU-0", index=0, busy_outside=True, processes=(found,))
    Inventory("alpha").update(HostReading(node="alpha", at=1, status="ok", gpus=(gpu,)))
    assert GPU.objects.get().outsiders[0]["name"] == found.name == "train\ufffd"


def v1_tree(root: Path, place: str) -> None:
    for controller in ("memory", "cpuacct"):
        (root / controller / place).mkdir(parents=True)
    (root / "memory" / place / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (root / "memory" / place / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {100 * MIB}\n")
    (root / "cpuacct" / place / "cpuacct.usage").write_text("2500000000\n")
    (root / "memory" / place / "cgroup.procs").write_text("4242\n4243\n")
    (root / "blkio" / place).mkdir(parents=True)
    (root / "blkio" / place / "blkio.throttle.io_service_bytes").write_text(
        "8:0 Read 1048576\n8:0 Write 4096\n8:0 Total 1052672\n8:16 Read 1024\n8:16 Write 0\nTotal 1053696\n"
    )


def v2_tree(root: Path, place: str) -> None:
    (root / place).mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / place / "memory.current").write_text(f"{300 * MIB}\n")
    (root / place / "memory.stat").write_text(f"anon 1\ninactive_file {100 * MIB}\n")
    (root / place / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (root / place / "cgroup.procs").write_text("4242\n4243\n")
    (root / place / "io.stat").write_text("8:0 rbytes=1048576 wbytes=4096 rios=9\n8:16 rbytes=1024 wbytes=0 rios=1\n")


PLACES = [f"docker/{ID}", f"system.slice/docker-{ID}.scope", f"jobs.slice/jobs-gpu.slice/docker-{ID}.scope"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("tree", [v1_tree, v2_tree])
def test_use_of_a_container(tmp_path: Path, tree: object, place: str) -> None:
    tree(tmp_path, place)  # type: ignore[operator]
    use = CgroupTree(tmp_path).use(ID)
    assert use is not None
    assert (use.cpu_seconds, use.memory_mib) == (2.5, 200)
    assert (use.read_kib, use.written_kib) == (1025, 4)


@pytest.mark.parametrize("tree", [v1_tree, v2_tree])
def test_network_of_a_container_is_that_of_its_first_process(tmp_path: Path, tree: object) -> None:
    tree(tmp_path / "cgroup", f"docker/{ID}")  # type: ignore[operator]
    cgroups = CgroupTree(tmp_path / "cgroup", tmp_path / "proc")
    assert cgroups.use(ID).received_kib is None, "its process can't be seen from here"  # type: ignore[union-attr]
    (tmp_path / "proc" / "4242" / "net").mkdir(parents=True)
    head, nought = "Inter-|   Receive\n face |bytes packets\n", " 0" * 7
    lo, eth = f"    lo: 9999{nought} 9999{nought}\n", f"  eth0:2048{nought} 1024{nought}\n"
    (tmp_path / "proc" / "4242" / "net" / "dev").write_text(head + lo + eth)
    use = cgroups.use(ID)
    assert use is not None
    assert (use.received_kib, use.sent_kib) == (2, 1)


def test_rates_are_of_what_both_readings_have() -> None:
    before, after = ContainerUse(1.0, None, 10.0, read_kib=100), ContainerUse(1.0, None, 12.0, read_kib=400, sent_kib=5)
    assert rate(before, after, "read_kib") == 150
    unknown = rate(before, after, "sent_kib"), rate(None, after, "read_kib"), rate(after, before, "read_kib")
    assert unknown == (None, None, None)


def test_a_container_that_is_not_here_uses_nothing_known(tmp_path: Path) -> None:
    v2_tree(tmp_path, f"docker/{ID}")
    tree = CgroupTree(tmp_path)
    assert tree.use(OUTER) is None
    assert tree.use(ID) is not None
    for file in (tmp_path / "docker" / ID).iterdir():
        file.unlink()
    assert tree.use(ID) is None


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        (ContainerUse(1.0, None, 10.0), ContainerUse(2.5, None, 11.0), 150.0),
        (ContainerUse(1.0, None, 10.0), ContainerUse(1.0, None, 12.0), 0.0),
        (None, ContainerUse(1.0, None, 12.0), None),
        (ContainerUse(None, 3, 10.0), ContainerUse(1.0, None, 12.0), None),
        (ContainerUse(5.0, None, 10.0), ContainerUse(1.0, None, 12.0), None),
        (ContainerUse(1.0, None, 10.0), ContainerUse(2.0, None, 10.0), None),
    ],
)
def test_cpu_percent(before: ContainerUse | None, after: ContainerUse, percent: float | None) -> None:
    assert cpu_percent(before, after) == percent


def _worked_since(before: ContainerUse, now: ContainerUse | None) -> ContainerUse | None:
    return now if now and (cpu_percent(before, now) or 0) > 0 else None


def test_a_real_container_is_found_by_its_process_and_measured(engine: Engine) -> None:
    """NVIDIA/nvidia-docker#1483: what NVML reports is the host's number of the container's first process."""
    command = ["sh", "-c", "while :; do :; done"]
    with engine.client() as client:
        container = client.containers.run("dockyard-test/busybox:latest", command, detach=True, network_mode="none")
        container.reload()
    assert container.id is not None
    process = ProcessTable(host_pids=True).identify(Process(pid=container.attrs["State"]["Pid"], memory_mib=1))
    assert process.container == container.id
    assert process.user == "root"
    tree = CgroupTree()
    before = tree.use(container.id)
    assert before is not None
    after = wait_until(lambda: _worked_since(before, tree.use(str(container.id))), "its CPU")
    assert after.memory_mib is not None
    assert (after.read_kib, after.received_kib) != (None, None), "of this host's kernel, as of made-up files"
    assert after.sent_kib == 0, "it has no network but its own loopback"
