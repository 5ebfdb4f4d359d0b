"""The database's picture of a node's GPUs, kept up with its readings by few and short writes."""

import time
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from gpus.attribute import unexplained_mib
from gpus.keep import Keeper
from gpus.models import GPU, HostEvent, Node
from gpus.quarantine import quarantine
from gpus.readings import GpuReading, HostReading

_REFRESH = 5.0  # seconds between writes when nothing changed; sooner where SAMPLE_FRESH is short
_CLEAN_SAMPLES = 2  # after an outsider, before the GPU is free again
# Xids by which the driver reports broken hardware (NVIDIA's catalogue); those of users' own programs (13, 31, 43, 45)
# are none of them.
_BROKEN = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
_INVENTORY_TOLD = ("ok", "simulated", "no_gpu")  # statuses under which an absent GPU is really gone

Changes = dict[str, Any]


class Inventory:
    """One node's GPU rows. Of what an admin sets it touches only a quarantine that is not there: that of a GPU whose
    hardware the driver reports as broken, once for each report. Belongs to one thread."""

    def __init__(self, node_name: str) -> None:
        self.node_name = node_name
        self._node: Node | None = None
        self._gpus: dict[str, GPU] = {}  # by UUID, as last written
        self._written_at = float("-inf")
        self._keeper = Keeper()
        self._reports: dict[str, float] = {}  # by UUID, when the last Xid came that was acted on

    def forget(self) -> None:
        """Read the rows again with the next reading: the database failed, or has other rows than we thought."""
        self._node = None

    def update(self, reading: HostReading) -> None:
        """Write what is new in `reading`: at once when something changed, else every few seconds, in one transaction.

        Raises what the database raises; what is to be kept for good stays until it is saved.
        """
        self._keeper.add(reading)
        due = time.monotonic() - self._written_at >= min(_REFRESH, settings.SAMPLE_FRESH / 4)
        node = self._load(reading)
        node_changes = _node_changes(node, reading)
        changes = {uuid: changed for uuid, changed in self._changes(reading, due).items() if changed}
        broken = {gpu.uuid: gpu for gpu in reading.gpus if self._is_newly_broken(gpu)}
        if not (due or node_changes or changes or broken or self._keeper.is_due):
            return
        with transaction.atomic():
            self._write(node, node_changes, changes, reading)
            for gpu in broken.values():
                quarantine([gpu.uuid], f"Xid {gpu.xid}")
            self._keeper.save({uuid: row.pk for uuid, row in self._gpus.items()})
        self._keeper.saved()
        self._reports |= {uuid: gpu.xid_at or 0.0 for uuid, gpu in broken.items()}
        self._written_at = time.monotonic()

    def _is_newly_broken(self, gpu: GpuReading) -> bool:
        """Whether the driver has reported broken hardware since we looked: an admin who lifts a quarantine is heard."""
        return gpu.xid in _BROKEN and self._reports.get(gpu.uuid) != gpu.xid_at

    def _load(self, reading: HostReading) -> Node:
        """The node's row, made on first use, and those of its GPUs and of GPUs that came from another node."""
        uuids = {gpu.uuid for gpu in reading.gpus}
        if self._node is None or not uuids <= self._gpus.keys():
            self._node, _created = Node.objects.get_or_create(name=self.node_name)
            for gpu in reading.gpus:
                GPU.objects.get_or_create(uuid=gpu.uuid, defaults={"node": self._node, "index": gpu.index})
            rows = GPU.objects.filter(Q(node=self._node) | Q(uuid__in=uuids))
            self._gpus = {row.uuid: row for row in rows}
        return self._node

    def _changes(self, reading: HostReading, due: bool) -> dict[str, Changes]:
        """By UUID, the columns that differ from what is written."""
        read = {gpu.uuid: gpu for gpu in reading.gpus}
        wanted: dict[str, Changes] = {}
        for uuid, row in self._gpus.items():
            if uuid in read:
                wanted[uuid] = _identity(read[uuid], self._node) | _health(read[uuid]) | _outside(row, read[uuid], due)
            elif reading.status in _INVENTORY_TOLD:
                health = GPU.Health.SPLIT if uuid in reading.split else GPU.Health.MISSING
                wanted[uuid] = {"health": health, "health_message": ""}
        return {uuid: _differing(self._gpus[uuid], columns) for uuid, columns in wanted.items()}

    def _write(self, node: Node, node_changes: Changes, changes: dict[str, Changes], reading: HostReading) -> None:
        if node_changes:
            _note_change(node, node_changes)
            self._rewrite(node, Node.objects.filter(pk=node.pk), node_changes)
        for uuid, columns in changes.items():
            rows = GPU.objects.filter(uuid=uuid)
            if columns.get("health") in (GPU.Health.MISSING, GPU.Health.SPLIT):
                rows = rows.filter(node=node)  # if it has moved, its new node knows better
            self._rewrite(self._gpus[uuid], rows, columns)
        good = [self._gpus[gpu.uuid].pk for gpu in reading.gpus if gpu.health == "ok"]
        if good and GPU.objects.filter(pk__in=good).update(sampled_at=Now()) != len(good):
            self.forget()

    def _rewrite(self, row: Node | GPU, rows: QuerySet[Any], columns: Changes) -> None:
        """Write these columns only. By `update`: an audit log of admins' changes need not hear of samples."""
        if not rows.update(**columns):
            self.forget()
        for name, value in columns.items():
            setattr(row, name, value)


def _note_change(node: Node, changes: Changes) -> None:
    """Into the host's journal, when its GPUs as a whole cease to work or work again."""
    before, after = node.gpu_status, changes.get("gpu_status", node.gpu_status)
    if before == Node.GpuStatus.UNKNOWN or (before in _INVENTORY_TOLD) == (after in _INVENTORY_TOLD):
        return
    kind = "GPUS_WORK" if after in _INVENTORY_TOLD else "GPUS_FAILED"
    HostEvent.objects.create(node=node, kind=kind, params={"status": after})


def _node_changes(node: Node, reading: HostReading) -> Changes:
    columns = {"gpu_status": Node.GpuStatus(reading.status), "gpu_message": reading.message}
    if reading.driver_version:
        columns["driver_version"] = reading.driver_version[:64]
    return _differing(node, columns)


def _identity(gpu: GpuReading, node: Node | None) -> Changes:
    """What the GPU is. A sick one tells less about itself than it is, so what was known of it stays."""
    known: Changes = {"node": node, "index": gpu.index}
    if gpu.health == "ok":
        known |= {
            "memory_mib": gpu.memory_mib, "profile": gpu.profile[:32], "numa": gpu.numa, "island": gpu.island,
        }  # fmt: skip
    if gpu.model:
        known["model"] = gpu.model[:128]
    if gpu.pci:
        known["pci_bus_id"] = gpu.pci[:32]
    return known


def _health(gpu: GpuReading) -> Changes:
    return {"health": GPU.Health(gpu.health), "health_message": gpu.message[:300]}


def _outside(row: GPU, gpu: GpuReading, due: bool) -> Changes:
    """Who from outside is on the GPU, and how long after them it counts as free again."""
    if gpu.health != "ok":
        return {}
    if gpu.busy_outside:
        found = _outsiders(gpu)
        if not due and _who(found) == _who(row.outsiders):
            found = row.outsiders  # only their memory changed: with the next refresh
        return {"outsiders": found, "clean_samples": 0, "busy_outside_since": row.busy_outside_since or timezone.now()}
    if row.busy_outside_since is None:
        return {}
    clean = row.clean_samples + 1
    if clean < _CLEAN_SAMPLES:
        return {"clean_samples": clean}
    return {"outsiders": [], "clean_samples": clean, "busy_outside_since": None}


def _outsiders(gpu: GpuReading) -> list[Changes]:
    """The foreign processes; with none, the memory that nobody listed holds, as one without a pid."""
    foreign = [process for process in gpu.processes if process.kind == "foreign"]
    if not foreign:
        held = unexplained_mib(gpu.memory_used_mib, gpu.processes)
        return [{"pid": None, "user": None, "name": None, "memory_mib": held, "container": None}]
    return [
        {"pid": p.pid, "user": p.user, "name": p.name, "memory_mib": p.memory_mib, "container": p.container}
        for p in foreign
    ]


def _who(outsiders: list[Changes]) -> list[tuple[Any, ...]]:
    return [(outsider["pid"], outsider["user"], outsider["container"]) for outsider in outsiders]


def _differing(row: Node | GPU, columns: Changes) -> Changes:
    return {name: value for name, value in columns.items() if getattr(row, name) != value}
