"""What a replay measures: waits, makespan, use of GPUs and their fragmentation. Pure. Times in seconds."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs.policy.ledger import Ledger
from jobs.policy.past import quantile
from jobs.policy.view import WHOLE, Node, Reason, Snapshot, Waiting

SHAPES = 12  # the most asked for, by which fragmentation is measured


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Waits of some jobs from arrival to first start, without what they were on hold; all None when there are none."""

    jobs: int
    mean: float | None
    p50: float | None
    p90: float | None


def waits(seconds: Iterable[float]) -> Waits:
    values = sorted(seconds)
    if not values:
        return Waits(jobs=0, mean=None, p50=None, p90=None)
    return Waits(jobs=len(values), mean=sum(values) / len(values), p50=quantile(values, 0.5), p90=quantile(values, 0.9))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of a replay. Shares are parts of one; `fragmentation` is a share at each of some moments.

    Fragmentation is the part of all GPUs that is free and yet of no use to the trace's usual jobs, on average.
    """

    tasks: int
    started: int
    ended: int
    waits: Waits
    by_user: dict[int, Waits]
    by_team: dict[int, Waits]
    makespan: float  # from the first arrival to the last end
    gpus: float
    utilisation: float  # of GPU time within the makespan
    fragmentation: tuple[tuple[float, float], ...]  # seconds since the begin, share
    preemptions: int
    moves: int
    passes: int
    never: tuple[tuple[int, Reason], ...] = ()  # the first jobs that could never start, each with what is in the way

    @property
    def mean_fragmentation(self) -> float | None:
        values = [share for _at, share in self.fragmentation]
        return sum(values) / len(values) if values else None


class Meter:
    """Told of every step, it sums up."""

    def __init__(self, picture: Snapshot, jobs: Sequence[Waiting], *, samples: int) -> None:
        self.begin = jobs[0].queued_at if jobs else picture.now
        self.last = self.begin
        self.capacity = float(sum(1 for node in picture.nodes for gpu in node.gpus if gpu.unavailable is None))
        self.gpu_seconds = 0.0
        self.starts = 0
        self.waited: list[tuple[int, int, float]] = []
        self.samples: list[tuple[float, float]] = []
        self.shapes = usual(jobs)
        arrivals = (jobs[-1].queued_at - self.begin).total_seconds() if jobs else 0.0
        self._pause = arrivals / max(samples, 1)
        self._known: dict[Hashable, float] = {}

    def advance(self, now: datetime, *, gpus: float, nodes: Mapping[str, Node]) -> None:
        """Until `now` so many GPUs were held; the nodes are as they are till then."""
        self.gpu_seconds += gpus * (now - self.last).total_seconds()
        self.last = now
        at = (now - self.begin).total_seconds()
        if self.shapes and (not self.samples or at >= self.samples[-1][0] + self._pause):
            self.samples.append((at, self._fragmentation(nodes.values())))

    def started(self, job: Waiting, now: datetime, *, counts: bool, held: float = 0.0) -> None:
        """For the first time, having been on hold for so many seconds."""
        self.starts += 1
        if counts:
            self.waited.append((job.user, job.team, (now - job.queued_at).total_seconds() - held))

    def report(
        self, *, tasks: int, ended: int, last_end: datetime, preemptions: int, moves: int, passes: int,
        never: Sequence[tuple[int, Reason]],
    ) -> Report:  # fmt: skip
        users, teams = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
        for user, team, seconds in self.waited:
            users[user].append(seconds)
            teams[team].append(seconds)
        makespan = (last_end - self.begin).total_seconds()
        whole = self.capacity * makespan
        return Report(
            tasks=tasks, started=self.starts, ended=ended, waits=waits(seconds for *_, seconds in self.waited),
            by_user={user: waits(found) for user, found in sorted(users.items())},
            by_team={team: waits(found) for team, found in sorted(teams.items())},
            makespan=makespan, gpus=self.capacity, utilisation=self.gpu_seconds / whole if whole else 0.0,
            fragmentation=tuple(self.samples), preemptions=preemptions, moves=moves, passes=passes,
            never=tuple(never),
        )  # fmt: skip

    def _fragmentation(self, nodes: Iterable[Node]) -> float:
        if not self.capacity:
            return 0.0
        return sum(self._wasted(node) for node in nodes) / self.capacity

    def _wasted(self, node: Node) -> float:
        """The free GPUs of a node that are of no use. Nodes alike are worked out once."""
        key = (node.used_millicpus, node.used_memory_mib, node.millicpus, node.memory_mib, node.labels,
               tuple((gpu.model, gpu.profile, gpu.memory_mib, gpu.slots, gpu.used_slots, gpu.unavailable is None)
                     for gpu in node.gpus))  # fmt: skip
        if key not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[key] = wasted(Ledger(node), self.shapes)
        return self._known[key]


def usual(jobs: Iterable[Waiting]) -> list[tuple[Waiting, float]]:
    """The shapes of GPU jobs that are asked for most, each as one job and its part of them."""
    jobs = [job for job in jobs if job.gpus]
    of_shape = {job.shape: job for job in reversed(jobs)}
    counts = Counter(job.shape for job in jobs).most_common(SHAPES)
    whole = sum(count for _shape, count in counts)
    return [(of_shape[shape], count / whole) for shape, count in counts]


def wasted(ledger: Ledger, shapes: Sequence[tuple[Waiting, float]]) -> float:
    """How many GPUs of a node are free and of no use, on average over the shapes."""
    free = [part / gpu.slots for gpu, part in zip(ledger.node.gpus, ledger.free, strict=True)]
    whole = sum(free)
    if not whole:
        return 0.0
    return sum(share * (whole - _usable(ledger, job, whole)) for job, share in shapes)


def _usable(ledger: Ledger, job: Waiting, whole: float) -> float:
    """The free GPUs that jobs of this shape could be given."""
    if not ledger.fits(job):
        return 0.0
    least = job.milli_of(1) / WHOLE if job.gpus == 1 else 1.0
    suiting = {gpu.uuid for gpu in ledger.suiting(job)}
    free = zip(ledger.node.gpus, ledger.free, strict=True)
    usable = sum(slots / gpu.slots for gpu, slots in free if gpu.uuid in suiting)
    return min(usable, whole) if usable >= least else 0.0
