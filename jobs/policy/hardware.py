"""What the nodes of a pass have, gathered, so that a job is compared with kinds of nodes and not with each. Pure.

A snapshot of the ledgers at the time it is made: to be made anew after any of them changed.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from jobs.policy.ledger import Ledger, least, shares, suits
from jobs.policy.view import WHOLE, Gpu, Node, Reason, Waiting

GpuKind = tuple[str, int | None, str]  # model, memory in MiB, MIG profile


def kind_of(gpu: Gpu) -> GpuKind:
    return gpu.model, gpu.memory_mib, gpu.profile


def offered(gpu: Gpu) -> bool:
    """Hidden GPUs are not counted as hardware there is."""
    return gpu.unavailable is None or gpu.unavailable["code"] != "GPU_HIDDEN"


@dataclass(frozen=True)
class Free:
    """What a kind of node has free for one kind of ask: on the best of its nodes, and on all."""

    ledger: Ledger
    here: int
    in_all: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.here, self.ledger.millicpus, self.ledger.memory_mib


class NodeKind:
    """Nodes with the same GPUs, CPUs, memory and labels."""

    def __init__(self, node: Node, counts: Counter[GpuKind], ledgers: Sequence[Ledger]) -> None:
        self.millicpus, self.memory_mib, self.labels, self.counts = node.millicpus, node.memory_mib, node.labels, counts
        self.all = ledgers
        self.open = [ledger for ledger in ledgers if ledger.node.closed is None]
        self.sick = [
            (gpu, ledger) for ledger in self.open for gpu in ledger.node.gpus
            if gpu.unavailable is not None and offered(gpu)
        ]  # fmt: skip
        self._whole: dict[frozenset[GpuKind], Free] = {}
        self._parts: dict[frozenset[GpuKind], _Parts] = {}

    def on_paper(self, suiting: frozenset[GpuKind]) -> int:
        """How many GPUs of such kinds each of the nodes has."""
        return sum(count for kind, count in self.counts.items() if kind in suiting)

    def free(self, job: Waiting, suiting: frozenset[GpuKind]) -> Free:
        """What is free of the open nodes, of which there must be one."""
        if shares(job):
            if suiting not in self._parts:
                self._parts[suiting] = _Parts(self.open, suiting)
            return self._parts[suiting].free(job.gpu_milli)
        if suiting not in self._whole:
            self._whole[suiting] = self._count(suiting)
        return self._whole[suiting]

    def _count(self, suiting: frozenset[GpuKind]) -> Free:
        counts = [sum(free == gpu.slots for gpu, free in _gpus(ledger, suiting)) for ledger in self.open]
        here, _cpus, _memory, place = max(
            (count, ledger.millicpus, ledger.memory_mib, -place)
            for place, (count, ledger) in enumerate(zip(counts, self.open, strict=True))
        )
        return Free(self.open[-place], here, sum(counts))


def _gpus(ledger: Ledger, suiting: frozenset[GpuKind]) -> Iterator[tuple[Gpu, int]]:
    return (
        (gpu, free) for gpu, free in zip(ledger.node.gpus, ledger.free, strict=True)
        if free and kind_of(gpu) in suiting
    )  # fmt: skip


class _Parts:
    """What is free in parts of GPUs on some nodes."""

    def __init__(self, ledgers: Sequence[Ledger], suiting: frozenset[GpuKind]) -> None:
        parts = [[free * WHOLE // gpu.slots for gpu, free in _gpus(ledger, suiting)] for ledger in ledgers]
        self._all = sorted(part for here in parts for part in here)
        most = sorted(
            (-max(here, default=0), ledger.millicpus, ledger.memory_mib, -place)
            for place, (here, ledger) in enumerate(zip(parts, ledgers, strict=True))
        )
        self._most = [row[0] for row in most]
        self._best = list(accumulate((row[1:] for row in most), max))  # of those with at least so much in one piece
        self._ledgers = ledgers

    def free(self, milli: int) -> Free:
        count = bisect_left(self._most, -milli + 1)
        _cpus, _memory, place = self._best[count - 1] if count else self._best[-1]
        return Free(self._ledgers[-place], int(count > 0), len(self._all) - bisect_left(self._all, milli))


class Hardware:
    """All nodes by kind."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.samples = {kind_of(gpu): gpu for ledger in ledgers for gpu in ledger.node.gpus if offered(gpu)}
        self.kinds = list(_by_kind(ledgers))
        self.kept = [ledger for ledger in ledgers if ledger.kept is not None]
        self._suiting: dict[tuple[str, int, str], frozenset[GpuKind]] = {}

    def suiting(self, job: Waiting) -> frozenset[GpuKind]:
        """The kinds of GPU that would do."""
        ask = job.gpu_model, job.gpu_memory_mib, job.gpu_profile
        if ask not in self._suiting:
            anywhere = replace(job, avoid=frozenset())
            self._suiting[ask] = frozenset(kind for kind, gpu in self.samples.items() if suits(gpu, anywhere))
        return self._suiting[ask]

    def able(self, job: Waiting) -> list[NodeKind]:
        """The kinds of node that would do if they were open, empty and healthy."""
        suiting, need = self.suiting(job), least(job)
        return [
            kind for kind in self.kinds
            if job.millicpus <= kind.millicpus and job.memory_mib <= kind.memory_mib
            and job.labels <= kind.labels and (not need or kind.on_paper(suiting) >= need)
        ]  # fmt: skip

    def models(self) -> list[str]:
        return sorted({model for model, _memory, _profile in self.samples})


def _by_kind(ledgers: Iterable[Ledger]) -> Iterator[NodeKind]:
    groups: dict[object, tuple[Node, Counter[GpuKind], list[Ledger]]] = {}
    for ledger in ledgers:
        node = ledger.node
        counts = Counter(kind_of(gpu) for gpu in node.gpus if offered(gpu))
        key = node.millicpus, node.memory_mib, node.labels, frozenset(counts.items())
        groups.setdefault(key, (node, counts, []))[2].append(ledger)
    return (NodeKind(*group) for group in groups.values())


def sick_counts(job: Waiting, kinds: Iterable[NodeKind], suiting: frozenset[GpuKind]) -> list[Reason]:
    """GPUs that would suit but can't be given, counted by node and by what is wrong with them."""
    counts: dict[tuple[str, str], Reason] = defaultdict(dict)
    for kind in kinds:
        for gpu, ledger in kind.sick if job.gpus else ():
            if kind_of(gpu) not in suiting or gpu.unavailable is None:
                continue
            reason = counts[ledger.node.name, gpu.unavailable["code"]]
            reason.update({**gpu.unavailable, "count": reason.get("count", 0) + 1, "node": ledger.node.name})
    return list(counts.values())
