"""What is asked of the nodes: the requests that were seen and those that wait. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jobs.policy.view import Waiting


class Demand:
    """How often each shape of request was seen. The future is taken to be like this."""

    def __init__(self, jobs: Iterable[Waiting] = ()) -> None:
        self.total = 0
        self._counts: dict[object, int] = {}
        self._samples: dict[object, Waiting] = {}
        for job in jobs:
            self.add(job)

    def add(self, job: Waiting) -> None:
        shape = job.shape
        if shape not in self._counts:
            self._counts[shape] = 0
            self._samples[shape] = replace(job, avoid=frozenset())
        self._counts[shape] += 1
        self.total += 1

    def __iter__(self) -> Iterator[tuple[Waiting, int]]:
        """A request of each shape, and how many were seen."""
        return ((self._samples[shape], count) for shape, count in self._counts.items())
