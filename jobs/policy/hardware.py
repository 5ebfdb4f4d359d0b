"""What the nodes of a pass have, gathered, so that a job is compared with kinds of nodes and not with each. Pure.

A snapshot of the ledgers at the time it is made: to be made anew after any of them changed.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice

from jobs.policy.ledger import Ledger, is_asked_for, least, shares
from jobs.policy.view import WHOLE, Gpu, Node, Reason, Waiting

GpuKind = tuple[str, int | None, str, int]  # model, memory in MiB, MIG profile, slots


def kind_of(gpu: Gpu) -> GpuKind:
    return gpu.model, gpu.memory_mib, gpu.profile, gpu.slots


def offered(gpu: Gpu) -> bool:
    """Hidden GPUs are not counted as hardware there is."""
    return gpu.unavailable is None or gpu.unavailable["code"] != "GPU_HIDDEN"


@dataclass(frozen=True)
class Free:
    """What a kind of node has free for one kind of ask: on the best of its nodes, and on all."""

    ledger: Ledger
    here: int  # GPUs; of those that are shared 1 if any has enough left
    in_all: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.here, self.ledger.millicpus, self.ledger.memory_mib


class NodeKind:
    """Nodes with the same GPUs, CPUs, memory and labels."""

    def __init__(self, node: Node, counts: Mapping[GpuKind, int], ledgers: Sequence[Ledger]) -> None:
        self.millicpus, self.memory_mib, self.labels, self.counts = node.millicpus, node.memory_mib, node.labels, counts
        self.all = ledgers
        self.open = [ledger for ledger in ledgers if ledger.node.closed is None]
        self.closed = [ledger.node.closed for ledger in ledgers if ledger.node.closed is not None]
        self.sick = [
            (gpu, ledger) for ledger in self.open for gpu in ledger.node.gpus
            if gpu.unavailable is not None and offered(gpu)
        ]  # fmt: skip
        self._ranked: dict[tuple[frozenset[GpuKind], bool], _Ranked] = {}
        self._suiting: dict[frozenset[GpuKind], frozenset[GpuKind]] = {}
        self._on_paper: dict[frozenset[GpuKind], int] = {}

    def on_paper(self, suiting: frozenset[GpuKind]) -> int:
        """How many GPUs of such kinds each of the nodes has."""
        found = self._on_paper.get(suiting)
        if found is None:
            found = self._on_paper[suiting] = sum(n for kind, n in self.counts.items() if kind in suiting)
        return found

    def free(self, job: Waiting, suiting: frozenset[GpuKind]) -> Free:
        """What is free of the open nodes, of which there must be one."""
        ranked = self._rank(job, suiting)
        if not shares(job):
            return Free(ranked.best(ranked.largest), ranked.largest, ranked.pieces(WHOLE))
        enough = ranked.largest >= job.gpu_milli
        return Free(ranked.best(job.gpu_milli if enough else 0), int(enough), ranked.pieces(job.gpu_milli))

    def might_fit(self, job: Waiting, suiting: frozenset[GpuKind]) -> bool:
        """False where no open node has the GPUs together with the CPUs, or with the memory."""
        millicpus, memory_mib = self.most_beside_gpus(job, suiting)
        return millicpus >= job.millicpus and memory_mib >= job.memory_mib

    def most_beside_gpus(self, job: Waiting, suiting: frozenset[GpuKind]) -> tuple[int, int]:
        """The most CPUs, and the most memory, that an open node with the GPUs has left; 0 where none has them."""
        if not self.open:
            return 0, 0
        return self._rank(job, suiting).most(job.gpu_milli if shares(job) else least(job))

    def _rank(self, job: Waiting, suiting: frozenset[GpuKind]) -> "_Ranked":
        here = self._here(suiting) if job.gpus else frozenset()
        key = here, shares(job)
        found = self._ranked.get(key)
        if found is None:
            parts = [_parts(ledger, here, all_suit=len(here) == len(self.counts)) for ledger in self.open]
            found = self._ranked[key] = _Ranked(self.open, parts, shares(job))
        return found

    def _here(self, suiting: frozenset[GpuKind]) -> frozenset[GpuKind]:
        """Those of the kinds that the nodes have."""
        found = self._suiting.get(suiting)
        if found is None:
            found = self._suiting[suiting] = suiting.intersection(self.counts)
        return found


class _Ranked:
    """Nodes by the size of what each has free: its largest part of a GPU in thousandths, or its count of whole ones."""

    def __init__(self, ledgers: Sequence[Ledger], parts: Sequence[Sequence[int]], shared: bool) -> None:
        """`parts`: see `_parts`, of each ledger."""
        self._ledgers = ledgers
        self._pieces = sorted(part for here in parts for part in here)
        sizes = [max(here, default=0) if shared else here.count(WHOLE) for here in parts]
        places = sorted(range(len(ledgers)), key=lambda place: -sizes[place])
        self._sizes = [-sizes[place] for place in places]
        rows = [(ledgers[place].millicpus, ledgers[place].memory_mib, -place) for place in places]
        self._best = list(accumulate(rows, max))  # of the nodes with at least so much
        self._memory = list(accumulate((row[1] for row in rows), max))

    @property
    def largest(self) -> int:
        return -self._sizes[0]

    def best(self, size: int) -> Ledger:
        """The node with the most CPUs of those that have so much; there must be one."""
        return self._ledgers[-self._best[self._count(size) - 1][2]]

    def most(self, size: int) -> tuple[int, int]:
        """The most CPUs, and the most memory, of a node that has so much; 0 where none has."""
        count = self._count(size)
        return (self._best[count - 1][0], self._memory[count - 1]) if count else (0, 0)

    def pieces(self, milli: int) -> int:
        """How many GPUs of all nodes have so much left."""
        return len(self._pieces) - bisect_left(self._pieces, milli)

    def _count(self, size: int) -> int:
        return bisect_right(self._sizes, -size)


def _parts(ledger: Ledger, suiting: frozenset[GpuKind], *, all_suit: bool) -> list[int]:
    """What is left of each suiting GPU, in thousandths, of those of which something is."""
    if not suiting:
        return []
    return [
        free * WHOLE // gpu.slots for gpu, free in zip(ledger.node.gpus, ledger.free, strict=True)
        if free and (all_suit or kind_of(gpu) in suiting)
    ]  # fmt: skip


class Hardware:
    """All nodes by kind."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.samples = {kind_of(gpu): gpu for ledger in ledgers for gpu in _samples(ledger)}
        self.kinds = list(_by_kind(ledgers))
        self.kept = [ledger for ledger in ledgers if ledger.kept is not None]
        self._suiting: dict[object, frozenset[GpuKind]] = {}
        self._alike: dict[frozenset[GpuKind], frozenset[GpuKind]] = {}  # one object for all that are equal
        self._able: dict[object, list[NodeKind]] = {}
        self._some_open: dict[object, bool] = {}

    def suiting(self, job: Waiting) -> frozenset[GpuKind]:
        """The kinds of GPU that would do."""
        share = (job.gpu_milli, job.most_milli) if shares(job) else ()
        ask = job.gpu_model, job.gpu_memory_mib, job.gpu_profile, share
        found = self._suiting.get(ask)
        if found is None:
            found = frozenset(kind for kind, gpu in self.samples.items() if is_asked_for(gpu, job))
            found = self._suiting[ask] = self._alike.setdefault(found, found)
        return found

    def able(self, job: Waiting) -> list[NodeKind]:
        """The kinds of node that would do if they were open, empty and healthy."""
        if job.shape not in self._able:
            self._able[job.shape] = self._find_able(job)
        return self._able[job.shape]

    def _find_able(self, job: Waiting) -> list[NodeKind]:
        suiting, need = self.suiting(job), least(job)
        return [
            kind for kind in self.kinds
            if job.millicpus <= kind.millicpus and job.memory_mib <= kind.memory_mib
            and job.labels <= kind.labels and (not need or kind.on_paper(suiting) >= need)
        ]  # fmt: skip

    def some_open(self, job: Waiting) -> bool:
        """Whether one of the nodes that would do is open."""
        if job.shape not in self._some_open:
            self._some_open[job.shape] = any(kind.open for kind in self.able(job))
        return self._some_open[job.shape]

    def might_fit(self, job: Waiting) -> bool:
        """False only where no node has room for the job now."""
        suiting = self.suiting(job)
        return any(kind.might_fit(job, suiting) for kind in self.able(job))

    def most_beside_gpus(self, job: Waiting) -> tuple[int, int]:
        """The most CPUs, and the most memory, that a node has left together with the GPUs."""
        suiting = self.suiting(job)
        found = [kind.most_beside_gpus(job, suiting) for kind in self.able(job)]
        return max((cpus for cpus, _memory in found), default=0), max((memory for _cpus, memory in found), default=0)

    def most_gpus(self, job: Waiting) -> int:
        """The most whole GPUs that would do and are free on one node."""
        suiting = self.suiting(job)
        return max((kind.free(job, suiting).here for kind in self.kinds if kind.open), default=0)

    def model_of(self, uuid: str) -> str:
        """Empty where no node has such a GPU."""
        return self._models.get(uuid, "")

    @cached_property
    def _models(self) -> dict[str, str]:
        return {gpu.uuid: gpu.model for kind in self.kinds for ledger in kind.all for gpu in ledger.node.gpus}

    def models(self) -> list[str]:
        return sorted({model for model, *_rest in self.samples})


def _samples(ledger: Ledger) -> Iterable[Gpu]:
    """At least one GPU of each kind that the node has."""
    found = filter(offered, ledger.node.gpus)
    return found if ledger.layout.only is None else islice(found, 1)


def _counted(ledger: Ledger) -> Mapping[GpuKind, int]:
    gpus = [gpu for gpu in ledger.node.gpus if gpu.unavailable is None or offered(gpu)]
    if ledger.layout.only is None or not gpus:
        return Counter(map(kind_of, gpus))
    return {kind_of(gpus[0]): len(gpus)}


def _by_kind(ledgers: Iterable[Ledger]) -> Iterator[NodeKind]:
    groups: dict[object, tuple[Node, Mapping[GpuKind, int], list[Ledger]]] = {}
    for ledger in ledgers:
        node = ledger.node
        counts = _counted(ledger)
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
