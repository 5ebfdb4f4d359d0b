"""What a container really got, read from the host's own accounts: inspect only repeats what we asked for."""

import re
import time
from pathlib import Path
from typing import Any

from jobs.containers import Container

TRIES, PAUSE = 200, 0.025  # seconds; a busy host may take a while
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
# What CDI specifications of nvidia-ctk set in place of our value, so that no runtime adds GPUs beside those of the
# specification (NVIDIA/nvidia-container-toolkit#395): it names none, and says nothing of those that are there.
UNNAMED = "void"
PROC = Path("/proc")
_NODE = re.compile(r"nvidia(\d+)")  # below /dev, by the GPU's minor number
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)


def granted(container: Container, allotted: list[str], proc: Path = PROC) -> dict[str, Any]:
    """`{verified, gpus, mismatch, why}`: the GPUs of the container's first process, by its environment.

    Where that was overwritten by CDI, by its device nodes. Not verified, with the reason, when that process has ended
    or this host's /proc can't be read or does not tell.
    """
    if not container.is_running or not container.pid:
        return {"verified": False, "why": "ENDED_FIRST", "gpus": []}
    environment = _settled_environment(proc / str(container.pid))
    if environment is None:
        return {"verified": False, "why": "UNREADABLE", "gpus": []}
    value = environment.get(VARIABLE, "")
    got: list[str] | None = [] if value in ("", UNNAMED, "none") else value.split(",")
    if allotted and value == UNNAMED:
        got = _by_nodes(proc, container.pid, allotted)
    if got is None:
        return {"verified": False, "why": "UNREADABLE", "gpus": []}
    return {"verified": True, "gpus": got, "mismatch": sorted(got) != sorted(allotted)}


def _by_nodes(proc: Path, pid: int, allotted: list[str]) -> list[str] | None:
    """The GPUs whose device nodes are in the container; None when that, or whose those allotted are, can't be told."""
    try:
        there = [path.name for path in (proc / f"{pid}/root/dev").iterdir()]
    except OSError:
        return None
    minors = _minors(proc)
    if not minors.keys() >= set(allotted):  # a MIG instance, or a driver that shows none of its GPUs here
        return None
    uuids = {minor: uuid for uuid, minor in minors.items()}
    nodes = sorted(int(match[1]) for match in map(_NODE.fullmatch, there) if match)
    return [uuids.get(minor, f"/dev/nvidia{minor}") for minor in nodes]


def _minors(proc: Path) -> dict[str, int]:
    """UUID → minor number of this host's GPUs, as the driver lists them."""
    found = {}
    for path in proc.glob("driver/nvidia/gpus/*/information"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if (uuid := _UUID.search(text)) and (minor := _MINOR.search(text)):
            found[uuid[1]] = int(minor[1])
    return found


def _settled_environment(process: Path) -> dict[str, str] | None:
    """The environment of a container's first process; None when it is gone or not ours to read.

    The engine calls a container started a moment before the runtime becomes its first process.
    """
    for _attempt in range(TRIES):
        found = _environment(process)
        if found is None or "DOCKYARD_JOB_ID" in found:
            return found
        time.sleep(PAUSE)
    return None


def _environment(process: Path) -> dict[str, str] | None:
    try:
        raw = (process / "environ").read_bytes()
    except OSError:
        return None
    rows = (row.partition(b"=") for row in raw.split(b"\0") if row)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in rows}


def facts(container: Container) -> dict[str, Any]:
    """The container as the engine has it, for the job page."""
    host = container.host_config
    return {
        "image_id": container.image_id,
        "container_name": container.name,
        "memory_bytes": host.get("Memory"),
        "nano_cpus": host.get("NanoCpus"),
        "shm_bytes": host.get("ShmSize"),
        "pids_limit": host.get("PidsLimit"),
        "network": host.get("NetworkMode"),
        "user": container.config.get("User"),
        "cap_drop": host.get("CapDrop"),
        "security": host.get("SecurityOpt"),
        "binds": [bind.split(":", 1)[1] for bind in host.get("Binds") or ()],
        "device_requests": host.get("DeviceRequests") or [],
        "runtime": host.get("Runtime"),
    }
