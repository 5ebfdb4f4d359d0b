"""Whose turn it is in a pass: the queue, and who goes before it. Pure.

First the jobs that others make way for, and those on their way to other GPUs, so that nobody takes what is freed or
kept for them; then pinned ones; then those that stay within their team's guaranteed GPUs, since else guaranteed work
would only ever start by stopping what has just borrowed its GPUs; then all the rest. Within each the queue's order.
"""

from collections.abc import Iterator, Mapping

from jobs.policy.guarantee import Guarantees
from jobs.policy.kinds import as_charged
from jobs.policy.order import Queue, Standings
from jobs.policy.view import Snapshot, Waiting
from jobs.quotas import Usage


def whole(snapshot: Snapshot) -> list[Waiting]:
    """All waiting jobs in the order that a pass looks at them, as far as nothing is given away meanwhile."""
    snapshot = as_charged(snapshot)
    return list(Turns(snapshot, snapshot.team_usage, Guarantees(snapshot)))


class Turns:
    """All waiting jobs, each once, by what has been charged until then, and by what `teams` hold at that moment."""

    def __init__(self, snapshot: Snapshot, teams: Mapping[int, Usage], guarantees: Guarantees) -> None:
        self._snapshot, self._teams, self._guarantees = snapshot, teams, guarantees
        self._promised = {run.makes_way_for for run in snapshot.running}
        self._promised |= {job.yields_to for job in snapshot.waiting}
        self._promised |= {job.id for job in snapshot.waiting if job.moved}
        self._standings = Standings(snapshot)

    def __iter__(self) -> Iterator[Waiting]:
        promised, pinned, guaranteed, rest = self._parted()
        yield from self._in_order(promised)
        yield from self._in_order(pinned)
        for job in self._in_order(guaranteed):
            if self._guarantees.entitled(job, self._teams.get(job.team)):
                yield job
            else:
                rest.append(job)
        yield from self._in_order(rest)

    def _parted(self) -> tuple[list[Waiting], list[Waiting], list[Waiting], list[Waiting]]:
        parts: tuple[list[Waiting], list[Waiting], list[Waiting], list[Waiting]] = [], [], [], []
        promised, pinned, guaranteed, rest = parts
        teams = self._guarantees.teams
        for job in self._snapshot.waiting:
            if job.id in self._promised:
                promised.append(job)
            elif job.pinned:
                pinned.append(job)
            elif job.team in teams:
                guaranteed.append(job)
            else:
                rest.append(job)
        return parts

    def charge(self, job: Waiting, gpus: int) -> None:
        """The job starts with so many GPUs: its owner and team stand further back for the rest."""
        self._standings.charge(job, gpus)

    def _in_order(self, jobs: list[Waiting]) -> Queue:
        return Queue(self._snapshot, jobs, self._standings)
