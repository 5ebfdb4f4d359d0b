"""What a node tells of its host: its engine, and whether jobs can start there; system, toolkit, disks, its clock."""

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from django.conf import settings

from gpus.models import Node
from jobs import containers, firewall, hostevents
from jobs.plain import storable
from portal.doctor.stores import redis_skew

Facts = dict[str, Any]


def tell() -> None:
    """Write this host's facts down, see `Node.facts`. May raise EngineUnavailable: then they stay as they were."""
    Node.objects.filter(name=settings.NODE_NAME).update(facts=gather(containers.engine().root_dir))


def look_at_full_disks() -> None:
    """Tell anew while a disk is said to be full: jobs wait for room on it. May raise EngineUnavailable."""
    if Node.objects.get(name=settings.NODE_NAME).full_disk() is not None:
        tell()


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


def look_at_engine() -> None:
    """Write what the engine says of itself; what keeps jobs from starting here goes in `engine_error`."""
    facts: Facts = {"engine_error": ""}
    try:
        engine = containers.engine()
        facts = {
            "engine_id": engine.id, "engine_version": engine.version, "millicpus": engine.cpus * 1000,
            "memory_mib": engine.memory_mib, "engine_error": _unfit(engine),
        }  # fmt: skip
        firewall.ensure(*firewall.policy())
    except containers.EngineUnavailable as error:
        facts["engine_error"] = f"the Docker engine does not answer: {error}"
    except (containers.EngineRefused, firewall.NotProtected) as error:
        facts["engine_error"] = f"the job network is not protected: {error}"
    _tell_of_engine(facts)


def tell_if_unfit() -> None:
    """Write that no job can start here, if the engine can't do what settings ask. May raise EngineUnavailable."""
    if error := _unfit(containers.engine()):
        _tell_of_engine({"engine_error": error})


def _tell_of_engine(facts: Facts) -> None:
    facts["engine_error"] = storable(facts["engine_error"])
    node = Node.objects.get(name=settings.NODE_NAME)
    Node.objects.filter(pk=node.pk).update(**facts)
    if bool(facts["engine_error"]) != bool(node.engine_error):
        kind = "ENGINE_FAILED" if facts["engine_error"] else "ENGINE_WORKS"
        hostevents.note(node, kind, message=facts["engine_error"][:300])


def _unfit(engine: containers.Engine) -> str:
    """Why this engine can't do what the settings ask, as a sentence; empty when it can."""
    if settings.GPU_INJECTION == "cdi" and not engine.has_cdi:
        return f"GPU_INJECTION=cdi needs Docker 25 or newer, and this is {engine.version}: use toolkit or runtime"
    if settings.GPU_INJECTION == "runtime" and "nvidia" not in engine.runtimes:
        return "GPU_INJECTION=runtime needs the runtime nvidia in daemon.json: run nvidia-ctk runtime configure"
    return ""
