"""What a person asks for, as plain data, and what is wrong with it before any quota is looked at. Pure.

The form and the API both make a `JobRequest` and both show the same `Problem`s, in the same words
(`jobs.wording.problem`).
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.containerspec import SIGNALS
from jobs.plain import is_visible
from jobs.quotas import WHOLE

# After the reference grammar of distribution/reference: [registry/]path[:tag][@digest], lower-case path.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_DOMAIN = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::[0-9]+)?"
IMAGE_REFERENCE = re.compile(
    rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
MIG_PROFILE = re.compile(r"(?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:\+[a-z.]{1,10})?", re.ASCII)  # as nvidia-smi lists them
NODE_LABEL = re.compile(r"[^\s=,]{1,60}=[^\s=,]{0,60}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
RESERVED_PREFIXES = ("NVIDIA_", "DOCKYARD_", "TINI_")
RESERVED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_PRELOAD"})
MAX_SCRIPT_BYTES = 64 * 1024
MAX_ENVIRONMENT_BYTES = 64 * 1024
MIN_MEMORY_MIB = 16
NO_LIMIT = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a request: the field it stands at, a code, and its numbers."""

    field: str
    code: str
    params: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job as asked for. Memory in MiB, CPUs in thousandths, times in seconds."""

    name: str
    image: str
    command_kind: str = "script"  # or "image"
    script: str = ""
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0
    gpu_milli: int = 1000  # the share of its one GPU, in thousandths
    gpu_profile: str = ""  # a MIG profile, such as 1g.10gb; empty: whole GPUs
    least_gpus: int | None = None  # elastic: starts with as few; None: it is not
    node_labels: tuple[str, ...] = ()  # "key=value": a host must have all
    millicpus: int = 1000
    memory_mib: int = 1024
    shm_mib: int = 512
    limit_seconds: int | None = 24 * 3600
    grace_seconds: int = 30
    priority: int = 1
    interactive: bool = False
    preemptible: bool = False  # may be stopped, and started again later, for others
    movable: bool = False  # may be moved to other GPUs to make room
    offline: bool = False  # without any network
    stop_signal: str = "SIGTERM"
    environment: tuple[tuple[str, str], ...] = ()  # in the order of the rows; also those of secrets
    secret_names: frozenset[str] = frozenset()  # which of `environment` are secret
    mounts: tuple[int, ...] = ()  # primary keys
    start_after: datetime | None = None
    cloned_from: int | None = None

    def problems(self) -> list[Problem]:
        """Everything that is wrong whatever the quotas are; empty when nothing is."""
        return [
            *_name_problems(self.name), *_image_problems(self.image), *_command_problems(self),
            *_resource_problems(self), *_kind_problems(self), *_variable_problems(self.environment),
        ]  # fmt: skip


def _name_problems(name: str) -> Iterator[Problem]:
    if not name.strip():
        yield Problem(field="name", code="NAME_EMPTY")
    elif len(name) > 100:
        yield Problem(field="name", code="NAME_LONG", params={"length": len(name), "most": 100})
    elif not is_visible(name):
        yield Problem(field="name", code="NAME_CONTROL")


def _image_problems(image: str) -> Iterator[Problem]:
    if not image:
        yield Problem(field="image", code="IMAGE_EMPTY")
    elif len(image) > 300 or not IMAGE_REFERENCE.fullmatch(image):
        lower = image.lower().strip()
        nearest = lower if lower != image and IMAGE_REFERENCE.fullmatch(lower) else ""
        yield Problem(field="image", code="BAD_IMAGE_REF", params={"image": image[:300], "nearest": nearest})


def _command_problems(request: JobRequest) -> Iterator[Problem]:
    if request.command_kind not in ("script", "image"):
        yield Problem(field="command_kind", code="COMMAND_KIND", params={"kind": request.command_kind})
    elif request.command_kind == "script":
        if not request.script.strip():
            yield Problem(field="script", code="SCRIPT_EMPTY")
        if len(request.script.encode()) > MAX_SCRIPT_BYTES:
            yield Problem(field="script", code="SCRIPT_LONG", params={"most_kib": MAX_SCRIPT_BYTES // 1024})
        if "\0" in request.script:
            yield Problem(field="script", code="NUL", params={})
    for name in ("entrypoint", "arguments"):
        if any("\0" in word for word in getattr(request, name)):
            yield Problem(field=name, code="NUL", params={})


def _resource_problems(request: JobRequest) -> Iterator[Problem]:
    if request.gpus < 0:
        yield Problem(field="gpus", code="TOO_SMALL", params={"least": 0})
    if request.millicpus < 100:
        yield Problem(field="millicpus", code="CPUS_SMALL", params={"least": 0.1})
    if request.memory_mib < MIN_MEMORY_MIB:
        yield Problem(field="memory_mib", code="MEMORY_SMALL", params={"least_mib": MIN_MEMORY_MIB})
    if request.shm_mib < 1:
        yield Problem(field="shm_mib", code="SHM_SMALL", params={"least_mib": 1})
    elif request.shm_mib > request.memory_mib:
        yield Problem(field="shm_mib", code="SHM_ABOVE_MEMORY", params={"memory_mib": request.memory_mib})
    if request.limit_seconds is not None and request.limit_seconds < 1:
        yield Problem(field="limit_seconds", code="LIMIT_SMALL", params={"least": 1})
    if not 0 <= request.grace_seconds <= 3600:
        yield Problem(field="grace_seconds", code="GRACE_RANGE", params={"most": 3600})
    if request.priority not in (0, 1, 2, 3):
        yield Problem(field="priority", code="PRIORITY_RANGE", params={})
    if not is_visible(request.gpu_model):
        yield Problem(field="gpu_model", code="NAME_CONTROL")
    if request.gpus == 0 and (request.gpu_model or request.gpu_memory_mib):
        yield Problem(field="gpus", code="MODEL_WITHOUT_GPUS", params={})


def _kind_problems(request: JobRequest) -> Iterator[Problem]:
    """Of what GPUs and hosts it asks for beside their number, and how it may be stopped."""
    if not 1 <= request.gpu_milli <= WHOLE:
        yield Problem(field="gpu_milli", code="SHARE_RANGE")
    elif request.gpu_milli < WHOLE and request.gpus != 1:
        yield Problem(field="gpu_milli", code="SHARE_OF_ONE", params={"gpus": request.gpus})
    if request.gpu_profile and not MIG_PROFILE.fullmatch(request.gpu_profile):
        yield Problem(field="gpu_profile", code="PROFILE_FORM", params={"profile": request.gpu_profile[:32]})
    elif request.gpu_profile and request.gpus != 1:
        yield Problem(field="gpu_profile", code="PROFILE_OF_ONE", params={"gpus": request.gpus})
    elif request.gpu_profile and request.gpu_milli < WHOLE:
        yield Problem(field="gpu_milli", code="SHARE_OF_PROFILE")
    if request.least_gpus is not None and not 1 <= request.least_gpus <= request.gpus:
        yield Problem(field="least_gpus", code="LEAST_RANGE", params={"most": request.gpus})
    for label in request.node_labels:
        if not NODE_LABEL.fullmatch(label) or not is_visible(label):
            yield Problem(field="node_labels", code="LABEL_FORM", params={"label": label[:80]})
    if request.stop_signal not in SIGNALS:
        names = ", ".join(SIGNALS)
        yield Problem(
            field="stop_signal", code="SIGNAL_UNKNOWN", params={"name": request.stop_signal[:20], "names": names}
        )


def _variable_problems(rows: tuple[tuple[str, str], ...]) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, (name, value) in enumerate(rows, 1):
        where = {"row": number, "name": name[:80].replace("\0", "\\0")}
        if not VARIABLE_NAME.fullmatch(name):
            yield Problem(field="environment", code="VARIABLE_NAME", params=where)
        elif is_reserved(name):
            yield Problem(field="environment", code="VARIABLE_RESERVED", params=where)
        elif name in seen:
            yield Problem(field="environment", code="VARIABLE_TWICE", params=where)
        if "\0" in value:
            yield Problem(field="environment", code="VARIABLE_NUL", params=where)
        seen.add(name)
    if sum(len(n.encode()) + len(v.encode()) for n, v in rows) > MAX_ENVIRONMENT_BYTES:
        yield Problem(field="environment", code="ENVIRONMENT_LONG", params={"most_kib": MAX_ENVIRONMENT_BYTES // 1024})


def is_reserved(name: str) -> bool:
    """Whether only Dockyard may set this variable: what decides which GPUs a container sees, in any case."""
    upper = name.strip().upper()
    return upper in RESERVED_NAMES or upper.startswith(RESERVED_PREFIXES)


def registry_of(image: str) -> str:
    """The registry that an image name means, in lower case: `docker.io` where it names none."""
    first, slash, _rest = image.partition("/")
    return first.lower() if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"
