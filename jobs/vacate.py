"""Empty hosts: their jobs move to where there is a place for them now, and the others run to their end."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from gpus.models import Node
from jobs import snapshot, suppose
from jobs.images import Allowed
from jobs.models import Cluster, Run
from jobs.policy import Reason, Snapshot
from jobs.rebind import rebind
from jobs.states import RunState


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A run of a host that is to be emptied.

    `to`: the host that has a place for it now; empty: none has, and `reasons` say why. `is_protected`: it has run
    for less than the time that admins protect.
    """

    run: Run
    to: str
    reasons: tuple[Reason, ...]
    is_protected: bool


def leaving(nodes: Iterable[Node], now: datetime) -> list[Leaving]:
    """What would become of each run of the hosts once they are cordoned. No place is promised twice.

    Runs that are being stopped anyway are left out. Those that are protected come last.
    """
    hosts, cluster = {node.pk: node.name for node in nodes}, Cluster.get()
    since = now - timedelta(minutes=cluster.protected_minutes)
    runs = sorted(_runs(hosts), key=lambda run: (_begun(run) > since, run.pk))
    picture = _closed(snapshot.take(now, cluster=cluster), set(hosts.values()))
    allowed, found = Allowed(cluster.image_patterns), []
    for run in runs:
        to, reasons, picture = _place(run, picture, allowed)
        found.append(Leaving(run=run, to=to, reasons=reasons, is_protected=_begun(run) > since))
    return found


def vacate(
    nodes: Iterable[Node], actor: Any, *, regardless: bool = False, protected: bool = False
) -> tuple[list[Leaving], list[Leaving]]:
    """Move the jobs of cordoned hosts away: those that were asked to, and those that are left to run to their end.

    `regardless`: also those that no host has a place for now, which wait for one. `protected`: also those that are.
    """
    moved: list[Leaving] = []
    left: list[Leaving] = []
    for one in leaving(nodes, timezone.now()):
        may = (regardless or bool(one.to)) and (protected or not one.is_protected)
        goes = may and rebind(one.run.job, actor, regardless=True)
        (moved if goes else left).append(one)
    return moved, left


def _runs(hosts: Iterable[int]) -> QuerySet[Run]:
    """What the hosts run or are about to start."""
    live = (RunState.PLACED, RunState.STARTING, RunState.RUNNING)
    return Run.objects.filter(node__in=list(hosts), state__in=live, wish="").select_related("job__owner", "node")


def _begun(run: Run) -> datetime:
    return run.started_at or run.placed_at


def _closed(picture: Snapshot, names: set[str]) -> Snapshot:
    nodes = tuple(
        replace(node, closed=node.closed or {"code": "NODES_CORDONED", "nodes": [node.name]})
        if node.name in names
        else node
        for node in picture.nodes
    )
    return replace(picture, nodes=nodes)


def _place(run: Run, picture: Snapshot, allowed: Allowed) -> tuple[str, tuple[Reason, ...], Snapshot]:
    """Where the run would go on, or why nowhere; and the picture once it has gone there."""
    if not allowed(run.job.image):
        return "", ({"code": "HELD_BY_IMAGE"},), picture
    placed, reasons = suppose.place_for(run.job, run, picture, gpus=run.allocation.gpus, avoid=[])
    if placed is None:
        return "", reasons, picture
    return placed.node, (), suppose.with_placed(picture, run.job, placed)
