"""When quotas leave room again: as runs end, and as what was used of a budget leaves its window. Pure.

Of users and of teams. Seconds from now.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from math import inf
from operator import add, attrgetter, le, sub
from typing import NamedTuple, Protocol

from jobs.policy.hardware import GpuKind, Hardware
from jobs.policy.view import WHOLE, Running, Waiting
from jobs.quotas import Limits, Usage, least_milli

_NOTHING = Usage()
_DAY = 86_400.0

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
    """What a user or team holds, against its quotas."""

    def __init__(
        self, limits: Limits, held: Sequence[Ending], milli: int, hardware: Hardware, budget: "Budget | None", *,
        late: bool,
    ) -> None:  # fmt: skip
        """`held` are its runs, of so many GPUs. GPUs and running jobs, which most quotas are of, are counted apart."""
        self._budget = budget
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
        if self._budget is not None:
            soonest = max(soonest, self._budget.ready(milli, job.limit_seconds))
            if soonest == inf:
                return inf
        more = self._more
        if more is None and self._used + milli <= self._milli and self._running < self._jobs:
            return max(self._at, soonest)
        asked = more.asks(job) if more else []
        if milli > self._milli or not self._jobs or (more and more.never(asked)):
            return inf
        while (
            (milli and self._used + milli > self._milli)
            or self._running >= self._jobs
            or (more and more.room(asked) is None)
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

    def take(self, job: Waiting, milli: int, end: float, takes: float) -> None:
        """The job has so much from when it is ready until then, for so long."""
        if self._budget is not None and job.limit_seconds is not None:
            self._budget.holds(milli, job.limit_seconds, end, takes)
        asked: Amounts = ()
        if self._more:
            ways = self._more.asks(job)
            asked = self._more.room(ways) or ways[0]
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
        self._hardware = hardware
        self._bounds, self._models = list(_bounds(limits)), list(limits.gpus_by_model)
        of_models = (most * WHOLE for most in limits.gpus_by_model.values())
        self._limits = *(bound.limit for bound in self._bounds), *of_models
        self._used: Amounts = (0,) * len(self._limits)
        self._ways: dict[tuple[frozenset[GpuKind], int], list[Amounts]] = {}

    def asks(self, job: Waiting) -> list[Amounts]:
        """What the job would take, by the models that it can have: it starts once there is room for any of these."""
        others = tuple(bound.of(job) for bound in self._bounds)
        return [(*others, *models) for models in self._of_models(job)]

    def _of_models(self, job: Waiting) -> list[Amounts]:
        if not self._models or not job.gpus:
            return [(0,) * len(self._models)]
        asked = self._hardware.suiting(job), least_milli(job)
        if asked not in self._ways:
            self._ways[asked] = self._found(*asked)
        return self._ways[asked]

    def _found(self, suiting: frozenset[GpuKind], need: int) -> list[Amounts]:
        """None of it where it can have a model that is not bounded."""
        models = sorted({model for model, *_rest in suiting})
        if not models or not set(models) <= set(self._models):
            return [(0,) * len(self._models)]
        return [tuple(need if model == bound else 0 for bound in self._models) for model in models]

    def holds(self, run: Running) -> Amounts:
        """A run's GPUs are of one model, or it counts for the first."""
        model = self._hardware.model_of(next(iter(run.slots))) if self._models and run.slots else ""
        return *(bound.of(run) for bound in self._bounds), *(run.milli if model == m else 0 for m in self._models)

    def never(self, asked: Sequence[Amounts]) -> bool:
        return not any(all(map(le, amounts, self._limits)) for amounts in asked)

    def room(self, asked: Sequence[Amounts]) -> Amounts | None:
        """The first of these for which there is room now."""
        return next((amounts for amounts in asked if self._has_room(amounts)), None)

    def _has_room(self, amounts: Amounts) -> bool:
        together = zip(amounts, self._used, self._limits, strict=True)
        return all(not more or used + more <= most for more, used, most in together)

    def take(self, amounts: Amounts) -> None:
        self._used = tuple(map(add, self._used, amounts))

    def free(self, amounts: Amounts) -> None:
        self._used = tuple(map(sub, self._used, amounts))


class _Bound(NamedTuple):
    """One quota other than of GPUs: how much of it a job asks for, or a run holds."""

    limit: int
    of: Callable[[Waiting | Running], int]


class Budget:
    """What is left of a budget of GPU-hours, in GPU-seconds, and when more will be."""

    def __init__(self, left: float, returns: Iterable[tuple[float, float]], window: float) -> None:
        """`returns`: in how many seconds so much has left the window, which is so long."""
        self._left, self._window = left, window
        self._returns = list(returns)
        heapify(self._returns)
        self._at = 0.0

    def ready(self, milli: int, limit: int | None) -> float:
        """From when a job of so many thousandths and this time limit is within the budget; inf: nobody can say."""
        asked = 0.0 if limit is None else milli / WHOLE * limit
        while asked > self._left:
            if not self._returns:
                return inf
            at, back = heappop(self._returns)
            self._at = max(self._at, at)
            self._left += back
        return self._at

    def holds(self, milli: int, promised: float, end: float, takes: float, *, known: bool = False) -> None:
        """What is promised so many seconds, and takes fewer, gives the rest back at its end, and all in the end.

        Where it is `known`, what is left is so without it.
        """
        gpus = milli / WHOLE
        if not known:
            self._left -= gpus * promised
        if end < inf:
            heappush(self._returns, (end, gpus * (promised - takes)))
            heappush(self._returns, (end + self._window, gpus * takes))


def _budget(limits: Limits, usage: Usage, now: datetime, held: Iterable[Ending], *, late: bool) -> Budget | None:
    if limits.gpu_seconds is None:
        return None
    spread = 0.0 if late else _DAY  # what was used in a day leaves the window over a day, of which the end is told
    returns = [(max((at - now).total_seconds() - spread, 0.0), float(back)) for at, back in usage.returns]
    found = Budget(limits.gpu_seconds - usage.gpu_seconds, returns, limits.window_days * _DAY)
    for ending in held:
        end, run = ending.late if late else ending.early, ending.run
        if run.ends_by is None or run.goes_on:  # what goes on is among them once more, as it will run
            continue
        promised = max((run.ends_by - now).total_seconds(), 0.0)
        found.holds(run.milli, promised, end, end, known=run.run != 0)
    return found


def levels(
    limits: Mapping[int, Limits], usage: Mapping[int, Usage], now: datetime, ends: Iterable[Ending],
    hardware: Hardware, whose: Callable[[Running], int],
) -> tuple[dict[int, Level], dict[int, Level]]:  # fmt: skip
    """By user or team, of those whose quotas may hold jobs back for a time: as runs end early, and late.

    `usage` is without what `ends` has started since.
    """
    held: dict[int, list[Ending]] = {
        pk: [] for pk, limit in limits.items()
        if limit.gpus is not None or limit.running_jobs is not None or limit.gpu_seconds is not None or _has_more(limit)
    }  # fmt: skip
    for end in ends:
        mine = held.get(whose(end.run))
        if mine is not None:
            mine.append(end)
    milli = {pk: sum([end.milli for end in found]) for pk, found in held.items()}
    early, late = (
        {
            pk: Level(
                limits[pk], found, milli[pk], hardware,
                _budget(limits[pk], usage.get(pk, _NOTHING), now, found, late=late), late=late,
            ) for pk, found in held.items()
        } for late in (False, True)
    )  # fmt: skip
    return early, late


def _has_more(limits: Limits) -> bool:
    bounds = limits.millicpus, limits.memory_mib, limits.interactive_jobs
    return bool(limits.gpus_by_model) or any(bound is not None for bound in bounds)


def _bounds(limits: Limits) -> Iterator[_Bound]:
    for of, most in (("millicpus", limits.millicpus), ("memory_mib", limits.memory_mib),
                     ("interactive", limits.interactive_jobs)):  # fmt: skip
        if most is not None:
            yield _Bound(most, attrgetter(of))
