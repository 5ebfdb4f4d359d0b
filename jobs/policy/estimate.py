"""When each waiting job should start: the queue, in order, on the GPUs as they become free. Pure.

List scheduling, twice. Early: runs end, and jobs take, as long as like jobs at the quick end did, and a short job
slips in before a reservation. Late: everything takes its time limit, or the slow end of what like jobs took where
that is shorter, and nobody slips in. Where nothing is known the early way takes a tenth of the limit.

GPUs are kept in groups: those of one kind on one node. A job takes the group that has enough soonest; what it
costs is the logarithm of the number of groups. Shares of GPUs are fitted into GPUs opened for shares, wherever the
part that is left is enough. Quotas hold a user's or team's jobs back until enough of their earlier ones have ended, or
enough of their GPU-hours have left the window of a budget. CPUs and memory are looked at only for jobs without GPUs,
summed over all open nodes. A job that only closed nodes could take is not dated: nobody knows when they open.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from operator import attrgetter
from typing import NamedTuple

from jobs.policy.gaps import Gaps
from jobs.policy.hardware import GpuKind, Hardware, kind_of
from jobs.policy.ledger import Ledger, least, shares
from jobs.policy.levels import Level, levels
from jobs.policy.slack import Tight
from jobs.policy.view import WHOLE, Expected, Gpu, Running, Snapshot, Waiting
from jobs.quotas import Limits, least_milli

FARTHEST = 100 * 365 * 86400.0  # seconds: what starts after so long is not dated. Limits may add up beyond any calendar
_QUICK = 0.1  # of its time limit: how soon a job ends at the earliest when no like jobs are known


def expected(
    snapshot: Snapshot,
    line: Sequence[Waiting],
    started: Iterable[Running],
    hardware: Hardware,
    tight: Tight,
    *,
    only: Collection[int] | None = None,
    unsure: Collection[int] = (),
) -> dict[int, Expected]:
    """The range for each job of `line`, which are those still waiting, in order; `only` for these where given.

    `started` are the runs that this pass starts; `tight` is of the snapshot. `latest` is None for the `unsure`, whose
    gates open nobody knows when, and for jobs on hold or that no open node could take, which hold back nobody else.
    """
    now = snapshot.now
    ends = [_Ending(run, *_ends(run, now), run.milli) for run in (*snapshot.running, *started)]
    early, late = _courses(snapshot, ends, hardware, tight)
    asks: dict[object, tuple[_Ask, _Ask]] = {}
    found: dict[int, Expected] = {}
    for job in line:
        ask = asks.get(job.shape)
        if ask is None:
            ask = asks[job.shape] = _Ask(job, hardware, early.pools), _Ask(job, hardware, late.pools)
        soon, far = 0.0, inf
        if ask[0].open and not job.held_by:
            quick, slow = _takes(job)
            soonest = 0.0 if job.start_after is None else max((job.start_after - now).total_seconds(), 0.0)
            soon, far = early.start(job, ask[0], soonest, quick), late.start(job, ask[1], soonest, slow)
        if only is None or job.id in only:
            found[job.id] = _range(now, min(soon, far), inf if job.id in unsure else far)
    return found


def _range(now: datetime, soon: float, far: float) -> Expected:
    """In `soon` seconds at the earliest and in `far` at the latest; of what is beyond FARTHEST nothing is known."""
    earliest = now if soon == 0.0 or soon > FARTHEST else now + timedelta(0, soon)
    if far > FARTHEST:
        return Expected(earliest, None)
    return Expected(earliest, earliest if far == soon else now + timedelta(0, far))


class _Ending(NamedTuple):
    """A run, in how many seconds it ends early and late, and what it holds of GPUs in thousandths."""

    run: Running
    early: float
    late: float
    milli: int


def _ends(run: Running, now: datetime) -> tuple[float, float]:
    if run.stopping:
        return 0.0, 0.0
    limit = inf if run.ends_by is None else max((run.ends_by - now).total_seconds(), 0.0)
    if run.likely is None:
        return (0.0 if limit == inf else limit * _QUICK), limit
    early, late = run.likely
    return _within((early - now).total_seconds(), limit), _within((late - now).total_seconds(), limit)


def _within(seconds: float, limit: float) -> float:
    """From now on, and no longer than the limit."""
    return 0.0 if seconds < 0.0 else min(seconds, limit)


def _takes(job: Waiting) -> tuple[float, float]:
    """How long the job runs early and late."""
    limit = inf if job.limit_seconds is None else float(job.limit_seconds)
    if job.likely_seconds is not None:
        return min(job.likely_seconds[0], limit), min(job.likely_seconds[1], limit)
    return (0.0 if limit == inf else limit * _QUICK), limit


def _courses(
    snapshot: Snapshot, ends: Sequence[_Ending], hardware: Hardware, tight: Tight
) -> tuple["_Course", "_Course"]:
    pools = _pools(hardware, ends)
    limits, now = _of(snapshot.user_limits, tight.users), snapshot.now
    users = levels(limits, snapshot.user_usage, now, ends, hardware, attrgetter("user"))
    limits = _of(snapshot.team_limits, tight.teams)
    teams = levels(limits, snapshot.team_usage, now, ends, hardware, attrgetter("team"))
    early, late = (_Course(hardware, ends, pools[late], users[late], teams[late], late=late) for late in (False, True))
    return early, late


def _of(limits: Mapping[int, Limits], tight: Collection[int]) -> dict[int, Limits]:
    return {pk: limits[pk] for pk in tight}


class _Course:
    """One way that things may go: when GPUs, and users' and teams' quotas, become free. Seconds from now."""

    def __init__(
        self, hardware: Hardware, ends: Sequence[_Ending], pools: dict["_Key", "_Pool"], users: dict[int, Level],
        teams: dict[int, Level], *, late: bool,
    ) -> None:  # fmt: skip
        self._hardware, self._ends, self._late = hardware, ends, late
        self.pools, self._users, self._teams = pools, users, teams

    def start(self, job: Waiting, ask: "_Ask", soonest: float, takes: float) -> float:
        """When the job starts; from then on it holds what it takes. inf: never, as far as one can see."""
        user, team = self._users.get(job.user), self._teams.get(job.team)
        if user is not None:
            soonest = user.ready(job, ask.milli, soonest)
        if team is not None:
            soonest = team.ready(job, ask.milli, soonest)
        if soonest == inf:
            return inf
        if ask.is_share:
            at = _take_part(ask.pools, ask.milli, soonest, takes)
        elif ask.count:
            at = _take_soonest(ask.pools, ask.count, soonest, takes)
        else:
            at = self._host.take(job, soonest, takes)
        if at < inf:
            if user is not None:
                user.take(job, ask.milli, at + takes, takes)
            if team is not None:
                team.take(job, ask.milli, at + takes, takes)
        return at

    @cached_property
    def _host(self) -> "_Host":
        return _Host(self._hardware, [(end.late if self._late else end.early, end.run) for end in self._ends])


class _Ask:
    """What jobs of one shape take, and the pools of a course that would do."""

    def __init__(self, job: Waiting, hardware: Hardware, pools: dict["_Key", "_Pool"]) -> None:
        self.open = hardware.some_open(job)
        self.is_share, self.count, self.milli = shares(job), least(job), least_milli(job)
        kinds = hardware.suiting(job)
        self.pools = [pool for key, pool in pools.items() if key[0] in kinds and job.labels <= key[1]]


def _take_part(pools: Sequence["_Pool"], milli: int, soonest: float, takes: float) -> float:
    """Take a share of a GPU where it is free first, as far as a glance tells, and say from when."""
    if not pools:
        return inf
    pool = _first_part(pools, milli) if len(pools) > 1 else pools[0]
    return pool.take_part(milli, soonest, takes)


def _first_part(pools: Sequence["_Pool"], milli: int) -> "_Pool":
    best, found = inf, pools[0]
    for pool in pools:
        free = pool.part_free(milli)
        if free < best:
            best, found = free, pool
            if free <= 0.0:
                break
    return found


def _take_soonest(pools: Sequence["_Pool"], count: int, soonest: float, takes: float) -> float:
    """Take so many GPUs where they are free first, and say from when."""
    if not pools:
        return inf
    found = pools[0]
    at, gap = found.free(count, soonest, takes)
    for pool in pools[1:] if at > soonest else ():
        if at <= soonest:
            break
        free = pool.free(count, soonest, takes)
        if free[0] < at:
            (at, gap), found = free, pool
    found.take(count, at, gap, takes)
    return at


class _Pool:
    """The GPUs of one kind on nodes of one set of labels, in groups a node: when each becomes free."""

    def __init__(self, groups: list[list[float]], parts: list[tuple[float, int]], *, gaps: bool) -> None:
        self._groups = groups  # each sorted; none of its times ever gets less
        self._heads: dict[int, list[tuple[float, int]]] = {}  # by count: (when a group has so many, its number)
        self._soonest: dict[int, float] = {}  # by count: from when the first group has so many
        self._parts = parts  # (from when, thousandths of one GPU that is shared)
        heapify(self._parts)
        self._gaps = Gaps() if gaps else None

    def free(self, count: int, soonest: float, takes: float) -> tuple[float, int]:
        """From when so many GPUs of one group are free, and in which gap; -1: after all that was taken so far."""
        head = self._soonest.get(count)
        if head is None:
            head = self._head(count)
        if head <= soonest:
            return soonest, -1
        if self._gaps is not None:
            gap = self._gaps.free(count, soonest, takes)
            if gap[0] < head:
                return gap
        return head, -1

    def take(self, count: int, at: float, gap: int, takes: float) -> None:
        """Take what `free` found."""
        until = at + takes
        if gap >= 0 and self._gaps is not None:
            self._gaps.take(count, gap, until)
            return
        if at == inf:
            return
        group = self._groups[self._heads[count][0][1]]
        self._soonest.clear()
        if self._gaps is not None and group[0] < at:
            self._gaps.add(group[:count], at)
        del group[:count]
        place = len(group)
        while place and group[place - 1] > until:
            place -= 1
        group[place:place] = [until] * count

    def _head(self, count: int) -> float:
        """From when the first group has so many. What stands in the heap may be out of date: too early, never late."""
        found = self._soonest.get(count)
        if found is None:
            heap, groups = self._heads.get(count), self._groups
            if heap is None:
                heap = self._heads[count] = self._ranked(count)
            while heap and (time := groups[heap[0][1]][count - 1]) != heap[0][0]:
                heapreplace(heap, (time, heap[0][1]))
            found = self._soonest[count] = heap[0][0] if heap else inf
        return found

    def _ranked(self, count: int) -> list[tuple[float, int]]:
        heap = [(group[count - 1], number) for number, group in enumerate(self._groups) if len(group) >= count]
        heapify(heap)
        return heap

    def part_free(self, milli: int) -> float:
        """From when a share of a GPU is free, as far as a glance tells."""
        head = self._soonest.get(1)
        if head is None:
            head = self._head(1)
        if self._parts:
            begin, size = self._parts[0]
            if begin < head and size >= milli:
                return begin
        return head

    def take_part(self, milli: int, soonest: float, takes: float) -> float:
        """Take a share of a GPU that is shared already, or open another one, and say from when."""
        too_small: list[tuple[float, int]] = []
        whole = self._head(1)
        while self._parts and self._parts[0][0] <= whole and self._parts[0][1] < milli and len(too_small) < 4:
            too_small.append(heappop(self._parts))
        if self._parts and self._parts[0][0] <= whole and self._parts[0][1] >= milli:
            begin, size = heappop(self._parts)
            at = max(begin, soonest)
        else:
            size = WHOLE
            at = max(whole, soonest)
            self.take(1, at, -1, takes)
        for part in too_small:
            heappush(self._parts, part)
        if at < inf:
            heappush(self._parts, (at + takes, milli))
            if size > milli:
                heappush(self._parts, (at, size - milli))
        return at


_Key = tuple[GpuKind, frozenset[str]]
_Pools = dict[_Key, _Pool]
_Holds = tuple[float, float, int]  # when a run ends early and late, and the slots of one GPU that it holds


def _pools(hardware: Hardware, ends: Iterable[_Ending]) -> tuple[_Pools, _Pools]:
    """As they stand, early and late: each GPU free from when its last run ends, or in parts where it is shared."""
    held: dict[str, list[_Holds]] = defaultdict(list)
    for run, early, late, _milli in ends:
        for uuid, slots in run.slots.items():
            held[uuid].append((early, late, slots))
    groups: dict[_Key, list[list[list[_Holds]]]] = defaultdict(list)
    cut: dict[_Key, list[_Cut]] = defaultdict(list)
    for kind in hardware.kinds:
        for ledger in kind.open:
            for gpu_kind, gpus in _alike(ledger):
                found = [held.get(gpu.uuid, _IDLE) for gpu in gpus]
                groups[gpu_kind, kind.labels].append(found)
                if gpus[0].slots > 1:
                    cut[gpu_kind, kind.labels] += _cut(gpus[0].slots, found)
    return _course_pools(groups, cut, late=False), _course_pools(groups, cut, late=True)


_IDLE: list[_Holds] = []


def _alike(ledger: Ledger) -> Iterable[tuple[GpuKind, Sequence[Gpu]]]:
    """The node's GPUs that are well, by kind."""
    gpus = [gpu for gpu in ledger.node.gpus if gpu.unavailable is None]
    if not gpus:
        return ()
    if ledger.layout.only is not None:
        return ((kind_of(gpus[0]), gpus),)
    found: dict[GpuKind, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        found[kind_of(gpu)].append(gpu)
    return found.items()


def _course_pools(groups: dict[_Key, list[list[list[_Holds]]]], cut: dict[_Key, list["_Cut"]], *, late: bool) -> _Pools:
    pools = {}
    for key, found in groups.items():
        parts = [part for shared in cut.get(key, ()) for part in _parts(*shared, late=late)]
        ends = [
            sorted([holds[0][late] if len(holds) == 1 else _until(holds, late) for holds in here]) for here in found
        ]
        pools[key] = _Pool(ends, parts, gaps=not late)
    return pools


def _until(holds: Sequence[_Holds], late: int) -> float:
    """When the last of the runs ends; 0 where there is none."""
    return max([hold[late] for hold in holds], default=0.0)


_Cut = tuple[int, int, list[_Holds]]  # the slots of a GPU, how many of them are free, and what holds the others


def _cut(slots: int, gpus: Iterable[list[_Holds]]) -> Iterator[_Cut]:
    """Those of the GPUs that are held, but not by one run as a whole."""
    for holds in gpus:
        if holds:
            free = slots - (holds[0][2] if len(holds) == 1 else sum(hold[2] for hold in holds))
            if free > 0 or len(holds) > 1:
                yield slots, free, holds


def _parts(slots: int, free: int, holds: Sequence[_Holds], *, late: bool) -> list[tuple[float, int]]:
    """From when so many thousandths of a GPU are free."""
    found = [(hold[late], hold[2] * WHOLE // slots) for hold in holds]
    return [*found, (0.0, free * WHOLE // slots)] if free > 0 else found


class _Host:
    """CPUs and memory of all open nodes together, for jobs without GPUs."""

    def __init__(self, hardware: Hardware, ends: Iterable[tuple[float, Running]]) -> None:
        opened = [ledger for kind in hardware.kinds for ledger in kind.open]
        names = {ledger.node.name for ledger in opened}
        self._millicpus = max((ledger.millicpus for ledger in opened), default=0)
        self._memory_mib = max((ledger.memory_mib for ledger in opened), default=0)
        self._freed = [(end, run.millicpus, run.memory_mib) for end, run in ends if run.node in names]
        heapify(self._freed)
        self._at = 0.0

    def take(self, job: Waiting, soonest: float, takes: float) -> float:
        while self._millicpus < job.millicpus or self._memory_mib < job.memory_mib:
            if not self._freed or self._freed[0][0] == inf:
                return inf
            self._at, millicpus, memory_mib = heappop(self._freed)
            self._millicpus += millicpus
            self._memory_mib += memory_mib
        self._millicpus -= job.millicpus
        self._memory_mib -= job.memory_mib
        at = max(self._at, soonest)
        heappush(self._freed, (at + takes, job.millicpus, job.memory_mib))
        return at
