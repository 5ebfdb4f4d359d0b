"""What is asked of the nodes: the requests that were seen and those that wait. Pure."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Self, TypeVar

from jobs.policy.view import Running, Snapshot, Waiting, changed

Request = TypeVar("Request", Waiting, Running)


class Demand:
    """How often each shape of request was seen. The future is taken to be like this."""

    def __init__(self, jobs: Sequence[Waiting] = ()) -> None:
        self.total = 0
        self._counts: dict[object, int] = {}
        self._samples: dict[object, Waiting] = {}
        for alike in _alike([job.shape for job in jobs], jobs):
            self.add(alike[0], len(alike))

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """The jobs that wait and those that run."""
        demand = cls(snapshot.waiting)
        runs = snapshot.running
        held = [(run.gpus, run.gpu_milli, run.millicpus, run.memory_mib) for run in runs]
        for alike in _alike(held, runs):
            demand.add(_as_asked(alike[0]), len(alike))
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


def _alike(keys: Iterable[Hashable], requests: Iterable[Request]) -> Iterable[list[Request]]:
    """Those of equal keys together, in the order in which the first of each came."""
    found: dict[Hashable, list[Request]] = defaultdict(list)
    for key, request in zip(keys, requests, strict=True):
        found[key].append(request)
    return found.values()


def _as_asked(run: Running) -> Waiting:
    """The request of a run by what it holds; which models would have done, nobody knows any more."""
    return Waiting(
        id=run.job, user=run.user, team=run.team, priority=run.priority, queued_at=run.since, gpus=run.gpus,
        gpu_milli=run.gpu_milli, millicpus=run.millicpus, memory_mib=run.memory_mib, limit_seconds=None,
    )  # fmt: skip
