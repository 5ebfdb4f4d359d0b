"""The strip of a dashboard: one cell for each GPU, by who has it and how busy it is. Few columns, few queries."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone

from gpus import history
from gpus.availability import why_unavailable
from gpus.models import GPU, Node
from jobs.access import sees
from jobs.models import AllocationSlot
from jobs.snapshot import cordoned


class Holder(NamedTuple):
    """A job that holds a GPU, or a share of it, now."""

    gpu: int  # primary key
    uuid: str
    job: int
    owner: int
    team: int
    username: str
    since: datetime | None  # its container's start


Held = dict[int, list[Holder]]  # by GPU primary key


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A GPU: `kind` is mine, taken, free, closed or unknown; `busy` is percent or None.

    A shared GPU is mine if one of its jobs is. `job` is the first of its holders that the reader may see.
    """

    index: int
    model: str
    kind: str
    holders: Sequence[Holder]
    job: int | None
    closed: dict[str, Any] | None  # why no job may have it, as a reason to wait
    busy: int | None


def holders() -> Held:
    """GPU to whatever holds it or a share of it, each once."""
    job = "allocation__run__job"
    rows = AllocationSlot.objects.filter(released_at=None).order_by("gpu_id", "slot").values_list(
        "gpu_id", "gpu__uuid", f"{job}_id", f"{job}__owner_id", f"{job}__team_id", f"{job}__owner__username",
        "allocation__run__started_at",
    )  # fmt: skip
    found: Held = defaultdict(list)
    for holder in dict.fromkeys(Holder(*row) for row in rows):
        found[holder.gpu].append(holder)
    return found


def strip(user: Any, held: Held) -> list[tuple[str, list[Cell]]]:
    """Each host's name with its cells. Hidden GPUs only while something holds them.

    Of a GPU that is held nothing but its name is looked at, and there may be hundreds: only the others are read whole.
    """
    now, may_see, me = timezone.now(), sees(user), user.pk
    nodes = {node.pk: node for node in Node.objects.filter(left_at=None)}
    busy = _utilisation(nodes.values())
    there = GPU.objects.filter(node__left_at=None).order_by("node__name", "index")
    rows = there.values_list("pk", "uuid", "node_id", "index", "model", "hidden")
    idle = GPU.objects.in_bulk([pk for pk, *_more, hidden in rows if not hidden and pk not in held])
    hosts: dict[str, list[Cell]] = {}
    for pk, uuid, node, index, model, _hidden in rows:
        closed = None
        if pk in idle:
            idle[pk].node = nodes[node]
            closed = _closed(idle[pk], now)
        elif pk not in held:
            continue
        found = sorted(held.get(pk, ()), key=lambda holder: (holder.owner != me, holder.job))  # the user's first
        cell = Cell(
            index=index, model=model, kind=_kind(found, closed, uuid in busy, me), holders=found,
            job=found[0].job if found and may_see(found[0].owner, found[0].team) else None, closed=closed,
            busy=busy.get(uuid),
        )  # fmt: skip
        hosts.setdefault(nodes[node].name, []).append(cell)
    return list(hosts.items())


def _closed(gpu: GPU, now: datetime) -> dict[str, Any] | None:
    """Why no job may have the GPU, as a reason to wait."""
    if not gpu.node.is_alive(now):
        return {"code": "NODES_SILENT", "nodes": gpu.node.name}
    if gpu.node.declared_dead_at is not None:
        return {"code": "NODES_RETURNING", "nodes": gpu.node.name}
    if gpu.node.cordoned:
        return cordoned(gpu.node)
    return why_unavailable(gpu, now)


def _kind(held: list[Holder], closed: dict[str, Any] | None, read: bool, me: int) -> str:
    """Free is only what was read to be free."""
    if held:
        return "mine" if held[0].owner == me else "taken"
    if closed and closed["code"] != "GPU_UNSAMPLED":
        return "closed"
    return "unknown" if closed or not read else "free"


def _utilisation(nodes: Any) -> dict[str, int | None]:
    """GPU UUID to its utilisation in percent, of the fresh readings; nothing when Redis is away."""
    oldest = timezone.now().timestamp() - settings.SAMPLE_FRESH
    found = history.latest_of(node.name for node in nodes).values()
    fresh = [reading for reading in found if reading.get("at", 0) >= oldest]
    return {gpu["uuid"]: gpu.get("utilisation") for reading in fresh for gpu in reading.get("gpus", ())}
