"""Which GPU reading belongs to which job: live, and over a run's life."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from gpus import history
from jobs.models import Job, Run
from jobs.status import granted_gpus

Point = tuple[Any, ...]  # at, then METRICS
MINUTE = timedelta(minutes=1)
FULL_RATE = 3600  # seconds for which every sample is kept
MOST_POINTS = 720  # a chart is about that many pixels wide
METRICS = ("utilisation", "memory_mib", "power_w", "temperature_c")
_SAMPLE_KEYS = ("utilisation", "memory_used_mib", "power_w", "temperature_c")


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

    `at` in seconds since 1970; a metric that was not read is null, and a row of nulls parts what is not
    continuous. Every sample while they are kept (an hour), before that the means of the minutes that lie wholly
    inside the run, thinned to MOST_POINTS.
    """
    run = run or job.current_run
    if run is None or run.started_at is None:
        return []
    return [{**gpu, **_series(gpu["uuid"], run)} for gpu in granted_gpus(run)]


def _series(uuid: str, run: Run) -> dict[str, list[Any]]:
    assert run.started_at is not None
    start, end = run.started_at, run.ended_at or timezone.now()
    seconds = _seconds(uuid, start, end)
    until = datetime.fromtimestamp(seconds[0][0], UTC) if seconds else end  # from there on they tell more
    return _columns(_parted(_minutes(uuid, start, until), seconds))


def _seconds(uuid: str, start: datetime, end: datetime) -> list[Point]:
    """Every sample of a run of these times that Redis still has."""
    age = (timezone.now() - start).total_seconds()
    if (timezone.now() - end).total_seconds() > FULL_RATE:
        return []
    samples = history.recent(uuid, min(FULL_RATE, int(age) + 1))
    inside = [sample for sample in samples if start.timestamp() <= sample["at"] <= end.timestamp()]
    return [(sample["at"], *(sample.get(key) for key in _SAMPLE_KEYS)) for sample in inside]


def _minutes(uuid: str, start: datetime, end: datetime) -> list[Point]:
    """The means of the minutes that begin and end within these times: others are in part somebody else's."""
    first = start.replace(second=0, microsecond=0) + MINUTE if start.second or start.microsecond else start
    rows = history.minutes(uuid, first, end - MINUTE + timedelta(microseconds=1))
    return [(row["minute"].timestamp() + 30, *(row[metric] for metric in METRICS)) for row in rows]


def _parted(minutes: list[Point], seconds: list[Point]) -> list[Point]:
    """Both in one row, thinned, with a point of nulls wherever readings are missing in between."""
    step = -(-(len(minutes) + len(seconds)) // MOST_POINTS) or 1
    apart = max(10.0, 5 * settings.SAMPLE_PERIOD)
    pieces: list[list[Point]] = []
    for point, most in [*((m, 150.0) for m in minutes), *((s, apart if i else 150.0) for i, s in enumerate(seconds))]:
        if not pieces or point[0] - pieces[-1][-1][0] > most:
            pieces.append([])
        pieces[-1].append(point)
    thin = [piece[::step] for piece in pieces]
    gap = (None,) * len(METRICS)
    return [point for i, piece in enumerate(thin) for point in ([(piece[0][0] - 0.001, *gap)] if i else []) + piece]


def _columns(points: list[Point]) -> dict[str, list[Any]]:
    columns = list(zip(*points, strict=True)) or [()] * 5
    return {name: list(column) for name, column in zip(("at", *METRICS), columns, strict=True)}
