"""Which node a blocked job will start on, and when at the latest, by the time limits of what runs there. Pure.

The first job that only room holds back is dated, and others start before it only if they end in time or fit
beside it (EASY backfill). The bound: once a job is the first blocked one, it starts within the longest time
that is left to a run on the node kept for it. That date never moves back as long as the job stays first, since
whoever starts on that node meanwhile is gone by then or leaves its room, and another node is only taken if it
is ready earlier. A job behind the first has the same bound from `Rules.reserve_after` on, as long as fewer than
`Rules.most_kept` nodes are kept.

Where every node that would do has a run without a limit in the way, nobody can say when. After
`Rules.reserve_after` the node nearest to fitting the job is then kept: whatever is freed there stays free, so
that the job starts once enough of the runs have ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf

from jobs.policy.ledger import Ledger, least
from jobs.policy.view import Running, Waiting

End = tuple[float, Running]  # in so many seconds the run has ended; inf: it has no limit


class Ends:
    """When the runs of each node end at the latest, those that this pass starts too."""

    def __init__(self, runs: Iterable[Running], now: datetime) -> None:
        self._now = now
        self._by_node: dict[str, list[Running]] = defaultdict(list)
        self._sorted: dict[str, list[End]] = {}
        self._slots: dict[str, dict[str, list[tuple[float, int]]]] = {}
        self._gpus: dict[str, tuple[list[int], dict[object, list[float]]]] = {}
        for run in runs:
            self._by_node[run.node].append(run)

    def add(self, run: Running) -> None:
        self._by_node[run.node].append(run)
        self._forget(run.node)

    def drop(self, runs: Iterable[Running]) -> None:
        """These end for another, which has what they held."""
        for run in runs:
            self._by_node[run.node].remove(run)
            self._forget(run.node)

    def _forget(self, node: str) -> None:
        self._sorted.pop(node, None)
        self._slots.pop(node, None)
        self._gpus.pop(node, None)

    def of(self, node: str) -> list[End]:
        """First to end first."""
        if node not in self._sorted:
            ends = ((seconds_left(run, self._now), run) for run in self._by_node.get(node, ()))
            self._sorted[node] = sorted(ends, key=lambda end: (end[0], end[1].run, end[1].job))
        return self._sorted[node]

    def gpus(self, ledger: Ledger, job: Waiting) -> list[float]:
        """In how many seconds each GPU of the node that would do has room for the job, first to come first."""
        found = self._gpus.get(ledger.node.name)
        if found is None or found[0] != ledger.free:
            found = self._gpus[ledger.node.name] = ledger.free.copy(), {}
        asked = (*ledger.layout.slots_for(job), job.avoid)
        times = found[1].get(asked)
        if times is None:
            times = found[1][asked] = self._times(ledger, job)
        return times

    def _times(self, ledger: Ledger, job: Waiting) -> list[float]:
        coming = self.slots(ledger.node.name)
        together = zip(ledger.layout.slots_for(job), ledger.node.gpus, ledger.free, strict=True)
        return sorted([
            0.0 if free >= need else _gpu_ready(need - free, coming.get(gpu.uuid, ()))
            for need, gpu, free in together
            if need and gpu.unavailable is None and gpu.uuid not in job.avoid
        ])  # fmt: skip

    def slots(self, node: str) -> dict[str, list[tuple[float, int]]]:
        """By GPU: in so many seconds so many slots come free, first to come first."""
        found = self._slots.get(node)
        if found is None:
            found = self._slots[node] = defaultdict(list)
            for run in self._by_node.get(node, ()):
                seconds = seconds_left(run, self._now)
                for uuid, count in run.slots.items():
                    found[uuid].append((seconds, count))
            for coming in found.values():
                if len(coming) > 1:
                    coming.sort()
        return found


def seconds_left(run: Running, now: datetime) -> float:
    """Until the run has ended at the latest. One that is being stopped is as good as ended."""
    if run.stopping:
        return 0.0
    return inf if run.ends_by is None else max((run.ends_by - now).total_seconds(), 0.0)


def soonest(job: Waiting, able: Iterable[Ledger], ends: Ends) -> tuple[Ledger, float] | None:
    """The node that is ready for the job first, and in how many seconds; None when no node can be dated.

    `able` are those that it would fit on were nothing running there.
    """
    best: tuple[float, str] = (inf, "")
    found: Ledger | None = None
    for ledger in able:
        if ledger.kept is not None:
            continue
        at = (ready(job, ledger, ends, before=best[0]), ledger.node.name)
        if at < best:
            best, found = at, ledger
    return None if found is None else (found, best[0])


def ready(job: Waiting, ledger: Ledger, ends: Ends, *, before: float = inf) -> float:
    """In how many seconds the node has room for the job, were nothing else started there; inf: nobody can say.

    Where that is after `before`, any time after it may be told.
    """
    enough = job.millicpus <= ledger.millicpus and job.memory_mib <= ledger.memory_mib
    host = 0.0 if enough else _host_ready(job, ledger, ends)
    need = least(job)
    if not need or host == inf or host > before:
        return host
    times = ends.gpus(ledger, job)
    return max(host, times[need - 1]) if len(times) >= need else inf


def _host_ready(job: Waiting, ledger: Ledger, ends: Ends) -> float:
    """Of CPUs and memory, of which not enough is free."""
    millicpus, memory_mib = job.millicpus - ledger.millicpus, job.memory_mib - ledger.memory_mib
    for seconds, run in ends.of(ledger.node.name):
        millicpus -= run.millicpus
        memory_mib -= run.memory_mib
        if millicpus <= 0 and memory_mib <= 0:
            return seconds
    return inf


def _gpu_ready(lacking: int, coming: Sequence[tuple[float, int]]) -> float:
    for seconds, slots in coming:
        lacking -= slots
        if lacking <= 0:
            return seconds
    return inf


def ended_by(seconds: float, ends: Sequence[End]) -> list[Running]:
    """The runs that have ended in so many seconds."""
    return [run for until, run in ends if until <= seconds]
