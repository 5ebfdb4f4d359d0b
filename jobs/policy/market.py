"""How requests would spread over what is free: where each can go, and how crowded it is there. Pure.

As many requests as would fill all that is free, drawn from the demand, are spread over the kinds of GPU that could
take them. Those with a choice leave the crowded ones, until all are as even as can be.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from jobs.policy.ledger import Kind, least, shares
from jobs.policy.rooms import Lot, Room
from jobs.policy.view import WHOLE, Waiting

Cell = tuple[frozenset[str], Kind]  # GPUs of one kind on nodes with the same labels
ROUNDS = 8
URGENT = 10.0  # at most
MOST = 3.0  # GPUs asked for a GPU that could take them, at most: more change nothing


@dataclass(frozen=True)
class Ask:
    """A shape of request as one cell sees it."""

    job: Waiting
    gpus: float
    rate: float  # how many come to each GPU of the cell
    urgency: float  # how little choice it has: by how crowded its kinds are, and how few of their free GPUs would do


class Market:
    """`demand` is of requests with GPUs, and how many of each; `rooms` tells how many nodes have each."""

    def __init__(self, demand: Sequence[tuple[Waiting, int]], rooms: Sequence[tuple[Room, int]]) -> None:
        places = _Places(rooms)
        self._free = places.free
        asked = sum(gpus_of(job) * count for job, count in demand)
        scale = sum(self._free.values()) / asked if asked else 0.0
        found = [(job, gpus_of(job), count * scale, places.usable(job)) for job, count in demand]
        self._demand = [asked for asked in found if asked[-1]]
        self._price = dict.fromkeys(self._free, 1.0)
        for _ in range(ROUNDS if len(self._free) > 1 else 0):  # from a single kind none can turn away
            for cell, load in self._loads().items():
                self._price[cell] *= max(load, 0.1) ** 0.5
        self._load = self._loads()

    def _loads(self) -> dict[Cell, float]:
        """GPUs asked for each free one of a cell, at the present prices."""
        asked: dict[Cell, float] = defaultdict(float)
        for _job, gpus, count, usable in self._demand:
            part = gpus * self._rate(count, usable)
            for cell, here in usable.items():
                asked[cell] += part * here / self._price[cell]
        return {cell: asked[cell] / free for cell, free in self._free.items()}

    def _rate(self, count: float, usable: dict[Cell, float]) -> float:
        """How many come to a GPU that could take them, where the price is 1; half of them, where it is 2."""
        return count / sum([here / self._price[cell] for cell, here in usable.items()])

    def _urgency(self, usable: dict[Cell, float]) -> float:
        """See `Ask`. Halfway between "all that is free will do" and "only these places will": a square root."""
        crowds = (self._load[cell] * math.sqrt(self._free[cell] / here) for cell, here in usable.items())
        return min(URGENT, *crowds)

    def asks(self, cell: Cell) -> list[Ask]:
        """The requests that may come to the cell."""
        return [
            Ask(
                job, gpus, min(self._rate(count, usable) / self._price[cell], MOST / gpus), self._urgency(usable)
            )
            for job, gpus, count, usable in self._demand if cell in usable
        ]  # fmt: skip


def gpus_of(job: Waiting) -> float:
    """What the job takes at least."""
    return job.gpu_milli / WHOLE if shares(job) else least(job)


_Sums = tuple[list[int], list[float]]


class _Places:
    """How much of what is free in each cell could take a request, by what it asks of GPUs, and the CPUs it needs."""

    def __init__(self, rooms: Sequence[tuple[Room, int]]) -> None:
        self._lots: dict[Cell, list[tuple[int, int, Lot]]] = defaultdict(list)
        self.free: dict[Cell, float] = defaultdict(float)
        for room, count in sorted(rooms, key=lambda pair: -pair[0].millicpus):
            for lot in room.lots:
                self._lots[room.labels, lot.kind].append((room.millicpus, count, lot))
                self.free[room.labels, lot.kind] += lot.gpus * count
        self._known: dict[tuple[object, ...], dict[Cell, _Sums]] = {}
        self._of_cell: dict[tuple[object, ...], _Sums] = {}

    def usable(self, job: Waiting) -> dict[Cell, float]:
        """In GPUs; cells with nothing are left out."""
        share = shares(job) and job.gpu_milli
        asked = (least(job), share, job.gpu_model, job.gpu_profile, job.gpu_memory_mib, job.labels)
        if asked not in self._known:
            cells = [cell for cell in self._lots if job.labels <= cell[0] and cell[1].suits(job)]
            self._known[asked] = {cell: self._sums(job, cell) for cell in cells}
        here = {}
        for cell, (cpus, sums) in self._known[asked].items():
            enough = bisect_left(cpus, True, key=lambda cpu: cpu < job.millicpus)
            if enough:
                here[cell] = sums[enough - 1]
        return here

    def _sums(self, job: Waiting, cell: Cell) -> _Sums:
        """By the CPUs of the nodes, which only get less: how much of the cell is usable on all up to there."""
        key = cell, shares(job) and cell[1].slots_for(job), least(job)
        if key not in self._of_cell:
            self._of_cell[key] = self._summed(job, cell)
        return self._of_cell[key]

    def _summed(self, job: Waiting, cell: Cell) -> _Sums:
        found = [(cpus, count * lot.usable(job)) for cpus, count, lot in self._lots[cell]]
        some = [(cpus, usable) for cpus, usable in found if usable]
        return [cpus for cpus, _usable in some], list(accumulate(usable for _cpus, usable in some))
