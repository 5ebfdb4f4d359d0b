"""Whose turn it is in a pass: the queue, and who goes before it. Pure.

First the jobs that others make way for, and those on their way to other GPUs, so that nobody takes what is freed or
kept for them; then pinned ones; then those that stay within their team's guaranteed GPUs, since else guaranteed work
would only ever start by stopping what has just borrowed its GPUs; then all the rest. Within each the queue's order.
"""

from collections.abc import Callable, Iterable, Iterator

from jobs.policy.guarantee import Guarantees
from jobs.policy.kinds import as_charged
from jobs.policy.order import Queue, Standings
from jobs.policy.view import Snapshot, Waiting

Which = Callable[[Waiting], bool]


def whole(snapshot: Snapshot) -> list[Waiting]:
    """All waiting jobs in the order that a pass looks at them, as far as nothing is given away meanwhile."""
    snapshot = as_charged(snapshot)
    guarantees = Guarantees(snapshot)
    held = {team: usage.gpu_milli for team, usage in snapshot.team_usage.items()}
    return list(Turns(snapshot, lambda job: guarantees.entitled(job, held.get(job.team, 0))))


class Turns:
    """All waiting jobs, each once, by what has been charged until then.

    `entitled` tells at that moment whether a job would leave its team within its guaranteed GPUs.
    """

    def __init__(self, snapshot: Snapshot, entitled: Which) -> None:
        self._snapshot, self._entitled = snapshot, entitled
        self._guarantees = Guarantees(snapshot)
        self._promised = {run.makes_way_for for run in snapshot.running}
        self._promised |= {job.yields_to for job in snapshot.waiting}
        self._promised |= {job.id for job in snapshot.waiting if job.moved}
        self._standings = Standings(snapshot)

    def __iter__(self) -> Iterator[Waiting]:
        first, rest = _parted(self._snapshot.waiting, lambda job: job.id in self._promised)
        yield from self._in_order(first)
        first, rest = _parted(rest, lambda job: job.pinned)
        yield from self._in_order(first)
        first, rest = _parted(rest, lambda job: self._guarantees.of(job.team) > 0)
        for job in self._in_order(first):
            if self._entitled(job):
                yield job
            else:
                rest.append(job)
        yield from self._in_order(rest)

    def charge(self, job: Waiting, gpus: int) -> None:
        """The job starts with so many GPUs: its owner and team stand further back for the rest."""
        self._standings.charge(job, gpus)

    def _in_order(self, jobs: list[Waiting]) -> Queue:
        return Queue(self._snapshot, jobs, self._standings)


def _parted(jobs: Iterable[Waiting], which: Which) -> tuple[list[Waiting], list[Waiting]]:
    yes: list[Waiting] = []
    no: list[Waiting] = []
    for job in jobs:
        (yes if which(job) else no).append(job)
    return yes, no
