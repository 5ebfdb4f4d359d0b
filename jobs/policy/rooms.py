"""What is free on a node, as far as placing looks at it: nodes with equal rooms are alike. Pure.

CPUs and memory are rounded down to steps that are small beside what goes with a GPU of the node, so that one
look does for many nodes; whether a job fits exactly, the ledger says.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from jobs.policy.ledger import Kind, Ledger, least, shares, slots_of
from jobs.policy.view import Waiting

CPU_STEPS, MEMORY_STEPS = 4, 2  # of what a node has for each of its GPUs


class Lot(NamedTuple):
    """A node's GPUs of one kind that are not full: free slots of each, ascending."""

    kind: Kind
    free: tuple[int, ...]

    @property
    def gpus(self) -> float:
        return sum(self.free) / self.kind.slots

    @property
    def whole(self) -> int:
        """How many GPUs are wholly free."""
        return len(self.free) - bisect_left(self.free, self.kind.slots)

    def usable(self, job: Waiting) -> float:
        """The part of the free GPUs on which requests like this could be put one after the other."""
        if not self.kind.suits(job):
            return 0
        if shares(job):
            return sum(self.free[bisect_left(self.free, slots_of(job, self.kind.gpu)) :]) / self.kind.slots
        return self.whole // least(job) * least(job)

    def tightest(self, job: Waiting) -> float:
        """How much of a GPU is free on the fullest that has room for the share; there must be one."""
        return self.free[bisect_left(self.free, slots_of(job, self.kind.gpu))] / self.kind.slots

    def without(self, job: Waiting) -> "Lot":
        """What is left once the job took its share of one GPU, the fullest that has room, or as many whole ones."""
        if not shares(job):
            return Lot(self.kind, self.free[: len(self.free) - min(job.gpus, self.whole)])
        need = slots_of(job, self.kind.gpu)
        place = bisect_left(self.free, need)
        rest = [*self.free[:place], *self.free[place + 1 :]]
        if self.free[place] > need:
            insort(rest, self.free[place] - need)
        return Lot(self.kind, tuple(rest))


class Room(NamedTuple):
    labels: frozenset[str]
    lots: tuple[Lot, ...]  # by memory, the smallest GPUs first
    millicpus: int
    memory_mib: int
    steps: tuple[int, int]  # that CPUs and memory were rounded down to
    links: tuple[object, ...] = ()  # what tells the free GPUs apart, where their links are known

    @property
    def gpus(self) -> float:
        return sum(lot.gpus for lot in self.lots)

    @property
    def largest(self) -> float:
        """GPUs that the largest request here could get: whole ones, of whatever kinds, else the largest part of one."""
        whole = sum(lot.whole for lot in self.lots)
        return whole or max((lot.free[-1] / lot.kind.slots for lot in self.lots), default=0)

    def could(self, job: Waiting, slots: dict[Kind, int]) -> bool:
        """Whether the job may fit, as far as labels and GPUs go; `slots` remembers `Kind.slots_for` the job."""
        if job.labels and not job.labels <= self.labels:
            return False
        if not job.gpus:
            return True
        share, whole = shares(job), 0
        for lot in self.lots:
            need = slots.get(lot.kind)
            if need is None:
                need = slots[lot.kind] = lot.kind.slots_for(job)
            if share and 0 < need <= lot.free[-1]:
                return True
            whole += lot.whole if need else 0
        return not share and whole >= least(job)

    def rounded(self, job: Waiting) -> tuple[int, int]:
        """CPUs and memory that the job leaves, rounded down."""
        cpus, memory = self.millicpus - job.millicpus, self.memory_mib - job.memory_mib
        return max(cpus, 0) // self.steps[0] * self.steps[0], max(memory, 0) // self.steps[1] * self.steps[1]

    def less(self, job: Waiting, lots: tuple[Lot, ...]) -> "Room":
        """The room with these lots, and without the job's CPUs and memory."""
        return room(self.labels, lots, self.millicpus - job.millicpus, self.memory_mib - job.memory_mib, self.steps)


def room(
    labels: frozenset[str], lots: tuple[Lot, ...], millicpus: int, memory_mib: int, steps: tuple[int, int],
    links: tuple[object, ...] = (),
) -> Room:  # fmt: skip
    """The room with CPUs and memory rounded down."""
    cpus, memory = max(millicpus, 0) // steps[0] * steps[0], max(memory_mib, 0) // steps[1] * steps[1]
    return Room(labels, lots, cpus, memory, steps, links)


def room_of(ledger: Ledger) -> Room:
    node = ledger.node
    gpus = len(node.gpus) or 1
    steps = (node.millicpus // (CPU_STEPS * gpus) or 1, node.memory_mib // (MEMORY_STEPS * gpus) or 1)
    return room(node.labels, _lots(ledger), ledger.millicpus, ledger.memory_mib, steps, _links(ledger))


def _lots(ledger: Ledger) -> tuple[Lot, ...]:
    only = ledger.layout.only
    if only is not None:
        some = sorted(filter(None, ledger.free))
        return (Lot(only, tuple(some)),) if some else ()
    found: dict[Kind, list[int]] = {}
    for kind, free in zip(ledger.layout.kinds, ledger.free, strict=True):
        if free:
            found.setdefault(kind, []).append(free)
    lots = [Lot(kind, tuple(sorted(free))) for kind, free in found.items()]
    lots.sort(key=lambda lot: (lot.kind.memory_mib, lot.kind.gpu.model, lot.kind.gpu.profile, lot.kind.slots))
    return tuple(lots)


def _links(ledger: Ledger) -> tuple[object, ...]:
    if not ledger.layout.linked:
        return ()
    return tuple((gpu.island, gpu.numa, free) for gpu, free in zip(ledger.node.gpus, ledger.free, strict=True))
