"""Looks at everything that Dockyard stands on, on this host, and says what to mend. Changes nothing."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import redis
from django.conf import settings
from django.core import checks
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import containers, firewall
from portal import live

Verdict = Literal["ok", "warn", "fail"]
GIB = 1 << 30
LEAST_FREE = 10 * GIB
MOST_SKEW = 2.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at: what was seen, and the remedy unless all is well."""

    name: str
    verdict: Verdict
    seen: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them."""
    for probe in (_settings, _database, _redis, _engine, _injection, _nvml, _storage, _disk, _clock, _network):
        yield from probe()


def _ok(name: str, seen: str) -> Finding:
    return Finding(name=name, verdict="ok", seen=seen)


def _settings() -> Iterator[Finding]:
    """Our own system checks, also those of deployment and database."""
    found = checks.run_checks(include_deployment_checks=True, databases=["default"])
    ours = [message for message in found if str(message.id).startswith(("dockyard.", "gpus.", "jobs."))]
    for message in ours:
        verdict: Verdict = "fail" if message.level >= checks.ERROR else "warn"
        seen = f"{message.id}: {message.msg}"
        yield Finding(name=_("Settings"), verdict=verdict, seen=seen, remedy=message.hint or "")
    if not ours:
        yield _ok(_("Settings"), _("every system check passes"))


def _database() -> Iterator[Finding]:
    name = _("Database")
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        remedy = _("Start it, or correct DATABASE_URL.")
        yield Finding(name=name, verdict="fail", seen=_first_line(error), remedy=remedy)
        return
    if plan:
        seen = _("%(count)d migrations are not applied") % {"count": len(plan)}
        yield Finding(name=name, verdict="fail", seen=seen, remedy="python manage.py prepare")
    else:
        yield _ok(name, f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}")


def _redis() -> Iterator[Finding]:
    name = "Redis"
    try:
        info = live.connection().info("server") | live.connection().info("persistence")
    except redis.RedisError as error:
        remedy = _("Start redis-server, or correct REDIS_URL.")
        yield Finding(name=name, verdict="fail", seen=_first_line(error), remedy=remedy)
        return
    yield _ok(name, str(info.get("redis_version") or info.get("valkey_version")))
    if not info.get("aof_enabled"):
        remedy = _('Set "appendonly yes" in redis.conf; without it a restart delays queued starts by seconds.')
        yield Finding(name=name, verdict="warn", seen=_("no append-only file"), remedy=remedy)


def _engine() -> Iterator[Finding]:
    name = _("Docker engine")
    try:
        engine = containers.engine()
    except containers.EngineUnavailable as error:
        remedy = _("Start Docker (systemctl start docker), or correct DOCKER_HOST: %(host)s")
        remedy %= {"host": settings.DOCKER_HOST}
        yield Finding(name=name, verdict="fail", seen=_first_line(error), remedy=remedy)
        return
    yield _ok(name, _("version %(version)s at %(host)s") % {"version": engine.version, "host": settings.DOCKER_HOST})
    seen = _("cgroup driver %(driver)s") % {"driver": engine.cgroup_driver or "?"}
    if engine.cgroup_driver == "systemd" and settings.GPU_INJECTION == "toolkit":
        remedy = _("With the systemd driver, a reload of units can take GPUs away from running containers: set "
                   '"exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json, or use CDI.')  # fmt: skip
        yield Finding(name=name, verdict="warn", seen=seen, remedy=remedy)
    else:
        yield _ok(name, seen)
    for warning in engine.warnings:
        remedy = _("See the engine's documentation on this limit.")
        yield Finding(name=name, verdict="warn", seen=warning, remedy=remedy)


def _injection() -> Iterator[Finding]:
    """How GPUs get into containers."""
    name = _("GPUs in containers")
    if settings.GPU_INJECTION == "none":
        yield _ok(name, _("none are given (GPU_INJECTION=none)"))
        return
    yield from _toolkit(name)
    try:
        engine = containers.engine()
    except containers.EngineUnavailable:
        return
    if settings.GPU_INJECTION == "cdi":
        yield from _cdi(name, engine)
    elif settings.GPU_INJECTION == "runtime" and "nvidia" not in engine.runtimes:
        remedy = "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
        seen = _("daemon.json has no runtime named nvidia")
        yield Finding(name=name, verdict="fail", seen=seen, remedy=remedy)


def _toolkit(name: str) -> Iterator[Finding]:
    tool = shutil.which("nvidia-ctk") or shutil.which("nvidia-container-cli")
    hook = shutil.which("nvidia-container-runtime-hook")
    if tool is None and hook is None:
        remedy = _("Install the package nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker "
                   "&& systemctl restart docker")  # fmt: skip
        yield Finding(name=name, verdict="fail", seen=_("the NVIDIA container toolkit is not installed"), remedy=remedy)
        return
    yield _ok(name, _first_line(_said([tool, "--version"]) if tool else hook or ""))


def _cdi(name: str, engine: containers.Engine) -> Iterator[Finding]:
    if not engine.has_cdi:
        seen = _("this engine has no CDI (version %(version)s)") % {"version": engine.version}
        remedy = _("Use Docker 28.3 or newer, or GPU_INJECTION=toolkit.")
        yield Finding(name=name, verdict="fail", seen=seen, remedy=remedy)
    elif not any(Path(folder).glob("*") for folder in ("/etc/cdi", "/var/run/cdi") if Path(folder).is_dir()):
        remedy = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        yield Finding(name=name, verdict="fail", seen=_("no CDI specification in /etc/cdi"), remedy=remedy)
    else:
        yield _ok(name, _("CDI specifications are there"))


REMEDIES = {
    "no_library": gettext_lazy("Install the NVIDIA driver."),
    "no_driver": gettext_lazy("Load the driver: modprobe nvidia, or reboot."),
    "no_gpu": gettext_lazy("Check that the GPU shows up in lspci."),
    "driver_mismatch": gettext_lazy("Reboot: the driver was updated while it was loaded."),
}
_READ = "import sys; from gpus import nvml; r = nvml.read_host('doctor'); print(r.status, len(r.gpus), r.message)"


def _nvml() -> Iterator[Finding]:
    """In a process of its own, with a limit: the library may hang."""
    name = "NVML"
    if settings.GPU_DRIVER == "simulated":
        yield Finding(name=name, verdict="warn", seen=_("simulated GPUs"), remedy=_("Remove GPU_DRIVER for real ones."))
        return
    said = _said([sys.executable, "-c", _READ], seconds=30)
    status, _space, rest = said.partition(" ")
    count, _space, message = rest.partition(" ")
    if status == "ok":
        yield _ok(name, _("%(count)s GPUs") % {"count": count})
    else:
        remedy = str(REMEDIES.get(status, "nvidia-smi"))
        yield Finding(name=name, verdict="fail", seen=message.strip() or said[:200], remedy=remedy)


def _storage() -> Iterator[Finding]:
    name = _("Storage")
    for folder in (settings.DATA_DIR, settings.SPOOL_DIR, settings.WORKSPACE_ROOT):
        path = next(p for p in (Path(folder), *Path(folder).parents) if p.exists())
        if not os.access(path, os.W_OK):
            seen = _("%(path)s cannot be written") % {"path": folder}
            yield Finding(name=name, verdict="fail", seen=seen, remedy=f"chown {os.geteuid()} {path}")
            return
    try:
        store = storages["logs"]
        store.delete(store.save(f"doctor-{uuid.uuid4().hex}", ContentFile(b"x")))
    except Exception as error:  # noqa: BLE001 - any storage backend, any error
        yield Finding(name=name, verdict="fail", seen=_first_line(error), remedy=_("Correct STORAGES or its rights."))
        return
    yield _ok(name, _("logs, spool and workspaces can be written"))


def _disk() -> Iterator[Finding]:
    name = _("Disk")
    places = {str(settings.DATA_DIR): shutil.disk_usage(settings.DATA_DIR)}
    try:
        root = containers.engine().root_dir
        if Path(root).is_dir():
            places[root] = shutil.disk_usage(root)
    except containers.EngineUnavailable:
        pass
    for place, usage in places.items():
        seen = _("%(free)d GiB of %(total)d GiB free at %(place)s") % {
            "free": usage.free // GIB, "total": usage.total // GIB, "place": place
        }  # fmt: skip
        if usage.free < LEAST_FREE:
            yield Finding(name=name, verdict="warn", seen=seen, remedy=_("Delete what is not needed, or add space."))
        else:
            yield _ok(name, seen)


def _clock() -> Iterator[Finding]:
    """Against Redis, which all hosts share."""
    try:
        seconds, micros = live.connection().time()
    except redis.RedisError:
        seen, remedy = _("unknown: it is compared with that of Redis, which does not answer"), _("Mend Redis first.")
        yield Finding(name=_("Clock"), verdict="warn", seen=seen, remedy=remedy)
        return
    skew = time.time() - (seconds + micros / 1e6)
    seen = _("%(skew).1f s from that of Redis") % {"skew": abs(skew)}
    if abs(skew) > MOST_SKEW:
        remedy = _("Keep the clocks of all hosts together: apt-get install chrony")
        yield Finding(name=_("Clock"), verdict="fail", seen=seen, remedy=remedy)
    else:
        yield _ok(_("Clock"), seen)


def _network() -> Iterator[Finding]:
    name = _("Job network")
    if settings.JOB_NETWORK == "none":
        yield _ok(name, _("jobs have no network (JOB_NETWORK=none)"))
    elif shutil.which("iptables") is None:
        yield Finding(name=name, verdict="fail", seen=_("iptables is not installed"), remedy="apt-get install iptables")
    elif os.geteuid() != 0:
        seen = _("its rules can only be read by root")
        yield Finding(name=name, verdict="warn", seen=seen, remedy="sudo python manage.py doctor")
    elif _rules_are_there():
        yield _ok(name, _("jobs cannot reach this host (bridge %(bridge)s)") % {"bridge": firewall.BRIDGE})
    else:
        remedy = _("Nothing to do: the node sets them when it starts.")
        yield Finding(name=name, verdict="warn", seen=_("its rules are not set yet"), remedy=remedy)


def _rules_are_there() -> bool:
    rule = ["iptables", "-w", "5", "-C", "INPUT", "-i", firewall.BRIDGE, "-j", "DROP"]
    return subprocess.run(rule, capture_output=True, timeout=30, check=False).returncode == 0


def _said(command: list[str], seconds: float = 10) -> str:
    """What a program prints; its last error, or the reason why it printed nothing."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=settings.BASE_DIR
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _("no answer in %(seconds)d s") % {"seconds": seconds}
    except OSError as error:
        return str(error)
    return (done.stdout or done.stderr).strip() or "?"


def _first_line(said: object) -> str:
    return next(iter(str(said).strip().splitlines()), "?")[:200]
