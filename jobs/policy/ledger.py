"""The account of one node in one pass: what is free there, less what this pass has given away. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Self

from jobs.policy import neighbours
from jobs.policy.view import WHOLE, Gpu, Node, Running, Waiting, changed
from jobs.quotas import milli_of_slots, slots_needed


def suits(gpu: Gpu, job: Waiting) -> bool:
    """Whether the job may have the GPU. Unknown memory suits only who asks for none."""
    return is_asked_for(gpu, job) and gpu.uuid not in job.avoid


def is_asked_for(gpu: Gpu, job: Waiting) -> bool:
    """Whether GPUs like this one are asked for, whichever of them are avoided. Shares are of GPUs that are cut."""
    if gpu.profile != job.gpu_profile:
        return False
    if shares(job) and (not is_cut(gpu) or charge(job, gpu) > job.most_milli):
        return False
    if job.gpu_model and gpu.model not in job.gpu_model.split("|"):
        return False
    return not job.gpu_memory_mib or (gpu.memory_mib is not None and gpu.memory_mib >= job.gpu_memory_mib)


def shares(job: Waiting) -> bool:
    """Whether the job asks for a share of one GPU rather than for whole ones."""
    return job.gpus == 1 and (job.gpu_milli < WHOLE or job.is_share)


def is_cut(gpu: Gpu) -> bool:
    """Whether the GPU may be shared."""
    return gpu.slots > 1


def slots_of(job: Waiting, gpu: Gpu) -> int:
    """How many slots of the GPU the job takes, if it gets it: its share rounded up, else all."""
    return slots_needed(job.gpu_milli, gpu.slots) if shares(job) else gpu.slots


def charge(job: Waiting, gpu: Gpu) -> int:
    """What of the GPU the job takes, if it gets it, in thousandths: its slots, which may be more than its share."""
    return milli_of_slots(slots_of(job, gpu), gpu.slots) if shares(job) else WHOLE


def charged(job: Waiting, gpus: Iterable[Gpu]) -> Waiting:
    """The job with the share that it is charged for once it has these GPUs."""
    return changed(job, gpu_milli=sum(charge(job, gpu) for gpu in gpus)) if shares(job) else job


def least(job: Waiting) -> int:
    """The fewest GPUs the job starts with."""
    return job.gpus if job.least_gpus is None else min(job.least_gpus, job.gpus)


class Kind:
    """GPUs that are alike in all that jobs ask for. There is one object for each kind."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.slots, self.memory_mib = gpu, gpu.slots, gpu.memory_mib or 0
        self._slots: dict[tuple[object, ...], int] = {}

    def suits(self, job: Waiting) -> bool:
        return self.slots_for(job) > 0

    def slots_for(self, job: Waiting) -> int:
        """What of one GPU the job would take; 0 where it would not do."""
        asked = job.gpu_model, job.gpu_profile, job.gpu_memory_mib, shares(job) and job.gpu_milli, job.most_milli
        found = self._slots.get(asked)
        if found is None:
            found = self._slots[asked] = slots_of(job, self.gpu) if is_asked_for(self.gpu, job) else 0
        return found


@cache
def _kind(model: str, memory_mib: int | None, profile: str, slots: int) -> Kind:
    return Kind(Gpu(uuid="", index=0, model=model, memory_mib=memory_mib, profile=profile, slots=slots))


class Layout:
    """A node's GPUs by kind, whatever is free of them."""

    def __init__(self, node: Node) -> None:
        self.kinds = [_kind(gpu.model, gpu.memory_mib, gpu.profile, gpu.slots) for gpu in node.gpus]
        self.only = self.kinds[0] if self.kinds and self.kinds.count(self.kinds[0]) == len(self.kinds) else None
        self.linked = any(gpu.island is not None or gpu.numa is not None for gpu in node.gpus)

    def slots_for(self, job: Waiting) -> list[int]:
        """What the job would take of each GPU; 0 where it may not have it."""
        if self.only is not None:
            return [self.only.slots_for(job)] * len(self.kinds)
        return [kind.slots_for(job) for kind in self.kinds]


@dataclass(kw_only=True)
class Kept:
    """A node kept for a job that will start there; `left` is what the node has beside that job from then on.

    Others may take what is in `left`, and, where they end within `seconds`, whatever is free till then.
    """

    job: Waiting
    left: "Ledger"
    seconds: float | None = None  # until it starts at the latest; None: nobody can say


class Ledger:
    """One node in one pass. Free CPUs and memory may be below zero, where the host's reserve has grown."""

    def __init__(self, node: Node) -> None:
        self.node, self.layout = node, Layout(node)
        self.millicpus = node.millicpus - node.used_millicpus
        self.memory_mib = node.memory_mib - node.used_memory_mib
        self.free = [0 if gpu.unavailable else max(gpu.slots - gpu.used_slots, 0) for gpu in node.gpus]
        self.kept: Kept | None = None

    @property
    def kept_for(self) -> Waiting | None:
        return self.kept.job if self.kept else None

    def copy(self) -> Self:
        """What is free, and nothing kept."""
        other = type(self).__new__(type(self))
        other.node, other.layout = self.node, self.layout
        other.millicpus, other.memory_mib = self.millicpus, self.memory_mib
        other.free, other.kept = self.free.copy(), None
        return other

    def suiting(self, job: Waiting) -> list[Gpu]:
        """The GPUs with room for the job, in PCI order, whatever is kept."""
        return [self.node.gpus[place] for place in self._places(job)]

    def _places(self, job: Waiting) -> list[int]:
        if not job.gpus:
            return []
        needs = self.layout.slots_for(job)
        here = [place for place, (need, free) in enumerate(zip(needs, self.free, strict=True)) if free >= need > 0]
        return [place for place in here if self.node.gpus[place].uuid not in job.avoid] if job.avoid else here

    def fits(self, job: Waiting) -> bool:
        """Whether the job could start here now, all or nothing, without touching what is kept for another."""
        return self.node.closed is None and self._has_room(job) and not self.hurts_kept(job)

    def _has_room(self, job: Waiting) -> bool:
        if job.millicpus > self.millicpus or job.memory_mib > self.memory_mib:
            return False
        if not job.labels <= self.node.labels or (job.avoid and self.node.name in job.avoid):
            return False
        if not job.gpus:
            return True
        some = len(self.free) - self.free.count(0)
        return some >= least(job) and len(self._places(job)) >= least(job)

    def hurts_kept(self, job: Waiting) -> bool:
        """Whether the job would take something that the node is kept for: only what is left over may go."""
        left = self._not_kept(job)
        if left is None:
            return False
        if job.millicpus > left.millicpus or job.memory_mib > left.memory_mib:
            return True
        return bool(job.gpus) and len(self._open_places(job)) < least(job)

    def _not_kept(self, job: Waiting) -> "Ledger | None":
        """What bounds the job beside what is free now; None: nothing does."""
        kept = self.kept
        if kept is None or kept.job.id == job.id:
            return None
        in_time = kept.seconds is not None and job.limit_seconds is not None and job.limit_seconds <= kept.seconds
        return None if in_time else kept.left

    def _open_places(self, job: Waiting) -> list[int]:
        """Where the GPUs are that the job may have now without touching what is kept."""
        left = self._not_kept(job)
        here = self._places(job)
        return here if left is None else sorted(set(here) & set(left._places(job)))

    def choice(self, job: Waiting) -> tuple[Gpu, ...]:
        """The GPUs that the job would get, the best neighbours there are. The caller has asked `fits`."""
        return tuple([self.node.gpus[place] for place in self._choice(job)])

    def _choice(self, job: Waiting) -> list[int]:
        places, gpus = self._open_places(job), self.node.gpus
        if shares(job):
            return [min(places, key=self._tightness)] if len(places) > 1 else places
        if self.layout.only is not None and not self.layout.linked:
            return sorted(places, key=lambda place: gpus[place].index)[: job.gpus]
        chosen = _uncut_first([gpus[place] for place in places], min(job.gpus, len(places)))
        by_uuid = {gpus[place].uuid: place for place in places}
        return [by_uuid[gpu.uuid] for gpu in chosen]

    def _tightness(self, place: int) -> tuple[int, float, int]:
        gpu = self.node.gpus[place]
        return gpu.memory_mib or 0, self.free[place] / gpu.slots, gpu.index

    def take(self, job: Waiting) -> tuple[Gpu, ...]:
        """Give the job its share of the node; of an elastic one, the length tells how many. `fits` was asked."""
        left, places = self._not_kept(job), self._choice(job)
        self._charge(job, places)
        if left is not None:
            left._charge(job, places)
        if self.kept is not None and self.kept.job.id == job.id:
            self.kept = None
        return tuple([self.node.gpus[place] for place in places])

    def _charge(self, job: Waiting, places: Iterable[int]) -> None:
        for place in places:
            self.free[place] -= slots_of(job, self.node.gpus[place])
        self.millicpus -= job.millicpus
        self.memory_mib -= job.memory_mib

    def release(self, run: Running) -> None:
        """What the run holds comes back, except on GPUs that are unavailable whoever holds them."""
        for place, gpu in enumerate(self.node.gpus):
            if gpu.unavailable is None and gpu.uuid in run.slots:
                self.free[place] = min(self.free[place] + run.slots[gpu.uuid], gpu.slots)
        self.millicpus += run.millicpus
        self.memory_mib += run.memory_mib

    def hold(self, job: Waiting, runs: Iterable[Running]) -> tuple[Gpu, ...] | None:
        """Give the job what these runs hold, with what is free now, before they have ended; None where it won't fit.

        What they leave over is free only once they have ended.
        """
        now, later = self.copy(), self.copy()
        for run in runs:
            later.release(run)
        if not later.fits(job):
            return None
        gpus = later.take(job)
        self.free = [min(pair) for pair in zip(now.free, later.free, strict=True)]
        self.millicpus = min(now.millicpus, later.millicpus)
        self.memory_mib = min(now.memory_mib, later.memory_mib)
        if self.kept is not None and self.kept.job.id == job.id:
            self.kept = None
        return gpus

    def keep(self, job: Waiting, *, seconds: float | None = None, runs: Iterable[Running] = ()) -> None:
        """Keep the node for a job that starts here within `seconds`, once `runs` have ended."""
        left, now = self.copy(), set(self._places(job))
        for run in runs:
            left.release(run)
        gpus = self.node.gpus
        late_first = sorted(  # others may have those free now
            left._places(job), key=lambda place: (not shares(job) and is_cut(gpus[place]), place in now)
        )
        left._charge(job, late_first[: job.gpus])
        self.kept = Kept(job=job, left=left, seconds=seconds)


def _uncut_first(gpus: list[Gpu], count: int) -> tuple[Gpu, ...]:
    """So many of the GPUs, close together; those that are cut for shares only where the others are too few."""
    uncut = [gpu for gpu in gpus if not is_cut(gpu)]
    cut = neighbours.closest([gpu for gpu in gpus if is_cut(gpu)], count - len(uncut))
    return (*neighbours.closest(uncut, count), *cut)
