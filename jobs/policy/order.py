"""The order of the queue. Pure.

Pinned jobs, then by class (priority, lifted by waiting), then those within their soft GPU-hour mark, then by fair
share, then who is longest in the queue: strictly first come, first served among equals.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Self

from jobs.policy import fairtree
from jobs.policy.view import Rules, Snapshot, Waiting
from jobs.quotas import Limits, Usage

Key = tuple[bool, int, bool, float, float, datetime, int, "_Line"]  # no two jobs share an id: lines never compare

Standing = tuple[bool, float, float]


def in_order(snapshot: Snapshot) -> list[Waiting]:
    """All waiting jobs, first to start first, held ones too, as far as nothing is given away meanwhile."""
    return list(Queue(snapshot))


def effective_class(job: Waiting, now: datetime, rules: Rules) -> int:
    """The priority, one class up for each `lift_after` that the job has waited since it might start.

    What its owner held it for does not count, else a hold would be a way to jump the queue.

    So the wait is bounded: no stream of new jobs stays ahead for ever. Nothing caps the class.
    """
    if not rules.lift_after:
        return job.priority
    since = max(job.queued_at, job.start_after or job.queued_at, job.released_at or job.queued_at)
    return job.priority + max(int((now - since).total_seconds() // rules.lift_after), 0)


class Queue:
    """The jobs of a snapshot, each once: an iterator that sees at each step what has been charged until then."""

    def __init__(
        self, snapshot: Snapshot, jobs: Iterable[Waiting] | None = None, standings: "Standings | None" = None
    ) -> None:
        """`jobs`: only these of the waiting ones; `standings` as they are by now, which charges change."""
        self._standings = Standings(snapshot) if standings is None else standings
        lines: dict[tuple[bool, int, int, int], list[Waiting]] = defaultdict(list)
        lifted, now, rules = snapshot.rules.lift_after, snapshot.now, snapshot.rules
        for job in snapshot.waiting if jobs is None else jobs:
            rank = effective_class(job, now, rules) if lifted else job.priority
            lines[job.pinned, rank, job.team, job.user].append(job)
        self._heap = [self._key(_Line(*whose, _last_first(jobs))) for whose, jobs in lines.items()]
        heapq.heapify(self._heap)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Waiting:
        """The first of the lines' heads. Keys only ever grow, so a stale one is mended when it comes to the top."""
        while self._heap:
            key = self._heap[0]
            line = key[-1]
            if line.charges != self._standings.charges and (fresh := self._key(line)) != key:
                self._put_back(fresh)
                continue
            job = line.jobs.pop()
            if line.jobs:
                self._put_back(self._key(line))
            else:
                heapq.heappop(self._heap)
            return job
        raise StopIteration

    def _put_back(self, key: Key) -> None:
        """The first line has this key now. Most stay first, which two looks tell."""
        heap = self._heap
        if len(heap) > 2 and key < heap[1] and key < heap[2]:
            heap[0] = key
        else:
            heapq.heapreplace(heap, key)

    def charge(self, job: Waiting, gpus: int | None = None) -> None:
        """The job starts, with `gpus` where it is elastic: its owner and team stand further back for the rest."""
        self._standings.charge(job, gpus)

    def _key(self, line: "_Line") -> Key:
        if line.charges != self._standings.charges:
            line.charges = self._standings.charges
            line.standing = self._standings.of(line.team, line.user)
        head = line.jobs[-1]
        return (not line.pinned, -line.rank, *line.standing, head.queued_at, head.id, line)


def _last_first(jobs: list[Waiting]) -> list[Waiting]:
    return sorted(jobs, key=attrgetter("queued_at", "id"), reverse=True) if len(jobs) > 1 else jobs


class Standings:
    """Who stands further back for what they have: soft marks and fair shares, with all that was charged."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tree = fairtree.tree_of(snapshot)
        self._marks, self._weights = _Marks(snapshot), snapshot.rules.weights
        self._known: dict[tuple[int, int], Standing] = {}
        self.charges = 0

    def charge(self, job: Waiting, gpus: int | None = None) -> None:
        self.charges += 1
        self._known.clear()
        self._tree.charge(job.team, job.user, fairtree.to_take(job, gpus, self._weights))
        self._marks.charge(job, gpus)

    def of(self, team: int, user: int) -> Standing:
        """Whether a soft mark is passed, and the loads of both levels: the smaller goes first."""
        found = self._known.get((team, user))
        if found is None:
            found = self._known[team, user] = self._marks.beyond(team, user), *self._tree.load(team, user)
        return found


@dataclass
class _Line:
    """Jobs of one owner in one team and class, the first to start last."""

    pinned: bool
    rank: int
    team: int
    user: int
    jobs: list[Waiting]
    charges: int = -1  # how many the key in the heap, and `standing`, know of
    standing: Standing = (False, 0.0, 0.0)


class _Marks:
    """Who has passed a soft GPU-hour mark, their own or the team's."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._users = _left(snapshot.user_limits, snapshot.user_usage)
        self._teams = _left(snapshot.team_limits, snapshot.team_usage)

    def beyond(self, team: int, user: int) -> bool:
        if not self._users and not self._teams:
            return False
        return self._users.get(user, 1.0) <= 0 or self._teams.get(team, 1.0) <= 0

    def charge(self, job: Waiting, gpus: int | None) -> None:
        seconds = job.milli_of(gpus) / 1000 * (job.limit_seconds or 0)
        for left, pk in ((self._users, job.user), (self._teams, job.team)):
            if pk in left:
                left[pk] -= seconds


def _left(limits: dict[int, Limits], usage: dict[int, Usage]) -> dict[int, float]:
    """GPU-seconds that are left until the soft mark of those who have one."""
    return {
        pk: limit.gpu_seconds_soft - usage.get(pk, Usage()).gpu_seconds
        for pk, limit in limits.items() if limit.gpu_seconds_soft is not None
    }  # fmt: skip
