"""Every node with its GPUs as they are now: what is known for good, and the last readings."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings
from django.utils import timezone

from gpus import history
from gpus.availability import why_unavailable
from gpus.holders import Holder, holders, seen_by
from gpus.models import GPU, Node

_UNKNOWN = (
    "memory_used_mib", "utilisation", "power_w", "power_limit_w", "temperature_c", "sm_clock_mhz", "mem_clock_mhz",
    "throttle", "ecc_errors", "xid", "xid_at",
)  # fmt: skip
_FORGOTTEN = timedelta(days=1)
_NOBODY: dict[str, Any] = {"job": None, "owner": None, "job_name": None, "holders": []}


@dataclass(frozen=True)
class Picture:
    """What is known of all nodes at one moment, whoever looks."""

    at: datetime
    nodes: list[Node]  # with their GPUs
    read: dict[str, dict[str, Any]]  # by node: its last reading; empty when there is none of the last minute
    held: dict[int, list[Holder]]  # by GPU

    @cached_property
    def jobs(self) -> frozenset[int]:
        """All that are on a GPU."""
        return frozenset(holder.job for held in self.held.values() for holder in held)


def take_picture() -> Picture:
    nodes = list(Node.objects.filter(left_at=None).prefetch_related("gpus").order_by("name"))
    return Picture(timezone.now(), nodes, history.latest_of(node.name for node in nodes), holders())


def named_to(reader: Any, picture: Picture) -> frozenset[int]:
    """The jobs on GPUs whose names the reader may see."""
    return seen_by(reader, picture.jobs)


def nodes_now(reader: Any) -> list[dict[str, Any]]:
    """Every node as this reader may see it now, see `nodes_in`."""
    picture = take_picture()
    return nodes_in(picture, named_to(reader, picture), full=bool(getattr(reader, "is_staff", False)))


def nodes_in(picture: Picture, named: frozenset[int], *, full: bool) -> list[dict[str, Any]]:
    """The last reading of every node, with `host` and, per GPU, `unavailable` and its holders from the database.

    A node without a reading of the last minute has `at` null and its GPUs every read value null. `job_name` is
    null for jobs that are not `named`. `state` is one of sick, used, hidden, outside, closed, unknown, cordoned, free,
    the first that is true: free is only what a fresh reading of an open host shows to be free. Staff (`full`) see
    hidden GPUs always, others while a job is on them; staff also see what `for_reader` veils.
    """
    held = {gpu: _held(found, named) for gpu, found in picture.held.items()}
    labels = {value: str(label) for value, label in Node.GpuStatus.choices}
    return [
        _node(node, picture.read[node.name], held, picture.at, full) | {"host": _host(node, picture.at, full, labels)}
        for node in picture.nodes
    ]


def _held(found: list[Holder], named: frozenset[int]) -> dict[str, Any]:
    """All holders, and the first of them by itself."""
    told = [vars(holder) if holder.job in named else {**vars(holder), "job_name": None} for holder in found]
    return {**told[0], "holders": told}


def silent_hosts() -> list[str]:
    """Hosts that were heard of within a day, are open, and have been silent for too long: pages show old values."""
    now = timezone.now()
    told = {"last_seen__lt": now - timedelta(seconds=settings.NODE_SILENT_AFTER), "last_seen__gt": now - _FORGOTTEN}
    silent = Node.objects.filter(cordoned=False, left_at=None, declared_dead_at=None, **told)
    return list(silent.order_by("name").values_list("name", flat=True))


def for_reader(reading: dict[str, Any], full: bool) -> dict[str, Any]:
    """The reading as a reader may see it: without `full`, other people's processes have no names and numbers."""
    if full:
        return reading
    return {**reading, "gpus": [_veiled(gpu) for gpu in reading["gpus"]], "containers": []}


def _veiled(gpu: dict[str, Any]) -> dict[str, Any]:
    return {**gpu, "processes": [{**p, "name": None, "pid": None} for p in gpu["processes"]]}


def _node(node: Node, reading: dict[str, Any], held: dict[int, Any], now: Any, full: bool) -> dict[str, Any]:
    read = {gpu["uuid"]: gpu for gpu in reading.get("gpus", ())}
    gpus = []
    for gpu in (gpu for gpu in node.gpus.all() if gpu.health != GPU.Health.SPLIT):
        if full or not gpu.hidden or gpu.pk in held:
            gpu.node = node
            known = {**held.get(gpu.pk, _NOBODY), "unavailable": why_unavailable(gpu, now)}
            shown = {**_inventory(gpu), **read.get(gpu.uuid, {}), **known}
            gpus.append(shown | {"state": _state(shown, node, _is_fresh(reading, now))})
    said = {
        "node": node.name, "at": None, "status": node.gpu_status, "message": node.gpu_message,
        "simulated": node.gpu_status == Node.GpuStatus.SIMULATED, **reading, "gpus": gpus,
    }  # fmt: skip
    return for_reader(said, full)


def _is_fresh(reading: dict[str, Any], now: datetime) -> bool:
    return bool(now.timestamp() - reading.get("at", 0) <= settings.SAMPLE_FRESH)


def _state(gpu: dict[str, Any], node: Node, fresh: bool) -> str:
    """As `kind` in static/src/gpucards.js, which goes on from here as readings come and age."""
    why = (gpu["unavailable"] or {}).get("code")
    found = {
        "sick": gpu["health"] not in (GPU.Health.OK, GPU.Health.UNKNOWN), "used": gpu["job"] is not None,
        "hidden": gpu["hidden"], "outside": gpu["busy_outside"], "closed": why not in (None, "GPU_UNSAMPLED"),
        "unknown": why is not None or not fresh, "cordoned": node.cordoned,
    }  # fmt: skip
    return next((state for state, is_so in found.items() if is_so), "free")


def _inventory(gpu: GPU) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "pci": gpu.pci_bus_id, "memory_mib": gpu.memory_mib,
        "profile": gpu.profile, "slots": gpu.slots, "hidden": gpu.hidden, "health": gpu.health,
        "message": gpu.health_message,
        "processes": [], "busy_outside": False,
        **dict.fromkeys(_UNKNOWN),
    }  # fmt: skip


def _host(node: Node, now: Any, full: bool, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "alive": node.is_alive(now), "last_seen": node.last_seen and node.last_seen.isoformat(),
        "status_label": labels.get(node.gpu_status, node.gpu_status), "cordoned": node.cordoned,
        "cordon_reason": node.cordon_reason, "driver_version": node.driver_version,
        "engine_version": node.engine_version, "engine_error": node.engine_error if full else bool(node.engine_error),
        "millicpus": node.millicpus, "memory_mib": node.memory_mib,
    }  # fmt: skip
