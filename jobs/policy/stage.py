"""What a rehearsal begins with: GPUs, runs, jobs and quotas in plain numbers, made once for all plays. Pure.

Times in seconds from now, GPUs in thousandths. The GPUs of one kind on one node are a group; each node has a group
without GPUs too, for jobs that need none.
"""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from math import exp, inf, log
from statistics import NormalDist
from typing import NamedTuple

from jobs.policy.hardware import kind_of
from jobs.policy.ledger import is_asked_for, slots_of
from jobs.policy.order import effective_class
from jobs.policy.past import HIGH
from jobs.policy.view import WHOLE, Gpu, Node, Placement, Plan, Running, Snapshot, Waiting
from jobs.quotas import least_milli

PLAYS = 16
MOST_WAITING = 200
DAY = 86400.0
QUICK = 0.1  # of its limit: how soon a job ends at the earliest of which nothing is known

_LUCKS = tuple(NormalDist().inv_cdf((n + 0.5) / PLAYS) for n in range(PLAYS))
_APART = 2 * NormalDist().inv_cdf(HIGH)  # a low and a high quantile, in standard deviations


Line = tuple[bool, int, int, int]  # not pinned, class reversed, team, user


class Job(NamedTuple):
    """A job that is to start."""

    id: int
    line: Line
    place: tuple[float, int]  # in its line
    comes: float  # from when on it may start
    need: int
    where: tuple[int, ...]  # groups that would do
    shape: int  # jobs of one shape fit in the same places
    millicpus: int
    memory_mib: int
    limit: float
    likely: float  # how long fair shares expect it to take
    takes: tuple[float, ...]  # how long it takes in each play
    blocked: float | None  # since when nothing but room holds it back


class Run(NamedTuple):
    """What holds something until it ends."""

    number: int  # of its job
    team: int
    user: int
    node: int | None  # None: it is not open
    millicpus: int
    memory_mib: int
    milli: int
    holds: tuple[tuple[int, int], ...]  # group, thousandths: where open nodes have them
    due: float  # when its limit ends it
    likely: float  # until when fair shares expect it to run
    ends: tuple[float, ...]  # in each play


class Hosts:
    """The open nodes by number, and their groups: the first are those without GPUs."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = [node for node in nodes if node.closed is None]
        self.number = {node.name: number for number, node in enumerate(self.nodes)}
        self.millicpus = [node.millicpus for node in self.nodes]
        self.memory_mib = [node.memory_mib for node in self.nodes]
        self.node_of = list(range(len(self.nodes)))
        self._cards: list[Gpu | None] = [None] * len(self.nodes)
        self._place: dict[str, tuple[int, int]] = {}  # by GPU UUID: its group, and how many slots it has
        for number, node in enumerate(self.nodes):
            self._add(number, node)
        sizes = Counter(group for group, _slots in self._place.values())
        self._whole = [sizes[group] * WHOLE for group in range(len(self._cards))]
        self.free = self._whole.copy()

    def _add(self, number: int, node: Node) -> None:
        here: dict[object, int] = {}
        for gpu in node.gpus:
            if gpu.unavailable is not None:
                continue
            group = here.setdefault(kind_of(gpu), len(self._cards))
            if group == len(self._cards):
                self._cards.append(gpu)
                self.node_of.append(number)
            self._place[gpu.uuid] = group, gpu.slots

    def hold(self, node: str, slots: Mapping[str, int], millicpus: int, memory_mib: int) -> tuple[tuple[int, int], ...]:
        """Take it all from what is free. Returns the thousandths by group."""
        found = Counter[int]()
        for uuid, taken in slots.items():
            if uuid in self._place:
                group, whole = self._place[uuid]
                found[group] += taken * WHOLE // whole
        for group, milli in found.items():
            self.free[group] -= milli
        number = self.number.get(node)
        if number is not None:
            self.millicpus[number] -= millicpus
            self.memory_mib[number] -= memory_mib
        return tuple(found.items())

    def where(self, job: Waiting) -> tuple[int, ...]:
        """The groups on which the job would fit, were they empty."""
        need = least_milli(job)
        return tuple(
            group for group, (card, number) in enumerate(zip(self._cards, self.node_of, strict=True))
            if self._whole[group] >= need and (card is None if not job.gpus else card and is_asked_for(card, job))
            and _holds(self.nodes[number], job)
        )  # fmt: skip

    def card(self, uuid: str) -> Gpu | None:
        return self._cards[self._place[uuid][0]] if uuid in self._place else None


def _holds(node: Node, job: Waiting) -> bool:
    return job.labels <= node.labels and job.millicpus <= node.millicpus and job.memory_mib <= node.memory_mib


class Stage:
    """The picture once the plan's starts are made, with the first `MOST_WAITING` of the queue."""

    def __init__(self, snapshot: Snapshot, plan: Plan, recent: Sequence[Waiting]) -> None:
        """`recent`: jobs of the last days as they were submitted, oldest first."""
        self.snapshot, self.now, self._recent = snapshot, snapshot.now, recent
        self.hosts = Hosts(snapshot.nodes)
        self._shapes: dict[object, tuple[int, tuple[int, ...]]] = {}
        jobs = {job.id: job for job in snapshot.waiting}
        self.runs = [self._run(run) for run in (*snapshot.running, *plan.going_on)]
        self.runs += [self._started(jobs.pop(placed.job), placed) for placed in plan.placements]
        ready = [jobs[pk] for pk in plan.order if pk in jobs and not jobs[pk].held_by]
        self.waiting = [job for job in map(self._job, ready[:MOST_WAITING]) if job.where]
        self._came = [self._in(job.queued_at) for job in recent]
        self._again: dict[int, Job] = {}

    def arrivals(self, play: int) -> Iterator[Job]:
        """Jobs as they came from this hour on, one or some days ago by the play; over and over."""
        days = int(-self._came[0] // DAY) if self._came else 0
        if not days:
            return
        back = (1 + play % days) * DAY
        begin = bisect_left(self._came, -back)
        if begin == len(self._came):
            return
        for times in count(1):
            for number in range(begin, len(self._came)):
                job = self._arrived(number)
                if job.where:
                    comes = self._came[number] + back * times
                    yield job._replace(id=-job.id * times, comes=comes, place=(comes, job.id))

    def _arrived(self, number: int) -> Job:
        found = self._again.get(number)
        if found is None:
            found = self._again[number] = self._job(self._recent[number])
        return found

    def _in(self, at: datetime) -> float:
        return (at - self.now).total_seconds()

    def _run(self, run: Running) -> Run:
        due = inf if run.ends_by is None else max(self._in(run.ends_by), 0.0)
        low, high = (QUICK * due, due) if run.likely is None else (self._in(at) for at in run.likely)
        ends = (0.0,) * PLAYS if run.stopping else _lengths(run.job, low, high, due)
        holds = self.hosts.hold(run.node, run.slots, run.millicpus, run.memory_mib)
        return Run(
            number=run.job, team=run.team, user=run.user, node=self.hosts.number.get(run.node),
            millicpus=run.millicpus, memory_mib=run.memory_mib, milli=run.milli, holds=holds, due=due,
            likely=max(min(high, due), 0.0), ends=ends,
        )  # fmt: skip

    def _started(self, job: Waiting, placed: Placement) -> Run:
        made, slots = self._job(job), {}
        for uuid in placed.gpu_uuids:
            card = self.hosts.card(uuid)
            slots[uuid] = 1 if card is None else slots_of(job, card)
        holds = self.hosts.hold(placed.node, slots, job.millicpus, job.memory_mib)
        return Run(
            number=job.id, team=job.team, user=job.user, node=self.hosts.number.get(placed.node),
            millicpus=job.millicpus, memory_mib=job.memory_mib, milli=job.milli_of(len(slots)), holds=holds,
            due=made.limit, likely=made.likely, ends=made.takes,
        )  # fmt: skip

    def _job(self, job: Waiting) -> Job:
        limit = inf if job.limit_seconds is None else float(job.limit_seconds)
        low, high = (QUICK * limit, limit) if job.likely_seconds is None else job.likely_seconds
        shape, where = self._shape(job)
        rank = effective_class(job, self.now, self.snapshot.rules)
        return Job(
            id=job.id, line=(not job.pinned, -rank, job.team, job.user), place=(self._in(job.queued_at), job.id),
            comes=0.0 if job.start_after is None else self._in(job.start_after), need=least_milli(job), where=where,
            shape=shape, millicpus=job.millicpus, memory_mib=job.memory_mib, limit=limit, likely=min(high, limit),
            takes=_lengths(job.id, low, high, limit),
            blocked=None if job.blocked_since is None else self._in(job.blocked_since),
        )  # fmt: skip

    def _shape(self, job: Waiting) -> tuple[int, tuple[int, ...]]:
        found = self._shapes.get(job.shape)
        if found is None:
            found = self._shapes[job.shape] = len(self._shapes), self.hosts.where(job)
        return found


def _lengths(job: int, low: float, high: float, most: float) -> tuple[float, ...]:
    """How long it takes in each play, by the logarithmic normal law with these quantiles.

    Each play has its own part of the law, and which play has which depends on the job alone.
    """
    if high == inf:
        return (inf,) * PLAYS
    begin, end = log(max(low, 1.0)), log(max(low, high, 1.0))
    middle, apart = (begin + end) / 2, (end - begin) / _APART
    lucks = random.Random(job).sample(_LUCKS, PLAYS)  # noqa: S311 no secret: the same job has the same luck
    return tuple(min(exp(middle + apart * luck), most) for luck in lucks)
