"""What would let a waiting job start now, each found true by the code that places jobs. Pure.

Fewer GPUs, a shorter limit, another model, no labels, fewer CPUs, less memory: one change at a time.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from jobs.policy.afterwards import Afterwards
from jobs.policy.gates import Gates
from jobs.policy.hardware import Hardware
from jobs.policy.ledger import least
from jobs.policy.view import Reason, Waiting, changed

HELPS = frozenset({"FITS_WITH", "FITS_WITHIN", "FITS_ON", "FITS_WITHOUT", "FITS_WITH_CPUS", "FITS_WITH_MEMORY"})

LEAST_OF_LIMIT = 3  # no limit is offered that leaves less than this part of the one asked for: a third
_MINUTE = 60
_STEPS = ((86_400, 3600), (7200, 900), (1200, 300))  # (from so many seconds on, in steps of so many)
_CPU_STEP, _MEMORY_STEP = 100, 64  # thousandths of a CPU, MiB


class Change(NamedTuple):
    """What is said, how the job would be otherwise, and one of its shape that is so."""

    reason: Reason
    fields: dict[str, Any]
    sample: Waiting


class Helps:
    """What would help in one pass, by the state that it ends in."""

    def __init__(self, afterwards: Afterwards, gates: Gates, hardware: Hardware) -> None:
        self._afterwards, self._gates, self._hardware = afterwards, gates, hardware
        self._spans = sorted({_round(seconds) for seconds in afterwards.untils}, reverse=True)
        self._others: dict[object, tuple[list[Change], list[Change]]] = {}
        self._found: dict[object, list[Change]] = {}

    def some(self, job: Waiting) -> bool:
        """Whether there is room for the job with any change."""
        return bool(self._with_room(job))

    def of(self, job: Waiting, gates: Collection[Reason]) -> list[Reason]:
        """The first change of each sort that would start the job now. `gates` are those that are shut for it."""
        said: dict[str, Reason] = {}
        for reason, fields, _sample in (*self._with_room(job), *(_within_budget(job, gates) if gates else ())):
            if reason["code"] in said or (reason["code"] == "FITS_WITHIN" and not _is_of_use(reason["seconds"], job)):
                continue
            other = changed(job, **fields)
            if not self._gates.of(other) and self._afterwards.fits(self._gates.as_allowed(other)):
                said[reason["code"]] = reason
        return list(said.values())

    def _with_room(self, job: Waiting) -> list[Change]:
        """The changes for which there is room. Jobs that fit alike share them."""
        key = self._afterwards.alike(job)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = [change for change in self._changes(job) if self._fits(job, change)]
        return found

    def _fits(self, job: Waiting, change: Change) -> bool:
        if self._afterwards.fits_beside(change.sample):
            return True
        kept = self._afterwards.kept_with_room(change.sample)
        return bool(kept) and self._afterwards.fits(changed(job, **change.fields))

    def _changes(self, job: Waiting) -> Iterator[Change]:
        if job.shape not in self._others:
            self._others[job.shape] = list(self._fewer(job)), list(self._elsewhere(job))
        fewer, elsewhere = self._others[job.shape]
        yield from fewer
        for seconds in self._spans if self._afterwards.kept_with_room(job) else ():
            if seconds and (job.limit_seconds is None or seconds < job.limit_seconds):
                yield _change(job, {"code": "FITS_WITHIN", "seconds": seconds}, limit_seconds=seconds)
        yield from elsewhere

    def _fewer(self, job: Waiting) -> Iterator[Change]:
        most = self._hardware.most_gpus(job) if least(job) > 1 else 0
        for gpus in range(min(least(job) - 1, most), 0, -1):
            yield _change(job, {"code": "FITS_WITH", "gpus": gpus}, gpus=gpus, least_gpus=None)

    def _elsewhere(self, job: Waiting) -> Iterator[Change]:
        """On other models or hosts, or on what hosts have beside the GPUs."""
        if job.gpu_model:
            for model in self._hardware.models():
                if model not in job.gpu_model.split("|"):
                    yield _change(job, {"code": "FITS_ON", "model": model}, gpu_model=model)
        if job.labels:
            for label in sorted(job.labels):
                yield _change(job, {"code": "FITS_WITHOUT", "labels": [label]}, labels=job.labels - {label})
            yield _change(job, {"code": "FITS_WITHOUT", "labels": sorted(job.labels)}, labels=frozenset())
        yield from self._smaller(job)

    def _smaller(self, job: Waiting) -> Iterator[Change]:
        """With the most CPUs, or memory, that are left of any node where the GPUs are."""
        millicpus, memory_mib = self._hardware.most_beside_gpus(job)
        cpus = millicpus // _CPU_STEP * _CPU_STEP
        if job.millicpus / 2 <= cpus < job.millicpus:
            yield _change(job, {"code": "FITS_WITH_CPUS", "millicpus": cpus}, millicpus=cpus)
        memory = memory_mib // _MEMORY_STEP * _MEMORY_STEP
        if job.memory_mib / 2 <= memory < job.memory_mib:
            yield _change(job, {"code": "FITS_WITH_MEMORY", "memory_mib": memory}, memory_mib=memory)


def _change(job: Waiting, reason: Reason, **fields: Any) -> Change:
    return Change(reason, fields, changed(job, **fields))


def _is_of_use(seconds: int, job: Waiting) -> bool:
    """Whether it is a shorter limit, and not so short that hardly any job could use it."""
    limit = job.limit_seconds
    return seconds > 0 and (limit is None or seconds < limit <= seconds * LEAST_OF_LIMIT)


def _round(seconds: float) -> int:
    """Down to what people say, which also changes less often than a minute hand."""
    step = next((step for above, step in _STEPS if seconds >= above), _MINUTE)
    return int(seconds // step) * step


def _within_budget(job: Waiting, gates: Iterable[Reason]) -> Iterator[Change]:
    """A limit as short as the GPU-hours that are left."""
    for gate in gates:
        seconds = _round(gate.get("nearest") or 0) if gate["code"] == "BUDGET_USED" else 0
        if _is_of_use(seconds, job):
            yield _change(job, {"code": "FITS_WITHIN", "seconds": seconds}, limit_seconds=seconds)
