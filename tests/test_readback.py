"""Which GPUs a container's first process has, by its environment and, where CDI overwrote that, by its device nodes."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs import readback
from jobs.containers import Container

HOST = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}  # UUID: minor number


def _container(pid: int) -> Container:
    return Container(
        id="c", name="c", labels={}, status="running", pid=pid, exit_code=None, oom_killed=False, error="",
        started_at=None, finished_at=None,
    )  # fmt: skip


def _granted(proc: Path, value: str, nodes: list[str], allotted: list[str]) -> dict[str, Any]:
    """What is read back of process 7 with this value and these device nodes, on a host with three GPUs."""
    for uuid, minor in HOST.items():
        folder = proc / f"driver/nvidia/gpus/0000:0{minor + 1}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    (proc / "7/root/dev").mkdir(parents=True)
    for name in nodes:
        (proc / "7/root/dev" / name).touch()
    (proc / "7/environ").write_bytes(f"DOCKYARD_JOB_ID=1\0NVIDIA_VISIBLE_DEVICES={value}\0".encode())
    return readback.granted(_container(7), allotted, proc)


def test_what_a_cdi_specification_puts_in_place_of_our_value_is_no_mismatch() -> None:
    environment = {"DOCKYARD_JOB_ID": "1", "NVIDIA_VISIBLE_DEVICES": "void"}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment) as process:
        try:
            found = readback.granted(_container(process.pid), ["GPU-of-no-host"])
        finally:
            process.kill()
    assert found == {"verified": False, "why": "UNREADABLE", "gpus": []}


@pytest.mark.parametrize(
    ("value", "nodes", "allotted", "expected"),
    [
        ("void", ["nvidia2", "nvidiactl", "nvidia0", "nvidia-uvm"], ["GPU-a", "GPU-c"],
         {"verified": True, "gpus": ["GPU-a", "GPU-c"], "mismatch": False}),
        ("void", ["nvidia0", "nvidia1"], ["GPU-a"], {"verified": True, "gpus": ["GPU-a", "GPU-b"], "mismatch": True}),
        ("void", ["nvidia0", "nvidia7"], ["GPU-a"],
         {"verified": True, "gpus": ["GPU-a", "/dev/nvidia7"], "mismatch": True}),
        ("void", [], ["GPU-a"], {"verified": True, "gpus": [], "mismatch": True}),
        ("void", ["nvidia0"], ["MIG-x"], {"verified": False, "why": "UNREADABLE", "gpus": []}),
        ("void", [], [], {"verified": True, "gpus": [], "mismatch": False}),
        ("GPU-b", ["nvidia0"], ["GPU-a"], {"verified": True, "gpus": ["GPU-b"], "mismatch": True}),
        ("", ["nvidia0"], ["GPU-a"], {"verified": True, "gpus": [], "mismatch": True}),
    ],
    ids=["just its own", "one more", "one that the driver does not list", "none of its own", "a MIG instance",
         "of a job without GPUs", "another by name", "no value at all"],
)  # fmt: skip
def test_by_device_nodes_where_the_environment_names_no_gpu(
    value: str, nodes: list[str], allotted: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    assert _granted(tmp_path, value, nodes, allotted) == expected
