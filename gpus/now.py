"""Every node with its GPUs as they are now: what is known for good, and the last readings."""

from typing import Any

from django.utils import timezone

from gpus import history
from gpus.availability import why_unavailable
from gpus.models import GPU, Node

_UNKNOWN = ("memory_used_mib", "utilisation", "power_w", "temperature_c", "sm_clock_mhz", "job", "owner")


def nodes_now(full: bool) -> list[dict[str, Any]]:
    """The last reading of every node, with `host` and, per GPU, `unavailable` from the database.

    A node without a reading of the last minute has `at` null and its GPUs every value null. `full` is for
    admins: see `for_reader`.
    """
    now = timezone.now()
    nodes = Node.objects.prefetch_related("gpus").order_by("name")
    return [_node(node, history.latest(node.name), now, full) for node in nodes]


def for_reader(reading: dict[str, Any], full: bool) -> dict[str, Any]:
    """The reading as a reader may see it: without `full`, other people's processes have no names and numbers."""
    if full:
        return reading
    return {**reading, "gpus": [_veiled(gpu) for gpu in reading["gpus"]], "containers": []}


def _veiled(gpu: dict[str, Any]) -> dict[str, Any]:
    return {**gpu, "processes": [{**p, "name": None, "pid": None} for p in gpu["processes"]]}


def _node(node: Node, reading: dict[str, Any], now: Any, full: bool) -> dict[str, Any]:
    read = {gpu["uuid"]: gpu for gpu in reading.get("gpus", ())}
    gpus = []
    for gpu in node.gpus.all():
        gpu.node = node
        gpus.append({**_inventory(gpu), **read.pop(gpu.uuid, {}), "unavailable": why_unavailable(gpu, now)})
    said = {
        "node": node.name, "at": None, "status": node.gpu_status, "message": node.gpu_message,
        "simulated": node.gpu_status == Node.GpuStatus.SIMULATED, **reading, "gpus": [*gpus, *read.values()],
        "host": _host(node, now, full),
    }  # fmt: skip
    return for_reader(said, full)


def _inventory(gpu: GPU) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "pci": gpu.pci_bus_id, "memory_mib": gpu.memory_mib,
        "health": gpu.health, "message": gpu.health_message, "processes": [], "busy_outside": False,
        **dict.fromkeys(_UNKNOWN),
    }  # fmt: skip


def _host(node: Node, now: Any, full: bool) -> dict[str, Any]:
    return {
        "alive": node.is_alive(now), "last_seen": node.last_seen and node.last_seen.isoformat(),
        "status_label": str(node.get_gpu_status_display()), "cordoned": node.cordoned,
        "cordon_reason": node.cordon_reason, "driver_version": node.driver_version,
        "engine_version": node.engine_version, "engine_error": node.engine_error if full else bool(node.engine_error),
        "millicpus": node.millicpus, "memory_mib": node.memory_mib,
    }  # fmt: skip
