"""Which GPU reading belongs to which job: live, and over a run's life."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from gpus import history
from gpus.models import Node
from gpus.now import for_reader
from jobs.models import Job, Run
from jobs.status import granted_gpus

FULL_RATE = 3600  # seconds for which every sample is kept
MOST_POINTS = 720  # a chart is about that many pixels wide
METRICS = ("utilisation", "memory_mib", "power_w", "temperature_c")
_SAMPLE_KEYS = ("utilisation", "memory_used_mib", "power_w", "temperature_c")


def gpus_now(full: bool = False) -> list[dict[str, Any]]:
    """Every node's last reading (see docs/architecture.md), each GPU with its job and owner. Empty without Redis."""
    readings = (history.latest(name) for name in Node.objects.order_by("name").values_list("name", flat=True))
    return [for_reader(reading, full) for reading in readings if reading]


def job_gpus(reading: dict[str, Any], uuids: Iterable[str], job_id: int) -> dict[str, Any]:
    """The part of a node's reading that is about one job: its GPUs and its container."""
    wanted = set(uuids)
    return {
        "node": reading.get("node"), "at": reading.get("at"),
        "gpus": [gpu for gpu in reading.get("gpus", ()) if gpu["uuid"] in wanted],
        "containers": [found for found in reading.get("containers", ()) if found.get("job") == job_id],
    }  # fmt: skip


def job_gpus_now(job: Job, run: Run | None) -> dict[str, Any] | None:
    """The last reading of a live run's GPUs; None when there is none of the last minute."""
    reading = history.latest(run.node.name) if run else {}
    return job_gpus(reading, [gpu["uuid"] for gpu in granted_gpus(run)], job.pk) if reading else None


def job_charts(job: Job, run: Run | None = None) -> list[dict[str, Any]]:
    """One chart set per GPU of the run: `{uuid, index, model, short, node, at: […], <metric>: […]}`.

    `at` in seconds since 1970; a metric that was not read is null. Every sample while they are kept (an hour),
    minute means before that, thinned to MOST_POINTS.
    """
    run = run or job.current_run
    if run is None or run.started_at is None:
        return []
    return [{**gpu, **_series(gpu["uuid"], run)} for gpu in granted_gpus(run)]


def _series(uuid: str, run: Run) -> dict[str, list[Any]]:
    assert run.started_at is not None
    now = timezone.now()
    start, end = run.started_at, run.ended_at or now
    fine_from = max(start, now - timedelta(seconds=FULL_RATE))
    points = [
        (row["minute"].timestamp() + 30, *(row[metric] for metric in METRICS))
        for row in history.minutes(uuid, start.replace(second=0, microsecond=0), min(end, fine_from))
    ]
    if end > fine_from:
        age = (now - fine_from).total_seconds()
        samples = [s for s in history.recent(uuid, int(age) + 1) if start.timestamp() <= s["at"] <= end.timestamp()]
        points += [(s["at"], *(s.get(key) for key in _SAMPLE_KEYS)) for s in samples]
        if not samples:  # Redis has forgotten: the minutes are what is left
            points += [
                (row["minute"].timestamp() + 30, *(row[metric] for metric in METRICS))
                for row in history.minutes(uuid, fine_from, end)
            ]
    return _columns(_thinned(points))


def _thinned(points: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    step = -(-len(points) // MOST_POINTS) or 1
    return points[::step]


def _columns(points: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = list(zip(*points, strict=True)) or [()] * 5
    return {name: list(column) for name, column in zip(("at", *METRICS), columns, strict=True)}
