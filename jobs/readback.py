"""What a container really got, read from the host's own accounts: inspect only repeats what we asked for."""

import time
from pathlib import Path
from typing import Any

from jobs.containers import Container

TRIES, PAUSE = 200, 0.025  # seconds; a busy host may take a while
VARIABLE = "NVIDIA_VISIBLE_DEVICES"


def granted(container: Container, allotted: list[str]) -> dict[str, Any]:
    """`{verified, gpus, mismatch, why}`: the GPUs in the environment of the container's first process.

    Not verified, with the reason, when that process has ended or this host's /proc can't be read.
    """
    if not container.is_running or not container.pid:
        return {"verified": False, "why": "ENDED_FIRST", "gpus": []}
    environment = _settled_environment(container.pid)
    if environment is None:
        return {"verified": False, "why": "UNREADABLE", "gpus": []}
    value = environment.get(VARIABLE, "")
    got = [] if value in ("", "void", "none") else value.split(",")
    return {"verified": True, "gpus": got, "mismatch": sorted(got) != sorted(allotted)}


def _settled_environment(pid: int) -> dict[str, str] | None:
    """The environment of a container's first process; None when it is gone or not ours to read.

    The engine calls a container started a moment before the runtime becomes its first process.
    """
    for _attempt in range(TRIES):
        found = _environment(pid)
        if found is None or "DOCKYARD_JOB_ID" in found:
            return found
        time.sleep(PAUSE)
    return None


def _environment(pid: int) -> dict[str, str] | None:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
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
