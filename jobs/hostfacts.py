"""What a node tells of its host for the hosts page: system, toolkit, disks, and how far its clock is off."""

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from django.conf import settings

from gpus.models import Node
from jobs import containers
from portal.doctor.stores import redis_skew

Facts = dict[str, Any]


def tell() -> None:
    """Write this host's facts down, see `Node.facts`. May raise EngineUnavailable: then they stay as they were."""
    Node.objects.filter(name=settings.NODE_NAME).update(facts=gather(containers.engine().root_dir))


def gather(engine_root: str) -> Facts:
    skew = redis_skew()
    return {
        "system": _system(), "kernel": platform.release(), "toolkit": _toolkit(),
        "clock_skew": None if skew is None else round(skew, 3), "disks": _disks(engine_root),
    }  # fmt: skip


def _system() -> str:
    try:
        return str(platform.freedesktop_os_release().get("PRETTY_NAME", ""))
    except OSError:
        return ""


def _toolkit() -> str:
    """The version of the NVIDIA container toolkit; empty where there is none."""
    tool = shutil.which("nvidia-ctk") or shutil.which("nvidia-container-cli")
    if tool is None:
        return ""
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (said.strip().splitlines() or [""])[0].rpartition(" ")[2][:64]


def _disks(engine_root: str) -> list[Facts]:
    """Free and whole size of each disk that jobs fill: one line a disk, with all that lies on it."""
    places = {"engine": Path(engine_root), "spool": settings.SPOOL_DIR, "workspaces": Path(settings.WORKSPACE_ROOT)}
    disks: dict[int, Facts] = {}
    for what, path in places.items():
        there = next((p for p in (path, *path.parents) if p.exists()), None)
        if there is None or not engine_root:
            continue
        usage = shutil.disk_usage(there)
        disk = disks.setdefault(there.stat().st_dev, {
            "what": [], "path": str(path), "free_mib": usage.free >> 20, "total_mib": usage.total >> 20,
        })  # fmt: skip
        disk["what"].append(what)
    return list(disks.values())
