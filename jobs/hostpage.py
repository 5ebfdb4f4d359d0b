"""Hosts as people look at them: how each is, what it has, what runs there; for staff also what ails it, and why."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.utils import timezone

from gpus.availability import why_unavailable
from gpus.models import GPU, HostAccess, HostEvent, Node
from jobs import snapshot
from jobs.access import sees
from jobs.models import AllocationSlot, Run
from jobs.states import LIVE_RUNS
from portal.doctor.stores import MOST_SKEW, is_nearly_full

EVENTS_SHOWN = 100
# State of a host to its tone and icon; the first that is true, in this order.
LOOKS = {
    "left": ("grey", "bi-box-arrow-right"),
    "new": ("grey", "bi-hourglass"),
    "dead": ("red", "bi-x-octagon"),
    "silent": ("red", "bi-plug"),
    "returning": ("amber", "bi-arrow-counterclockwise"),
    "engine": ("red", "bi-exclamation-octagon"),
    "driver": ("red", "bi-exclamation-octagon"),
    "full": ("red", "bi-device-hdd"),
    "cordoned": ("orange", "bi-sign-stop"),
    "works": ("green", "bi-check-circle"),
}
_NO_TROUBLE = (Node.GpuStatus.OK, Node.GpuStatus.SIMULATED, Node.GpuStatus.NO_GPU, Node.GpuStatus.UNKNOWN)


@dataclass(frozen=True)
class Running:
    """A run on a host. `name` is None where the reader may not see the job."""

    run: Run
    gpus: list[int]  # indexes
    name: str | None


@dataclass(frozen=True)
class Host:
    """One host as it is now. `problems` are codes with their numbers, for `wording.host_problem`; for staff alone."""

    node: Node
    at: datetime
    gpus: list[GPU]
    held: frozenset[int]  # GPUs that a job holds, by primary key
    running: list[Running]

    @cached_property
    def state(self) -> str:
        node, alive = self.node, self.node.is_alive(self.at)
        found = {
            "left": node.left_at is not None, "new": node.last_seen is None,
            "dead": not alive and node.declared_dead_at is not None, "silent": not alive,
            "returning": node.declared_dead_at is not None, "engine": bool(node.engine_error),
            "driver": node.gpu_status not in _NO_TROUBLE, "full": snapshot.full(node) is not None,
            "cordoned": node.cordoned,
        }  # fmt: skip
        return next((state for state, is_so in found.items() if is_so), "works")

    @property
    def tone(self) -> str:
        return LOOKS[self.state][0]

    @property
    def icon(self) -> str:
        return LOOKS[self.state][1]

    @property
    def is_silent(self) -> bool:
        """It was heard of once, and is not: it can be given up."""
        return self.state == "silent"

    @property
    def models(self) -> list[tuple[str, int]]:
        return sorted(Counter(gpu.model for gpu in self.gpus).items())

    @property
    def held_count(self) -> int:
        return sum(gpu.pk in self.held for gpu in self.gpus)

    @property
    def disks(self) -> list[dict[str, Any]]:
        return list((self.node.facts or {}).get("disks", ()))

    @cached_property
    def least_free(self) -> int | None:
        """MiB on the disk that has least; None: not told."""
        return min((disk["free_mib"] for disk in self.disks), default=None)

    @cached_property
    def problems(self) -> list[tuple[str, dict[str, Any]]]:
        """What an admin should look at, the worst first."""
        return [*self._of_host(), *self._of_facts(), *self._of_gpus()]

    def _of_host(self) -> Iterable[tuple[str, dict[str, Any]]]:
        if self.node.engine_error:
            yield "ENGINE", {"message": self.node.engine_error}
        if self.node.gpu_status not in _NO_TROUBLE:
            yield "DRIVER", {"status": self.node.gpu_status, "message": self.node.gpu_message}

    def _of_facts(self) -> Iterable[tuple[str, dict[str, Any]]]:
        skew = (self.node.facts or {}).get("clock_skew")
        if skew is not None and abs(skew) > MOST_SKEW:
            yield "CLOCK", {"seconds": skew}
        for disk in self.disks:
            if is_nearly_full(disk["free_mib"] << 20, disk["total_mib"] << 20):
                yield "DISK", disk

    def _of_gpus(self) -> Iterable[tuple[str, dict[str, Any]]]:
        if self.state in ("left", "new", "dead", "silent"):
            return
        for gpu in self.gpus:
            why = why_unavailable(gpu, self.at)
            if why and why["code"] in ("GPU_QUARANTINED", "GPU_UNHEALTHY", "GPU_BUSY_OUTSIDE"):
                yield "GPU", {"index": gpu.index, "reason": why}


def hosts(reader: Any, names: Sequence[str] = ()) -> list[Host]:
    """All hosts that have not left, or those of these names whatever became of them."""
    now = timezone.now()
    nodes = Node.objects.filter(name__in=names) if names else Node.objects.filter(left_at=None)
    found = list(nodes.prefetch_related("gpus").order_by("name"))
    running = _running(reader, found)
    held = frozenset(AllocationSlot.objects.filter(released_at=None).values_list("gpu_id", flat=True))
    return [_host(node, now, held, running.get(node.pk, []), reader) for node in found]


def _host(node: Node, now: datetime, held: frozenset[int], running: list[Running], reader: Any) -> Host:
    shown = []
    for gpu in node.gpus.all():
        gpu.node = node
        if gpu.health != GPU.Health.SPLIT and (reader.is_staff or not gpu.hidden or gpu.pk in held):
            shown.append(gpu)
    return Host(node, now, shown, held, running)


def _running(reader: Any, nodes: list[Node]) -> dict[int, list[Running]]:
    """By host, what runs there or is about to, the oldest first."""
    runs = Run.objects.filter(node__in=nodes, state__in=LIVE_RUNS).select_related("job__owner").order_by("placed_at")
    slots = AllocationSlot.objects.filter(allocation__run__in=runs, released_at=None).order_by("gpu__index")
    gpus: dict[int, dict[int, None]] = {}
    for holder, index in slots.values_list("allocation__run_id", "gpu__index"):
        gpus.setdefault(holder, {})[index] = None
    may_see = sees(reader)
    found: dict[int, list[Running]] = {}
    for run in runs:
        name = run.job.name if may_see(run.job.owner_id, run.job.team_id) else None
        found.setdefault(run.node_id, []).append(Running(run, list(gpus.get(run.pk, ())), name))
    return found


def events(node: Node) -> list[HostEvent]:
    """The newest of what befell a host, the newest first."""
    return list(HostEvent.objects.filter(node=node).select_related("actor").order_by("-id")[:EVENTS_SHOWN])


def access(node: Node) -> HostAccess | None:
    """With what the host has joined; None: it runs with the portal's own settings."""
    return HostAccess.objects.filter(node=node).first()
