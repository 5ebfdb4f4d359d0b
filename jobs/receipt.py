"""What a job asked for against what it used, and the request that would have done. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.quotas import WHOLE
from jobs.units import exact_duration, format_cpus, format_memory

HOUR = 3600
_MEASURED = 60.0  # seconds: of a shorter run too little was seen to advise anything
_COVERED = 0.5  # of the time that it ran, at least
_LESS = 0.75  # a smaller request is worth a word from here on
_LESS_TIME = 0.6
_MOST_OF_GPUS = 0.9  # of the GPU time must have been told before a GPU is called unused

# What is added up over a job's runs, and of what the largest counts: fields of gpus.models.RunUse
_SUMS = (
    "seconds", "cpu_seconds", "cpu_known_seconds", "read_mib", "written_mib", "received_mib", "sent_mib",
    "gpu_known_seconds", "gpu_busy_seconds", "gpu_idle_seconds", "energy_j", "throttled_seconds",
)  # fmt: skip
_PEAKS = ("cpu_percent_max", "memory_max_mib", "gpus_busy_max", "gpu_memory_max_mib")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The request. `gpu_mib`: the memory of the smallest GPU that it was given, also where it had only a share of it;
    None: not known. `gpu_profile`: of the MIG instances asked for; empty: whole GPUs."""

    gpus: int
    gpu_milli: int = WHOLE
    gpu_profile: str = ""
    gpu_mib: int | None = None
    elastic: bool = False
    millicpus: int
    memory_mib: int
    shm_mib: int = 0
    limit_seconds: int | None = None

    @property
    def is_share(self) -> bool:
        return self.gpu_milli < WHOLE


@dataclass(frozen=True, kw_only=True)
class Used:
    """What all runs used. `ran_seconds`: the longest run; `held_seconds`: GPU-seconds of allocations."""

    ran_seconds: float
    held_seconds: float
    seconds: float = 0.0  # measured; 0: nothing is known
    cpu_seconds: float = 0.0
    cpu_known_seconds: float = 0.0
    cpu_percent_max: float | None = None
    memory_max_mib: int | None = None
    read_mib: float = 0.0
    written_mib: float = 0.0
    received_mib: float = 0.0
    sent_mib: float = 0.0
    gpu_known_seconds: float = 0.0
    gpu_busy_seconds: float = 0.0
    gpu_idle_seconds: float = 0.0
    gpus_busy_max: int | None = None
    gpu_memory_max_mib: int | None = None
    energy_j: float | None = None
    throttled_seconds: float = 0.0

    @property
    def cpus(self) -> float | None:
        """Cores in use on average."""
        return self.cpu_seconds / self.cpu_known_seconds if self.cpu_known_seconds else None

    @property
    def gpu_percent(self) -> float | None:
        """The mean load of its GPUs; None where none was told."""
        return 100 * self.gpu_busy_seconds / self.gpu_known_seconds if self.gpu_known_seconds else None

    @property
    def kwh(self) -> float | None:
        return None if self.energy_j is None else self.energy_j / 3.6e6


def has_whole_load(asked: Asked, used: Used) -> bool:
    """Whether a load was told of nearly all its GPUs' time: of a shared GPU it is only while nobody shares it."""
    return used.gpu_known_seconds >= _MOST_OF_GPUS * asked.gpus * used.seconds


def add_up(rows: Sequence[Mapping[str, Any]], *, ran_seconds: float, held_seconds: float) -> Used:
    """The use of a job by that of its runs."""
    sums: dict[str, Any] = {}
    for names, joined in ((_SUMS, sum), (_PEAKS, max)):
        for name in names:
            known = [row[name] for row in rows if row[name] is not None]
            if known:
                sums[name] = joined(known)
    return Used(ran_seconds=ran_seconds, held_seconds=held_seconds, **sums)


def would_have_done(asked: Asked, used: Used) -> dict[str, str]:
    """The form's fields in which a clearly smaller request would have been enough, with some room; {}: in none.

    Only for a job that ran to its own end: one that was stopped or failed may have needed more yet.
    """
    if used.seconds < max(_MEASURED, _COVERED * used.ran_seconds):
        return {}
    return {**_gpus(asked, used), **_cpus(asked, used), **_memory(asked, used), **_limit(asked, used)}


def _gpus(asked: Asked, used: Used) -> dict[str, str]:
    busy = used.gpus_busy_max
    if busy is None or asked.elastic or asked.is_share or not has_whole_load(asked, used) or busy >= asked.gpus:
        return {}
    return {"gpus": str(busy)} if busy else {"gpus": "0", "gpu_model": "", "gpu_memory": ""}


def _cpus(asked: Asked, used: Used) -> dict[str, str]:
    if used.cpu_percent_max is None:
        return {}
    enough = 1000 * max(1, math.ceil(used.cpu_percent_max / 100))
    return {"cpus": format_cpus(enough)} if enough <= _LESS * asked.millicpus else {}


def _memory(asked: Asked, used: Used) -> dict[str, str]:
    if used.memory_max_mib is None:
        return {}
    wanted = used.memory_max_mib * 1.25
    step = 1024 if wanted > 1024 else 256
    enough = max(step * math.ceil(wanted / step), asked.shm_mib)  # shared memory counts as memory
    return {"memory": format_memory(enough)} if enough <= _LESS * asked.memory_mib else {}


def _limit(asked: Asked, used: Used) -> dict[str, str]:
    if asked.limit_seconds is None:
        return {}
    wanted = used.ran_seconds * 1.5
    step = HOUR if wanted > 4 * HOUR else HOUR // 4 if wanted > HOUR else 300
    enough = step * math.ceil(wanted / step)
    return {"limit": exact_duration(enough)} if enough <= _LESS_TIME * asked.limit_seconds else {}
