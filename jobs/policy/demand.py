"""What is asked of the nodes: the requests that were seen and those that wait. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Self

from jobs.policy.view import Running, Snapshot, Waiting, changed


class Demand:
    """How often each shape of request was seen. The future is taken to be like this."""

    def __init__(self, jobs: Iterable[Waiting] = ()) -> None:
        self.total = 0
        self._counts: dict[object, int] = {}
        self._samples: dict[object, Waiting] = {}
        of_shape = {job.shape: job for job in jobs}
        for shape, count in Counter([job.shape for job in jobs]).items():
            self.add(of_shape[shape], count)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """The jobs that wait and those that run."""
        demand = cls(snapshot.waiting)
        held = Counter((run.gpus, run.gpu_milli, run.millicpus, run.memory_mib) for run in snapshot.running)
        samples = {(run.gpus, run.gpu_milli, run.millicpus, run.memory_mib): run for run in snapshot.running}
        for shape, count in held.items():
            demand.add(_as_asked(samples[shape]), count)
        return demand

    def add(self, job: Waiting, count: int = 1) -> None:
        shape = job.shape
        if shape not in self._counts:
            self._counts[shape] = 0
            self._samples[shape] = changed(job, avoid=frozenset())
        self._counts[shape] += count
        self.total += count

    def __iter__(self) -> Iterator[tuple[Waiting, int]]:
        """A request of each shape, and how many were seen."""
        return ((self._samples[shape], count) for shape, count in self._counts.items())


def _as_asked(run: Running) -> Waiting:
    """The request of a run by what it holds; which models would have done, nobody knows any more."""
    return Waiting(
        id=run.job, user=run.user, team=run.team, priority=run.priority, queued_at=run.since, gpus=run.gpus,
        gpu_milli=run.gpu_milli, millicpus=run.millicpus, memory_mib=run.memory_mib, limit_seconds=None,
    )  # fmt: skip
