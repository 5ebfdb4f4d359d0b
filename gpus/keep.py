"""What is kept of the readings for good: minutes of GPUs and of containers, and what each run used in all."""

from collections.abc import Iterable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from gpus.minutes import CONTAINER_METRICS, METRICS, Minute, Minutes, Use, Uses, of_containers, of_gpus
from gpus.models import ContainerMinute, GPUMinute, RunUse
from gpus.readings import HostReading

_UNSAVED = 10_000  # minutes kept in memory while the database is away
_LARGEST = {"cpu_percent_max", "memory_max_mib", "gpus_busy_max", "gpu_memory_max_mib"}  # of a Use; others are sums
_USE_COLUMNS = [field.name for field in fields(Use)]


class Keeper:
    """One node's. `add` every reading, `save` now and then within a transaction, and say `saved` once it is over."""

    def __init__(self) -> None:
        self._gpus = Minutes(tuple(METRICS))
        self._containers = Minutes(CONTAINER_METRICS)
        self._uses = Uses()
        self._gpu_minutes: list[Minute] = []
        self._container_minutes: list[Minute] = []

    def add(self, reading: HostReading) -> None:
        self._gpu_minutes = (self._gpu_minutes + self._gpus.add(reading.at, of_gpus(reading.gpus)))[-_UNSAVED:]
        done = self._containers.add(reading.at, of_containers(reading))
        self._container_minutes = (self._container_minutes + done)[-_UNSAVED:]
        self._uses.add(reading)

    def save(self, gpus: dict[str, int]) -> None:
        """Write what is complete. `gpus`: UUID to primary key of the rows that there are."""
        if not self.is_due:
            return
        GPUMinute.objects.bulk_create(
            [_gpu_row(gpus[str(m.key)], m) for m in _latest(self._gpu_minutes) if m.key in gpus],
            update_conflicts=True, unique_fields=["gpu", "minute"], update_fields=[*METRICS, "throttle"],
        )  # fmt: skip
        ContainerMinute.objects.bulk_create(
            map(_container_row, _latest(self._container_minutes)), update_conflicts=True,
            unique_fields=["run", "minute"], update_fields=[*CONTAINER_METRICS, "memory_max_mib"],
        )  # fmt: skip
        _save_uses(self._uses.so_far())

    def saved(self) -> None:
        """What `save` wrote is in the database for good."""
        if self.is_due:
            self._gpu_minutes, self._container_minutes = [], []
            self._uses.forget()

    @property
    def is_due(self) -> bool:
        """Whether there is something to save: once a minute, and when a run has ended."""
        return bool(self._gpu_minutes or self._container_minutes)


def _save_uses(uses: dict[int, Use]) -> None:
    """Add to what the runs had used before. A run is on one node only, whose one writer this is."""
    known = RunUse.objects.in_bulk(uses)
    rows = [RunUse(run=run, **_sum(known.get(run), asdict(use))) for run, use in uses.items()]
    RunUse.objects.bulk_create(rows, update_conflicts=True, unique_fields=["run"], update_fields=_USE_COLUMNS)


def _sum(before: RunUse | None, use: dict[str, Any]) -> dict[str, Any]:
    if before is None:
        return use
    old = {name: getattr(before, name) for name in use}
    return {name: _joined(name, old[name], use[name]) for name in use}


def _joined(name: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if name in _LARGEST else one + other


def _latest(minutes: list[Minute]) -> Iterable[Minute]:
    """Of a minute that was told twice the later word: PostgreSQL writes no row twice in one statement."""
    return {(minute.key, minute.start): minute for minute in minutes}.values()


def _gpu_row(gpu: int, minute: Minute) -> GPUMinute:
    return GPUMinute(gpu_id=gpu, minute=_start(minute), throttle=minute.throttle, **minute.means)


def _container_row(minute: Minute) -> ContainerMinute:
    most = minute.peaks["memory_mib"]
    return ContainerMinute(run=minute.key, minute=_start(minute), memory_max_mib=most, **minute.means)


def _start(minute: Minute) -> datetime:
    return datetime.fromtimestamp(minute.start, UTC)
