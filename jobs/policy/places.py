"""Where jobs that are being moved go on: kept for them from the wish until they start there. Pure.

Worked out anew in each pass, before anything is given away, and stored nowhere: should a host fail meanwhile, another
place is kept. Only room is kept, not certain GPUs; the moved job comes first in the pass after its run has ended.
"""

from collections.abc import Iterator
from dataclasses import replace

from jobs.policy import place
from jobs.policy.account import Account
from jobs.policy.ledger import Ledger
from jobs.policy.view import Reason, Running, Waiting


class Places:
    """The places kept in one pass."""

    def __init__(self, account: Account) -> None:
        self._fleet = account.fleet
        self._ledgers = {ledger.node.name: ledger for ledger in account.nodes}
        self._kept: list[tuple[Ledger, Running]] = []  # on this node its job is kept what the run here says
        self._in_the_way: dict[object, tuple[Reason, ...]] = {}

    def keep(self, run: Running) -> None:
        """Keep a place for the job of a run that is to go on elsewhere; none where it fits nowhere now."""
        if run.ask is None or not run.goes_on:
            return
        for job in (replace(run.ask, least_gpus=None), run.ask):
            for ledger, ending in self._ways(run, job):
                before = ledger.copy()
                if self._fleet.hold(ledger, job, ending) is not None:
                    self._kept.append((ledger, _less(run, before, ledger)))
                    return

    def _ways(self, run: Running, job: Waiting) -> Iterator[tuple[Ledger, tuple[Running, ...]]]:
        """Beside what its own run holds still, unless that is another's; else wherever the policy would have it."""
        here = self._ledgers.get(run.node)
        if here is not None and run.makes_way_for is None:
            yield here, (run,)
        there = place.choose(job, self._fleet)
        if there is not None:
            yield there, ()

    def runs(self) -> tuple[Running, ...]:
        """The moved jobs as they will run at their places, as far as these are free now."""
        return tuple(replace(kept, stopping=False, goes_on=False, makes_way_for=None) for _ledger, kept in self._kept)

    def in_the_way(self, job: Waiting) -> tuple[Reason, ...]:
        """The nodes that would have room for the job if it were not kept. Asked once everything is given away."""
        if not self._kept:
            return ()
        if job.shape not in self._in_the_way:
            self._in_the_way[job.shape] = tuple(self._keeping_from(job))
        return self._in_the_way[job.shape]

    def _keeping_from(self, job: Waiting) -> Iterator[Reason]:
        for ledger, kept in self._kept:
            if not ledger.fits(job):
                without = ledger.copy()
                without.release(kept)
                if without.fits(job):
                    yield {"code": "RESERVED_FOR", "job": kept.job, "node": ledger.node.name}


def _less(run: Running, before: Ledger, after: Ledger) -> Running:
    """The run, as if it held what is free no longer."""
    gone = zip(before.node.gpus, before.free, after.free, strict=True)
    slots = {gpu.uuid: was - free for gpu, was, free in gone if was > free}
    return replace(
        run, node=after.node.name, gpus=len(slots), slots=slots, millicpus=before.millicpus - after.millicpus,
        memory_mib=before.memory_mib - after.memory_mib,
    )  # fmt: skip
