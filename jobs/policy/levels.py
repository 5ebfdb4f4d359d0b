"""When users' and teams' quotas of what runs at once leave room again, as runs end. Pure. Seconds from now.

Quotas of GPU-hours are none of these.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from operator import add, attrgetter, sub
from typing import NamedTuple, Protocol

from jobs.policy.hardware import Hardware
from jobs.policy.view import WHOLE, Running, Waiting
from jobs.quotas import Limits, least_milli

Amounts = tuple[int, ...]  # of each of some quotas
_End = tuple[float, int, Amounts]  # of a run: when, how much of GPUs it holds in thousandths, and of the rest


class Ending(Protocol):
    """A run, in how many seconds it ends early and late, and what it holds of GPUs in thousandths."""

    @property
    def run(self) -> Running: ...
    @property
    def early(self) -> float: ...
    @property
    def late(self) -> float: ...
    @property
    def milli(self) -> int: ...


class Level:
    """What a user or team holds, against those of its quotas that bound what runs at once."""

    def __init__(self, limits: Limits, held: Sequence[Ending], milli: int, hardware: Hardware, *, late: bool) -> None:
        """`held` are its runs, of so many GPUs. GPUs and running jobs, which most quotas are of, are counted apart."""
        self._milli = inf if limits.gpus is None else limits.gpus * WHOLE
        self._jobs = inf if limits.running_jobs is None else limits.running_jobs
        self._more = _More(limits, hardware) if _has_more(limits) else None
        self._held, self._late = held, late
        self._taken: list[_End] = []  # what was taken before any end was of interest
        self._ends: list[_End] | None = None
        self._used, self._running = milli, len(held)
        if self._more:
            for end in held:
                self._more.take(self._more.holds(end.run))
        self._at = 0.0

    def ready(self, job: Waiting, milli: int, soonest: float) -> float:
        """From when so much more is within the quotas, not before `soonest`."""
        more = self._more
        if more is None and self._used + milli <= self._milli and self._running < self._jobs:
            return max(self._at, soonest)
        asked = more.asks(job) if more else ()
        if milli > self._milli or not self._jobs or (more and more.never(asked)):
            return inf
        while (
            (milli and self._used + milli > self._milli)
            or self._running >= self._jobs
            or (more and more.refuses(asked))
        ):
            if not self._next_ends():
                return inf
        return max(self._at, soonest)

    def _next_ends(self) -> bool:
        """Count the next run to end as ended; False where none will."""
        if self._ends is None:
            holds = self._more.holds if self._more else _nothing
            late = self._late
            ends = [(end.late if late else end.early, end.milli, holds(end.run)) for end in self._held]
            self._ends = ends + self._taken
            heapify(self._ends)
        if not self._ends or self._ends[0][0] == inf:
            return False
        end, freed, held = heappop(self._ends)
        self._at = max(self._at, end)
        self._used -= freed
        self._running -= 1
        if self._more:
            self._more.free(held)
        return True

    def take(self, job: Waiting, milli: int, end: float) -> None:
        """The job has so much from when it is ready until then."""
        asked: Amounts = ()
        if self._more:
            asked = self._more.asks(job)
            self._more.take(asked)
        self._used += milli
        self._running += 1
        if self._ends is None:
            self._taken.append((end, milli, asked))
        else:
            heappush(self._ends, (end, milli, asked))


def _nothing(run: Running) -> Amounts:
    return ()


class _More:
    """What is used of the quotas of CPUs, memory, interactive jobs and GPU models."""

    def __init__(self, limits: Limits, hardware: Hardware) -> None:
        self._bounds = list(_bounds(limits, hardware))
        self._used: Amounts = (0,) * len(self._bounds)

    def asks(self, job: Waiting) -> Amounts:
        return tuple(bound.asks(job) for bound in self._bounds)

    def holds(self, run: Running) -> Amounts:
        return tuple(bound.holds(run) for bound in self._bounds)

    def never(self, asked: Amounts) -> bool:
        return any(more > bound.limit for more, bound in zip(asked, self._bounds, strict=True))

    def refuses(self, asked: Amounts) -> bool:
        together = zip(asked, self._used, self._bounds, strict=True)
        return any(more and used + more > bound.limit for more, used, bound in together)

    def take(self, amounts: Amounts) -> None:
        self._used = tuple(map(add, self._used, amounts))

    def free(self, amounts: Amounts) -> None:
        self._used = tuple(map(sub, self._used, amounts))


class _Bound(NamedTuple):
    """One quota: how much of it a job asks for, and how much a run holds."""

    limit: int
    asks: Callable[[Waiting], int]
    holds: Callable[[Running], int]


def levels(
    limits: Mapping[int, Limits], ends: Iterable[Ending], hardware: Hardware, whose: Callable[[Running], int]
) -> tuple[dict[int, Level], dict[int, Level]]:
    """By user or team, of those whose quotas bound what runs at once: as runs end early, and late."""
    held: dict[int, list[Ending]] = {
        pk: [] for pk, limit in limits.items()
        if limit.gpus is not None or limit.running_jobs is not None or _has_more(limit)
    }  # fmt: skip
    for end in ends:
        mine = held.get(whose(end.run))
        if mine is not None:
            mine.append(end)
    milli = {pk: sum([end.milli for end in found]) for pk, found in held.items()}
    early, late = (
        {pk: Level(limits[pk], found, milli[pk], hardware, late=late) for pk, found in held.items()}
        for late in (False, True)
    )
    return early, late


def _has_more(limits: Limits) -> bool:
    bounds = limits.millicpus, limits.memory_mib, limits.interactive_jobs
    return bool(limits.gpus_by_model) or any(bound is not None for bound in bounds)


def _bounds(limits: Limits, hardware: Hardware) -> Iterator[_Bound]:
    for name in ("millicpus", "memory_mib"):
        if (most := getattr(limits, name)) is not None:
            yield _Bound(most, attrgetter(name), attrgetter(name))
    if limits.interactive_jobs is not None:
        yield _Bound(limits.interactive_jobs, attrgetter("interactive"), attrgetter("interactive"))
    for model, most in limits.gpus_by_model.items():
        yield _Bound(most * WHOLE, partial(_asks_of, model, hardware), partial(_holds_of, model, hardware))


def _asks_of(model: str, hardware: Hardware, job: Waiting) -> int:
    return least_milli(job) if only_model(job, hardware) == model else 0


def _holds_of(model: str, hardware: Hardware, run: Running) -> int:
    """A run's GPUs are of one model, or it counts for the first."""
    return run.milli if run.slots and hardware.model_of(next(iter(run.slots))) == model else 0


def only_model(job: Waiting, hardware: Hardware) -> str:
    """The one GPU model that the job can have; empty where there is a choice, or it needs none."""
    return hardware.only_model(hardware.suiting(job)) if job.gpus else ""
