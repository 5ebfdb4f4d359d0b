"""The frozen picture that a plan is made from, and the plan. Memory in MiB, CPUs in thousandths, times aware."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from jobs import quotas
from jobs.policy.weights import EQUAL, Weights
from jobs.quotas import Limits, Usage, milli

Reason = dict[str, Any]  # {"code": …, numbers}: a reason to wait, see jobs.wording
WHOLE = quotas.WHOLE  # a whole GPU, in thousandths


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of a node, or one MIG instance of it. `unavailable` says why no job may have it now, whoever holds it.

    A GPU that may be shared has several slots, and a job takes as many as its share needs; others have one.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    slots: int = 1
    used_slots: int = 0
    unavailable: Reason | None = None
    profile: str = ""  # of a MIG instance, such as "1g.10gb"; empty for a whole GPU
    numa: int | None = None  # the NUMA node it hangs on; None: not known
    island: int | None = None  # GPUs of one node with the same number are joined by NVLink; None: not known

    @property
    def taken(self) -> bool:
        return self.used_slots >= self.slots


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host: what it has less the host's reserve, what is allocated, and why it takes no job, if so."""

    name: str
    millicpus: int
    memory_mib: int
    used_millicpus: int = 0
    used_memory_mib: int = 0
    gpus: tuple[Gpu, ...] = ()
    labels: frozenset[str] = frozenset()  # "key=value"
    closed: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A job in the queue, as far as the policy looks at it."""

    id: int
    user: int
    team: int
    priority: int
    queued_at: datetime
    gpus: int  # of an elastic job: the most it can use
    gpu_model: str = ""  # empty: any; several by "|"
    gpu_memory_mib: int = 0
    millicpus: int
    memory_mib: int
    limit_seconds: int | None
    gpu_milli: int = WHOLE  # the share of its one GPU; whole ones where it has several
    gpu_profile: str = ""  # a MIG profile; empty: whole GPUs, or shares of one
    labels: frozenset[str] = frozenset()  # a node must have all of them
    least_gpus: int | None = None  # of an elastic job: it starts with as few as this; None: it is not elastic
    start_after: datetime | None = None
    # when its owner let go of it, who had held it; of one that ran before, later by that time
    released_at: datetime | None = None
    held_by: tuple[str, ...] = ()  # "user", "admin"; "image": it is not, or no longer, allowed
    blocked_since: datetime | None = None
    pinned: bool = False  # by an admin, or on its way to other GPUs: before all others
    moved: bool = False  # on its way to other GPUs, where a place was kept for it until now
    begun: bool = False  # it has run before: how long it may run was decided then
    interactive: bool = False
    avoid: frozenset[str] = frozenset()  # UUIDs of GPUs and names of nodes that it stays away from
    yields_to: int | None = None  # the waiting job that its last run made way for: not before that one
    likely_seconds: tuple[float, float] | None = None  # how long like jobs ran: a low and a high quantile
    most_milli: int = WHOLE  # of a share: on no GPU where more would be charged for it
    is_share: bool = False  # it is one also where a whole GPU is charged for it

    def milli_of(self, gpus: int | None = None) -> int:
        """What the job holds of GPUs once it runs, in thousandths; with `gpus` where it is elastic."""
        return milli(self.gpus if gpus is None else gpus, self.gpu_milli)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Jobs of one shape fit in the same places."""
        return (
            self.gpus, self.least_gpus, self.gpu_milli, self.gpu_model, self.gpu_profile, self.gpu_memory_mib,
            self.millicpus, self.memory_mib, self.labels, self.avoid, self.most_milli, self.is_share,
        )  # fmt: skip


def changed(job: Waiting, **fields: Any) -> Waiting:
    """As `dataclasses.replace`, in a fraction of the time."""
    other = object.__new__(Waiting)
    values = vars(other)
    values.update(vars(job))
    values.pop("shape", None)
    values.update(fields)
    return other


@dataclass(frozen=True, kw_only=True)
class Running:
    """A live run and what it holds."""

    run: int
    job: int
    user: int
    team: int
    priority: int
    node: str
    gpus: int
    slots: Mapping[str, int]  # by GPU UUID
    millicpus: int
    memory_mib: int
    since: datetime  # when it started, else when it was placed: its protected time counts from there
    ends_by: datetime | None  # by its time limit; None: it has none
    likely: tuple[datetime, datetime] | None = None  # by how long like jobs ran: early and late
    preemptible: bool = False
    stopping: bool = False
    makes_way_for: int | None = None  # the job that it was asked to end for
    interactive: bool = False
    movable: bool = False  # may go on elsewhere, so that another job can start
    goes_on: bool = False  # it is stopped in order to go on elsewhere
    ask: Waiting | None = None  # what its job asks for; of a run that is movable or goes on
    gpu_milli: int = WHOLE  # the share of its one GPU; whole ones where it has several
    model: str = ""  # of its GPUs, or of the first of them where they differ

    @property
    def milli(self) -> int:
        """What it holds of GPUs, in thousandths."""
        return milli(self.gpus, self.gpu_milli)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A team, or a member of one, in the fair-share tree: its part, and what it used, by half-life decay."""

    shares: int = 1
    used: float = 0.0  # GPU-seconds, each weighed by ½ ^ (age / half-life)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The admin's choices, in seconds where they are times."""

    reserve_after: float = 600.0  # a blocked job that can't be dated, and is not the first, has a node kept after this
    most_kept: int = 8  # nodes that are kept for blocked jobs at once, beyond those that others make way on
    lift_after: float | None = None  # a job is lifted by one class each time it has waited so long; None: never
    preempt_lower: bool = False  # whether higher classes may stop preemptible lower ones
    protected_for: float = 600.0  # no run is stopped for another before it ran so long
    defragment: bool = False  # whether movable runs are moved so that blocked jobs can start
    weights: Weights = EQUAL  # what counts how much in fair share
    spread: frozenset[int] = frozenset()  # teams whose jobs are spread over hosts; the others are packed


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    now: datetime
    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...]
    user_limits: dict[int, Limits]
    team_limits: dict[int, Limits]
    user_usage: dict[int, Usage]
    team_usage: dict[int, Usage]
    running: tuple[Running, ...] = ()
    team_shares: Mapping[int, Share] = field(default_factory=dict)
    member_shares: Mapping[tuple[int, int], Share] = field(default_factory=dict)  # by (team, user)
    rules: Rules = Rules()
    paused: Reason | None = None


class Placement(NamedTuple):
    """A job that starts now: on this node, with these GPUs by UUID."""

    job: int
    node: str
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What is kept for a blocked job: a node, from `at` on at the latest; None: nobody can say when."""

    job: int
    node: str
    at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """A run that is to end so that a job can start. `why`: GUARANTEE (borrowed GPUs go back) or PRIORITY."""

    run: int
    job: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """A run that is to go on elsewhere so that a job can start in its place."""

    run: int
    job: int


class Expected(NamedTuple):
    """When a waiting job should start; `latest` None: nobody can say."""

    earliest: datetime
    latest: datetime | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every waiting job is placed or has at least one reason."""

    placements: tuple[Placement, ...]
    reasons: dict[int, tuple[Reason, ...]]
    blocked: frozenset[int]  # jobs that nothing but room holds back: their blocked_since starts, or goes on
    order: tuple[int, ...] = ()  # of all waiting jobs, as they were looked at
    reservations: tuple[Reservation, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    moves: tuple[Move, ...] = ()
    going_on: tuple[Running, ...] = ()  # jobs that are being moved, as if they ran where places are kept for them
    expected: dict[int, Expected] = field(default_factory=dict)
