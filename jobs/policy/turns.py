"""Whose turn it is in a pass: the queue, and who goes before it. Pure.

First the jobs that others make way for, so that nobody takes what is being freed for them; then pinned ones; then
those that stay within their team's guaranteed GPUs, since else guaranteed work would only ever start by stopping
what has just borrowed its GPUs; then all the rest. Within each the queue's order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jobs.policy.order import Queue
from jobs.policy.view import Snapshot, Waiting

Which = Callable[[Waiting], bool]


class Turns:
    """All waiting jobs, each once, by what has been charged until then."""

    def __init__(self, snapshot: Snapshot, *, promised: Which, guaranteed: Which, entitled: Which) -> None:
        """`guaranteed`: whether the job's team has guaranteed GPUs; `entitled`: whether it still stays within them."""
        self._snapshot = snapshot
        self._promised, self._guaranteed, self._entitled = promised, guaranteed, entitled
        self._queue: Queue | None = None
        self._charged: list[tuple[Waiting, int]] = []

    def __iter__(self) -> Iterator[Waiting]:
        first, rest = _parted(self._snapshot.waiting, self._promised)
        yield from self._in_order(first)
        first, rest = _parted(rest, lambda job: job.pinned)
        yield from self._in_order(first)
        first, rest = _parted(rest, self._guaranteed)
        for job in self._in_order(first):
            if self._entitled(job):
                yield job
            else:
                rest.append(job)
        yield from self._in_order(rest)

    def charge(self, job: Waiting, gpus: int) -> None:
        """The job starts with so many GPUs: its owner and team stand further back for the rest."""
        self._charged.append((job, gpus))
        if self._queue is not None:
            self._queue.charge(job, gpus)

    def _in_order(self, jobs: list[Waiting]) -> Iterator[Waiting]:
        if not jobs:
            return
        self._queue = Queue(replace(self._snapshot, waiting=tuple(jobs)))
        for job, gpus in self._charged:
            self._queue.charge(job, gpus)
        yield from self._queue


def _parted(jobs: Iterable[Waiting], which: Which) -> tuple[list[Waiting], list[Waiting]]:
    yes: list[Waiting] = []
    no: list[Waiting] = []
    for job in jobs:
        (yes if which(job) else no).append(job)
    return yes, no
