"""What the engine is asked for, as the JSON of its create call. Pure.

Dockyard owns every variable that decides which GPUs a container sees: neither the user's value nor the
image's wins (the engine passes NVIDIA_VISIBLE_DEVICES=all through untouched when no device is requested).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAP_DROP = ["MKNOD", "NET_RAW", "AUDIT_WRITE"]
WORKSPACE = "/workspace"
LOG_MARGIN_BYTES = 16 << 20
# On the signal to stop, which goes to the whole process group, a plain shell dies at once, and with it every child
# that was about to save its work. This one lets its children finish first; a script's own trap takes its place.
SHELL_PRELUDE = "trap 'wait; exit {code}' {name}; "
LABEL, LABEL_JOB, LABEL_RUN = "dockyard.installation", "dockyard.job", "dockyard.run"
SIGNALS = {"SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1, "SIGUSR1": 10, "SIGUSR2": 12}  # what a job may be stopped by
# Of what an NVIDIA image sets, only the driver versions it needs may stay.
KEPT_IMAGE_PREFIX = "NVIDIA_REQUIRE_"


def bridge_name(installation: str, node: str) -> str:
    """The jobs' bridge on a host, in 13 of 15 characters: one for each node, since engines may share a machine."""
    return "dky" + hashlib.sha256(f"{installation}/{node}".encode()).hexdigest()[:10]


class AllocationEmpty(Exception):
    """A job that asked for GPUs has none allotted: it must not start."""


@dataclass(frozen=True, kw_only=True)
class Bind:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything a container is made from. Memory in MiB, CPUs in thousandths."""

    installation: str
    job: int
    run: int
    attempt: int
    image: str
    image_variables: frozenset[str]
    image_working_dir: str
    command_kind: str
    script: str
    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    gpus_asked: int
    gpu_uuids: tuple[str, ...]
    gpu_milli: int = 1000  # of its one GPU
    stop_signal: str = "SIGTERM"
    injection: str  # toolkit, cdi, runtime, none
    uid: int
    gid: int
    millicpus: int
    memory_mib: int
    shm_mib: int
    pids: int
    workspace: str  # on the host
    binds: tuple[Bind, ...]
    network: str  # a network's name, or "none"
    log_limit_bytes: int


def build(facts: RunFacts) -> dict[str, Any]:
    """The body of the create call. Raises AllocationEmpty when GPUs were asked for and the count is not that."""
    if len(facts.gpu_uuids) != facts.gpus_asked:
        raise AllocationEmpty(f"asked for {facts.gpus_asked} GPUs, allotted {len(facts.gpu_uuids)}")
    return {
        "Image": facts.image,
        **_command(facts),
        "Env": [name if value is None else f"{name}={value}" for name, value in _environment(facts).items()],
        "User": f"{facts.uid}:{facts.gid}",
        "WorkingDir": _working_dir(facts),
        "Hostname": f"job-{facts.job}",
        "Labels": {
            LABEL: facts.installation,
            LABEL_JOB: str(facts.job),
            LABEL_RUN: str(facts.run),
            "dockyard.attempt": str(facts.attempt),
        },
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "NetworkDisabled": facts.network == "none",
        "StopSignal": facts.stop_signal,
        "Healthcheck": {"Test": ["NONE"]},  # its events would push others out of the memory of the engine
        "HostConfig": _host_config(facts),
    }


def job_dir(job: int) -> str:
    """Where the job's own files go, inside its container."""
    return f"{WORKSPACE}/jobs/{job}"


def _working_dir(facts: RunFacts) -> str:
    if facts.command_kind == "script" or facts.image_working_dir in ("", "/"):
        return job_dir(facts.job)
    return facts.image_working_dir


def _command(facts: RunFacts) -> dict[str, Any]:
    if facts.command_kind == "script":
        return {"Entrypoint": ["/bin/sh", "-c"], "Cmd": [_prelude(facts.stop_signal) + facts.script]}
    command: dict[str, Any] = {}
    if facts.entrypoint:
        command["Entrypoint"] = list(facts.entrypoint)
    if facts.arguments:
        command["Cmd"] = list(facts.arguments)
    return command


def _prelude(stop_signal: str) -> str:
    return SHELL_PRELUDE.format(code=128 + SIGNALS[stop_signal], name=stop_signal.removeprefix("SIG"))


def _environment(facts: RunFacts) -> dict[str, str | None]:
    """Name → value; None removes the image's own value, which the engine does for a name without `=`."""
    defaults = {"HOME": WORKSPACE, "PYTHONUNBUFFERED": "1"}
    if facts.image_variables & {"PYTHONUNBUFFERED"}:
        del defaults["PYTHONUNBUFFERED"]
    removed = {name: None for name in sorted(facts.image_variables) if _decides_gpus(name) or _enters_the_hook(name)}
    return {**defaults, **removed, **facts.environment, **_owned(facts)}


def _decides_gpus(name: str) -> bool:
    upper = name.upper()
    if upper in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        return True
    return upper.startswith("NVIDIA_") and not upper.startswith(KEPT_IMAGE_PREFIX)


def _enters_the_hook(name: str) -> bool:
    """An old toolkit's hook, which runs as root on the host, loaded what the container's variable names
    (CVE-2025-23266; NVIDIA/nvidia-container-toolkit#1208). A script may set it for itself.
    """
    return name.upper() == "LD_PRELOAD"


def _owned(facts: RunFacts) -> dict[str, str]:
    """What only Dockyard sets."""
    owned = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(facts.gpu_uuids) or "void",
        "TINI_KILL_PROCESS_GROUP": "1",  # a script's children hear SIGTERM too
        "DOCKYARD_JOB_ID": str(facts.job),
        "DOCKYARD_RUN": str(facts.attempt),
        "DOCKYARD_JOB_DIR": job_dir(facts.job),
        "DOCKYARD_GPUS": str(len(facts.gpu_uuids)),  # an elastic job learns what it has this time
    }
    if facts.gpu_uuids:
        if facts.gpu_milli < 1000:
            owned["DOCKYARD_GPU_SHARE"] = f"{facts.gpu_milli / 1000:g}"
        owned |= {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if facts.injection == "none":
            owned["CUDA_VISIBLE_DEVICES"] = ",".join(facts.gpu_uuids)
    return owned


def _host_config(facts: RunFacts) -> dict[str, Any]:
    memory = facts.memory_mib << 20
    return {
        "Binds": [_bind(facts.workspace, WORKSPACE, read_only=False), *(_bind_of(bind) for bind in facts.binds)],
        "NetworkMode": facts.network,
        "NanoCpus": facts.millicpus * 1_000_000,
        "Memory": memory,
        "MemorySwap": memory,
        "ShmSize": facts.shm_mib << 20,
        "PidsLimit": facts.pids,
        "Init": True,
        "Privileged": False,
        "CapDrop": list(CAP_DROP),
        "SecurityOpt": ["no-new-privileges"],
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "LogConfig": log_config(facts.log_limit_bytes),
        **_gpu_config(facts),
    }


def log_config(limit_bytes: int) -> dict[str, Any]:
    """The driver that keeps raw bytes, blocking, in one file that does not rotate below the run's own limit.

    Each line costs some 40 bytes beside its text, hence the factor.
    """
    size = 2 * limit_bytes + LOG_MARGIN_BYTES
    options = {"mode": "blocking", "max-size": str(size), "max-file": "1", "compress": "false"}
    return {"Type": "local", "Config": options}


def _gpu_config(facts: RunFacts) -> dict[str, Any]:
    """Exactly one device request, by UUIDs: of two the engine heeds the last, and by count it gives 0, 1, … always."""
    if not facts.gpu_uuids or facts.injection == "none":
        return {}
    if facts.injection == "runtime":
        return {"Runtime": "nvidia"}
    if facts.injection == "cdi":
        ids = [f"nvidia.com/gpu={uuid}" for uuid in facts.gpu_uuids]
        return {"DeviceRequests": [{"Driver": "cdi", "Count": 0, "DeviceIDs": ids, "Capabilities": []}]}
    return {
        "DeviceRequests": [
            {"Driver": "", "Count": 0, "DeviceIDs": list(facts.gpu_uuids), "Capabilities": [["gpu"]], "Options": {}}
        ]
    }


def _bind_of(bind: Bind) -> str:
    return _bind(bind.source, bind.target, read_only=bind.read_only)


def _bind(source: str, target: str, *, read_only: bool) -> str:
    if ":" in source:
        raise ValueError(f"a mounted path may not contain a colon: {source}")
    return f"{source}:{target}:{'ro' if read_only else 'rw'}"
