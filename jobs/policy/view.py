"""The frozen picture that a plan is made from, and the plan. Memory in MiB, CPUs in thousandths, times aware."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.quotas import Limits, Usage

Reason = dict[str, Any]  # {"code": …, numbers}: a reason to wait, see jobs.wording


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of a node. `unavailable` says why no job may have it now, whoever holds it; None when one may."""

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    taken: bool
    unavailable: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host: what it has less the host's reserve, what is allocated, and why it takes no job, if so."""

    name: str
    millicpus: int
    memory_mib: int
    used_millicpus: int = 0
    used_memory_mib: int = 0
    gpus: tuple[Gpu, ...] = ()
    closed: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A job in the queue, as far as the policy looks at it."""

    id: int
    user: int
    team: int
    priority: int
    queued_at: datetime
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    millicpus: int
    memory_mib: int
    limit_seconds: int | None
    start_after: datetime | None = None
    held_by: tuple[str, ...] = ()  # "user", "admin"
    blocked_since: datetime | None = None

    @property
    def shape(self) -> tuple[int, str, int, int, int]:
        """Jobs of one shape fit in the same places."""
        return self.gpus, self.gpu_model, self.gpu_memory_mib, self.millicpus, self.memory_mib


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    now: datetime
    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...]
    user_limits: dict[int, Limits]
    team_limits: dict[int, Limits]
    user_usage: dict[int, Usage]
    team_usage: dict[int, Usage]
    reserve_after_seconds: float
    paused: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A job that starts now: on this node, with these GPUs by UUID."""

    job: int
    node: str
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every waiting job is placed or has at least one reason. `kept` maps node names to the job they wait for."""

    placements: tuple[Placement, ...]
    reasons: dict[int, tuple[Reason, ...]]
    blocked: frozenset[int]  # jobs that nothing but room holds back: their blocked_since starts, or goes on
    kept: dict[str, int] = field(default_factory=dict)
