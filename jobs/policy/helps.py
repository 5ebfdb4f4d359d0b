"""What would let a waiting job start now, each found true by the code that places jobs. Pure.

Fewer GPUs, a shorter limit, another model, no labels, fewer CPUs, less memory: one change at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from jobs.policy.afterwards import Afterwards
from jobs.policy.gates import Gates
from jobs.policy.hardware import Hardware
from jobs.policy.ledger import least
from jobs.policy.view import Reason, Waiting

HELPS = frozenset({"FITS_WITH", "FITS_WITHIN", "FITS_ON", "FITS_WITHOUT", "FITS_WITH_CPUS", "FITS_WITH_MEMORY"})

LEAST_OF_LIMIT = 3  # no limit is offered that leaves less than this part of the one asked for: a third
_MINUTE = 60
_STEPS = ((86_400, 3600), (7200, 900), (1200, 300))  # (from so many seconds on, in steps of so many)
_CPU_STEP, _MEMORY_STEP = 100, 64  # thousandths of a CPU, MiB

Change = tuple[Reason, Waiting]  # what is said, and the job as it would be


class Helps:
    """What would help in one pass, by the state that it ends in."""

    def __init__(self, afterwards: Afterwards, gates: Gates, hardware: Hardware) -> None:
        self._afterwards, self._gates, self._hardware = afterwards, gates, hardware
        self._spans = sorted({_round(seconds) for seconds in afterwards.untils}, reverse=True)
        self._found: dict[object, list[tuple[Reason, dict[str, Any]]]] = {}

    def of(self, job: Waiting, gates: Iterable[Reason]) -> list[Reason]:
        """The first change of each sort that would start the job now. `gates` are those that are shut for it."""
        said: dict[str, Reason] = {}
        for reason, changed in (*self._with_room(job), *_within_budget(job, gates)):
            if reason["code"] not in said and not self._gates.of(changed) and self._fits(changed):
                said[reason["code"]] = reason
        return list(said.values())

    def _fits(self, job: Waiting) -> bool:
        return self._afterwards.fits(self._gates.as_allowed(job))

    def _with_room(self, job: Waiting) -> list[Change]:
        """The changes for which there is room. Jobs that fit alike share them."""
        key = self._afterwards.alike(job)
        if key not in self._found:
            fitting = (change for change in self._changes(job) if self._afterwards.fits(change[1]))
            self._found[key] = [_only_differences(job, *change) for change in fitting]
        return [(reason, replace(job, **fields)) for reason, fields in self._found[key]]

    def _changes(self, job: Waiting) -> Iterator[Change]:
        most = self._hardware.most_gpus(job) if least(job) > 1 else 0
        for gpus in range(min(least(job) - 1, most), 0, -1):
            yield {"code": "FITS_WITH", "gpus": gpus}, replace(job, gpus=gpus, least_gpus=None)
        for seconds in self._spans if self._afterwards.kept_with_room(job) else ():
            if _is_of_use(seconds, job):
                yield {"code": "FITS_WITHIN", "seconds": seconds}, replace(job, limit_seconds=seconds)
        if job.gpu_model:
            for model in self._hardware.models():
                if model not in job.gpu_model.split("|"):
                    yield {"code": "FITS_ON", "model": model}, replace(job, gpu_model=model)
        if job.labels:
            for label in sorted(job.labels):
                yield {"code": "FITS_WITHOUT", "labels": [label]}, replace(job, labels=job.labels - {label})
            yield {"code": "FITS_WITHOUT", "labels": sorted(job.labels)}, replace(job, labels=frozenset())
        yield from self._smaller(job)

    def _smaller(self, job: Waiting) -> Iterator[Change]:
        """With the most CPUs, or memory, that are left of any node where the GPUs are."""
        millicpus, memory_mib = self._hardware.most_beside_gpus(job)
        cpus = millicpus // _CPU_STEP * _CPU_STEP
        if job.millicpus / 2 <= cpus < job.millicpus:
            yield {"code": "FITS_WITH_CPUS", "millicpus": cpus}, replace(job, millicpus=cpus)
        memory = memory_mib // _MEMORY_STEP * _MEMORY_STEP
        if job.memory_mib / 2 <= memory < job.memory_mib:
            yield {"code": "FITS_WITH_MEMORY", "memory_mib": memory}, replace(job, memory_mib=memory)


def _is_of_use(seconds: int, job: Waiting) -> bool:
    """Whether it is a shorter limit, and not so short that hardly any job could use it."""
    limit = job.limit_seconds
    return seconds > 0 and (limit is None or seconds < limit <= seconds * LEAST_OF_LIMIT)


def _round(seconds: float) -> int:
    """Down to what people say, which also changes less often than a minute hand."""
    step = next((step for above, step in _STEPS if seconds >= above), _MINUTE)
    return int(seconds // step) * step


def _only_differences(job: Waiting, reason: Reason, changed: Waiting) -> tuple[Reason, dict[str, Any]]:
    names = ("gpus", "least_gpus", "limit_seconds", "gpu_model", "labels", "millicpus", "memory_mib")
    return reason, {name: getattr(changed, name) for name in names if getattr(changed, name) != getattr(job, name)}


def _within_budget(job: Waiting, gates: Iterable[Reason]) -> Iterator[Change]:
    """A limit as short as the GPU-hours that are left."""
    for gate in gates:
        seconds = _round(gate.get("nearest") or 0) if gate["code"] == "BUDGET_USED" else 0
        if _is_of_use(seconds, job):
            yield {"code": "FITS_WITHIN", "seconds": seconds}, replace(job, limit_seconds=seconds)
