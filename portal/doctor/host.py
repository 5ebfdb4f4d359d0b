"""What a GPU host stands on besides: engine, toolkit, driver, the jobs' network. Never imported by web processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError
from django.utils.translation import gettext_noop as _

from jobs import containers, firewall, unknown
from jobs.plain import first_line
from portal.doctor.finding import Finding, Role, Said, fail, ok, output, program, said, warn, words
from portal.doctor.stores import disk_at

DAEMON_JSON = Path("/etc/docker/daemon.json")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CONFIGURE = "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
OLDEST_API = (1, 41)
CONTAINED = "DOCKYARD_IMAGE" in os.environ  # set by our image: what is installed in it is not what the host has
NVIDIA_MAJOR = 195  # of the driver's character devices


def _engine() -> containers.Engine | None:
    try:
        return containers.engine()
    except (containers.EngineUnavailable, containers.EngineRefused):
        return None


def engine(role: Role) -> Iterator[Finding]:
    name = said(_("Docker engine"))
    try:
        found = containers.engine()
    except (containers.EngineUnavailable, containers.EngineRefused) as error:
        advice = said(
            _("Start Docker (systemctl start docker), or correct DOCKER_HOST: %(host)s"), host=settings.DOCKER_HOST
        )
        yield fail(name, words(first_line(error)), advice)
        return
    seen = said(_("version %(version)s at %(host)s"), version=found.version, host=settings.DOCKER_HOST)
    if found.api_version < OLDEST_API:
        yield fail(name, seen, said(_("Use Docker 20.10 or newer.")))
    else:
        yield ok(name, seen)
    yield from _cgroup_driver(name, found)
    for warning in found.warnings:
        yield warn(name, words(warning), said(_("See the engine's documentation on this limit.")))
    if Path(found.root_dir).is_dir():
        yield disk_at(Path(found.root_dir))


def _cgroup_driver(name: Said, found: containers.Engine) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#48: systemd forgets devices that it finds no link for when units are reloaded."""
    seen = said(_("cgroup driver %(driver)s"), driver=found.cgroup_driver or "?")
    trap = found.cgroup_driver == "systemd" and settings.GPU_INJECTION in ("toolkit", "runtime")
    if trap and not any(Path("/dev/char").glob(f"{NVIDIA_MAJOR}:*")):
        advice = said(
            _("With the systemd driver, a reload of units can take GPUs away from running containers: set "
              '"exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json, or use CDI.')
        )  # fmt: skip
        yield warn(name, seen, advice, fix="dev_char" if program("nvidia-ctk") else "")
    else:
        yield ok(name, seen)


def limits(role: Role) -> Iterator[Finding]:
    """Whether jobs could fill a disk with what nobody measures."""
    name = said(_("What jobs write"))
    own = said(_("Set it; or keep workspaces on a file system with quotas of its own, and set it above those."))
    if not settings.WORKSPACE_BYTES:
        yield warn(name, said(_("WORKSPACE_BYTES is 0: a user's jobs may fill the disk of workspaces")), own)
    if not settings.SCRATCH_BYTES:
        yield warn(name, said(_("SCRATCH_BYTES is 0: a container may fill the engine's disk")), said(_("Set it.")))
    found = _engine()
    if found is not None:
        yield from layers(name, found)


def layers(name: Said, found: containers.Engine) -> Iterator[Finding]:
    """What containers write beside their mounts, which is measured in a folder of the engine's own."""
    if found.layers_in_containerd:
        seen = said(
            _("containerd keeps the images here: SCRATCH_BYTES holds as the engine counts, SCRATCH_FILES does not")
        )
        advice = said(_('Set "features": {"containerd-snapshotter": false} in /etc/docker/daemon.json.'))
        yield warn(name, seen, advice)


def daemon_json(role: Role) -> Iterator[Finding]:
    """What the engine is configured to do, where that file is of this host's engine."""
    name = words("daemon.json")
    if not settings.DOCKER_HOST.startswith("unix://") or not DAEMON_JSON.exists():
        return
    try:
        config = json.loads(DAEMON_JSON.read_text() or "{}")
    except (OSError, ValueError) as error:
        yield fail(name, words(first_line(error)), said(_("Correct %(path)s: it is no JSON."), path=str(DAEMON_JSON)))
        return
    yield from _runtime_in(name, config)
    if not config.get("live-restore"):
        advice = said(_('Add "live-restore": true, so that jobs outlive a restart of the engine.'))
        yield warn(name, said(_("live-restore is off")), advice)


def _runtime_in(name: Said, config: dict[str, Any]) -> Iterator[Finding]:
    path = config.get("runtimes", {}).get("nvidia", {}).get("path")
    if path and not program(str(path)):
        seen = said(_("the runtime nvidia is %(path)s, which is not there"), path=str(path))
        yield fail(name, seen, said(_("Install the package nvidia-container-toolkit.")))


def injection(role: Role) -> Iterator[Finding]:
    """How GPUs get into containers."""
    name, way = said(_("GPUs in containers")), settings.GPU_INJECTION
    if way == "none":
        yield ok(name, said(_("none are given (GPU_INJECTION=none)")))
        return
    if not CONTAINED:
        yield from _toolkit(name)
    found = _engine()
    if found is None:
        return
    if way == "cdi":
        yield from _cdi(name, found)
    elif "nvidia" not in found.runtimes:
        report = fail if way == "runtime" else warn
        fix = "runtime" if program("nvidia-ctk") else ""
        yield report(name, said(_("daemon.json has no runtime named nvidia")), words(CONFIGURE), fix=fix)


def _toolkit(name: Said) -> Iterator[Finding]:
    tool = program("nvidia-ctk") or program("nvidia-container-cli")
    hook = program("nvidia-container-runtime-hook")
    if tool is None and hook is None:
        advice = said(
            _("Install the package nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker "
              "&& systemctl restart docker")
        )  # fmt: skip
        yield fail(name, said(_("the NVIDIA container toolkit is not installed")), advice)
        return
    yield ok(name, words(first_line(output([tool, "--version"]) if tool else hook)))


def _cdi(name: Said, found: containers.Engine) -> Iterator[Finding]:
    if not found.has_cdi:
        seen = said(_("this engine has no CDI (version %(version)s)"), version=found.version)
        yield fail(name, seen, said(_("Use Docker 28.3 or newer, or GPU_INJECTION=toolkit.")))
    elif not CONTAINED and not any(folder.is_dir() and any(folder.iterdir()) for folder in CDI_FOLDERS):
        fix = "cdi" if program("nvidia-ctk") else ""
        yield fail(name, said(_("no CDI specification in /etc/cdi")), words(GENERATE), fix=fix)
    else:
        yield ok(name, said(_("CDI specifications are there")))


REMEDIES = {
    "no_library": said(_("Install the NVIDIA driver.")),
    "no_driver": said(_("Load the driver: modprobe nvidia, or reboot.")),
    "no_gpu": said(_("Check that the GPU shows up in lspci.")),
    "driver_mismatch": said(_("Reboot: the driver was updated while it was loaded.")),
}
_READ = "import sys; from gpus import nvml; r = nvml.read_host('doctor'); print(r.status, len(r.gpus), r.message)"


def driver(role: Role) -> Iterator[Finding]:
    """The kernel's side: is the driver loaded, and are its devices there?"""
    if settings.GPU_DRIVER == "simulated":
        return
    name, loaded = said(_("NVIDIA driver")), Path("/proc/driver/nvidia/version")
    if not loaded.exists():
        nouveau = Path("/sys/module/nouveau").exists()
        seen = said(_("nouveau is loaded in its place")) if nouveau else said(_("it is not loaded"))
        advice = said(_("Blacklist nouveau, and reboot.")) if nouveau else REMEDIES["no_driver"]
        yield fail(name, seen, advice)
        return
    yield ok(name, words(first_line(loaded.read_text())))
    missing = [device for device in ("/dev/nvidiactl", "/dev/nvidia-uvm") if not Path(device).exists()]
    if missing:
        yield fail(name, said(_("%(path)s is missing"), path=", ".join(missing)), words("nvidia-modprobe -u -c=0"))


def nvml(role: Role) -> Iterator[Finding]:
    """In a process of its own, with a limit: the library may hang."""
    name = words("NVML")
    if settings.GPU_DRIVER == "simulated":
        yield warn(name, said(_("simulated GPUs")), said(_("Remove GPU_DRIVER for real ones.")))
        return
    told = output([sys.executable, "-c", _READ], seconds=30)
    status, _space, rest = told.partition(" ")
    count, _space, message = rest.partition(" ")
    if status == "ok":
        yield ok(name, said(_("%(count)s GPUs"), count=count))
    else:
        yield fail(name, words(message.strip() or told[:200]), REMEDIES.get(status, words("nvidia-smi")))


def nvml_as_sampled(role: Role) -> Iterator[Finding]:
    """The same from the node's own row, which its sampler keeps."""
    try:
        row = apps.get_model("gpus", "Node").objects.filter(name=settings.NODE_NAME).first()
    except DatabaseError:
        return
    if row is not None and row.gpu_status not in ("ok", "simulated", "unknown"):
        seen = words(row.gpu_message or row.gpu_status)
        yield fail(words("NVML"), seen, REMEDIES.get(row.gpu_status, words("nvidia-smi")))


def network(role: Role) -> Iterator[Finding]:
    name = said(_("Job network"))
    if settings.JOB_NETWORK == "none":
        yield ok(name, said(_("jobs have no network (JOB_NETWORK=none)")))
    elif program("iptables") is None:
        yield fail(name, said(_("iptables is not installed")), words("apt-get install iptables"))
    elif os.geteuid() != 0:
        seen = said(_("its rules can only be read by root"))
        yield warn(name, seen, words("sudo python manage.py doctor"))
    elif _rules_are_there():
        yield ok(name, said(_("jobs cannot reach this host (bridge %(bridge)s)"), bridge=firewall.BRIDGE))
    else:
        seen = said(_("its rules are not set yet"))
        yield warn(name, seen, said(_("Nothing to do: the node sets them when it starts.")))


def _rules_are_there() -> bool:
    rule = [program("iptables") or "iptables", "-w", "5", "-C", "INPUT", "-i", firewall.BRIDGE, "-j", "DROP"]
    return subprocess.run(rule, capture_output=True, timeout=30, check=False).returncode == 0


def strays(role: Role) -> Iterator[Finding]:
    """Containers of this installation that its database does not know, see `jobs.unknown`."""
    try:
        found = unknown.unknown(containers.ours())
    except (containers.EngineUnavailable, containers.EngineRefused, DatabaseError):
        return
    for container in found:
        seen = said(_("%(name)s (%(status)s): no run in the database"), name=container.name, status=container.status)
        advice = said(
            _("After a restore: docker logs %(id)s, then docker rm -f %(id)s when nobody needs it."),
            id=container.id[:12],
        )
        yield warn(said(_("Unknown container")), seen, advice)
