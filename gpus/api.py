"""The GPUs of all hosts for programs: inventory from the database, live values where a fresh reading is there."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Prefetch
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema

from gpus import history
from gpus.availability import why_unavailable
from gpus.models import GPU, Node

router = Router(tags=["GPUs"])
LIVE_FIELDS = ("memory_used_mib", "utilisation", "power_w", "temperature_c", "sm_clock_mhz", "job", "owner")


class Process(Schema):
    """`kind`: job, system, foreign (from outside Dockyard) or unknown. Names of outsiders only for staff."""

    pid: int
    kind: str
    memory_mib: int | None
    user: str | None
    name: str | None
    job: int | None
    owner: str | None


class GpuOut(Schema):
    """Null values are not known. `unavailable` says why no job would get it, whoever holds it now."""

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    health: str
    unavailable: dict[str, Any] | None
    memory_used_mib: int | None = None
    utilisation: int | None = Field(None, description="Percent")
    power_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    job: int | None = None
    owner: str | None = None
    processes: list[Process] = []


class NodeOut(Schema):
    name: str
    alive: bool
    status: str
    message: str
    simulated: bool
    cordoned: bool
    cordon_reason: str
    millicpus: int
    memory_mib: int
    last_seen: datetime | None
    sampled_at: float | None = Field(description="Seconds since 1970, of the live values")
    gpus: list[GpuOut]


@router.get("/gpus", response=dict[str, list[NodeOut]])
def gpus(request: HttpRequest) -> dict[str, list[dict[str, Any]]]:
    """Every host with its GPUs, who uses each, and why one that nobody uses is not given away."""
    now = timezone.now()
    inventory = Prefetch("gpus", queryset=GPU.objects.select_related("node").order_by("index"))
    staff = bool(request.user.is_staff)
    return {"nodes": [_node(node, now, staff) for node in Node.objects.prefetch_related(inventory)]}


def _node(node: Node, now: datetime, staff: bool) -> dict[str, Any]:
    reading = _fresh(node.name, now)
    live = {gpu["uuid"]: gpu for gpu in reading.get("gpus", [])}
    return {
        "name": node.name, "alive": node.is_alive(now), "status": node.gpu_status, "message": node.gpu_message,
        "simulated": node.gpu_status == Node.GpuStatus.SIMULATED, "cordoned": node.cordoned,
        "cordon_reason": node.cordon_reason, "millicpus": node.millicpus, "memory_mib": node.memory_mib,
        "last_seen": node.last_seen, "sampled_at": reading.get("at"),
        "gpus": [_gpu(gpu, live.get(gpu.uuid, {}), now, staff) for gpu in node.gpus.all()],
    }  # fmt: skip


def _fresh(node: str, now: datetime) -> dict[str, Any]:
    """The node's last reading while it tells the present; empty when it is old."""
    reading = history.latest(node)
    return reading if reading and now.timestamp() - reading["at"] < settings.SAMPLE_FRESH else {}


def _gpu(gpu: GPU, live: dict[str, Any], now: datetime, staff: bool) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "memory_mib": gpu.memory_mib,
        "health": gpu.health, "unavailable": why_unavailable(gpu, now),
        **{name: live.get(name) for name in LIVE_FIELDS},
        "processes": [_process(process, staff) for process in live.get("processes", [])],
    }  # fmt: skip


def _process(process: dict[str, Any], staff: bool) -> dict[str, Any]:
    hidden = not staff and process["kind"] != "system"
    return process | ({"name": None} if hidden else {})
