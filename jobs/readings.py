"""Which readings belong to which job: live, and over a run's life."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from gpus import history
from gpus.minutes import CONTAINER_METRICS, METRICS
from gpus.readings import throttle_mask
from gpus.series import Line, Point, line, points
from jobs import wording
from jobs.models import Job, JobEvent, Run
from jobs.status import granted_gpus

MINUTE = timedelta(minutes=1)
FULL_RATE = 3600  # seconds for which every sample is kept
MOST_POINTS = 720  # a chart is about that many pixels wide
MOST_EVENTS = 100
GPU_LINES = (*METRICS, "throttle")
MARKED = ("MOVED", "ENDED", "WISHED", "SIGNALLED", "WARNED", "WORKS_AGAIN", "EXTENDED")  # on charts


@dataclass(frozen=True)
class Window:
    """From when to when, aware."""

    start: datetime
    end: datetime

    def holds(self, at: float) -> bool:
        return self.start.timestamp() <= at <= self.end.timestamp()


def job_gpus(reading: dict[str, Any], uuids: Iterable[str], job_id: int) -> dict[str, Any]:
    """The part of a node's reading that is about one job: its GPUs and its container."""
    wanted = set(uuids)
    return {
        "node": reading.get("node"), "at": reading.get("at"),
        "gpus": [gpu for gpu in reading.get("gpus", ()) if gpu["uuid"] in wanted],
        "containers": [found for found in reading.get("containers", ()) if found.get("job") == job_id],
    }  # fmt: skip


def job_gpus_now(job: Job, run: Run | None) -> dict[str, Any] | None:
    """The last reading of a live run's GPUs and container; None when there is none of the last minute."""
    reading = history.latest(run.node.name) if run else {}
    return job_gpus(reading, [gpu["uuid"] for gpu in granted_gpus(run)], job.pk) if reading else None


def job_charts(
    job: Job, run: Run | None = None, since: float | None = None, until: float | None = None
) -> dict[str, Any]:
    """What a run's charts show, from its start to its end, or within [since, until], seconds since 1970.

    `{run, from, to, gpus: [{uuid, index, model, short, node, at: […], <GPU_LINES>: […]}], container: {at: […],
    <CONTAINER_METRICS>: […]}, events: [{at, kind, text}]}`; times in seconds since 1970, a value that was not read
    is null, `throttle` is a `throttle_mask`. Every sample while they are kept (an hour), before that means of minutes
    (of GPUs only of minutes that lie wholly inside the run), thinned to MOST_POINTS a line.
    """
    run = run or job.current_run
    if run is None or run.started_at is None:
        return {"run": None, "from": None, "to": None, "gpus": [], "container": None, "events": []}
    whole = Window(run.started_at, max(run.ended_at or timezone.now(), run.started_at))
    window = _within(whole, since, until)
    return {
        "run": run.pk, "from": window.start.timestamp(), "to": window.end.timestamp(),
        "gpus": [{**gpu, **_gpu(gpu["uuid"], window)} for gpu in granted_gpus(run)],
        "container": _container(run, window), "events": _events(run, window, to_the_end=window.end >= whole.end),
    }  # fmt: skip


def _within(whole: Window, since: float | None, until: float | None) -> Window:
    first, last = whole.start.timestamp(), whole.end.timestamp()
    start = min(max(first if since is None else since, first), last)
    end = max(min(last if until is None else until, last), start)
    return Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))


def _gpu(uuid: str, window: Window) -> Line:
    samples = history.recent(uuid, _age(window)) if _has_seconds(window) else []
    seconds = points((_as_minute(s) for s in samples if window.holds(s["at"])), GPU_LINES)
    start, end = window.start, _until(seconds, window)
    first = start.replace(second=0, microsecond=0) + MINUTE if start.second or start.microsecond else start
    rows = history.minutes(uuid, first, end - MINUTE + timedelta(microseconds=1), every=_every(window))
    minutes = points(({**row, "at": row["minute"].timestamp()} for row in rows), GPU_LINES, 30)
    return _line(minutes, seconds, GPU_LINES, window)


def _as_minute(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with the names that minutes have."""
    return {
        **sample, "memory_mib": sample.get("memory_used_mib"), "throttle": throttle_mask(sample.get("throttle")),
    }  # fmt: skip


def _container(run: Run, window: Window) -> Line:
    samples = history.recent_of_run(run.pk, _age(window)) if _has_seconds(window) else []
    seconds = points((s for s in samples if window.holds(s["at"])), CONTAINER_METRICS)
    end = _until(seconds, window)
    first = window.start.replace(second=0, microsecond=0)
    rows = history.minutes_of_run(run.pk, first, end, every=_every(window))
    minutes = points(({**row, "at": _middle(row["minute"], window.start, end)} for row in rows), CONTAINER_METRICS)
    return _line(minutes, seconds, CONTAINER_METRICS, window)


def _middle(minute: datetime, start: datetime, end: datetime) -> float:
    """Of the part of the minute that lies between: a run's first and last minutes are its own, and not whole."""
    low, high = max(minute, start), min(minute + MINUTE, end)
    return (low.timestamp() + max(high, low).timestamp()) / 2


def _line(minutes: list[Point], seconds: list[Point], names: tuple[str, ...], window: Window) -> Line:
    apart = max(10.0, 5 * settings.SAMPLE_PERIOD)
    return line(minutes, seconds, names, apart=apart, minutes_apart=150.0 * _every(window), most=MOST_POINTS)


def _until(seconds: list[Point], window: Window) -> datetime:
    """Minutes are asked for until the first sample: from there on the samples tell more."""
    return datetime.fromtimestamp(seconds[0][0], UTC) if seconds else window.end


def _age(window: Window) -> int:
    return min(FULL_RATE, int((timezone.now() - window.start).total_seconds()) + 1)


def _has_seconds(window: Window) -> bool:
    return (timezone.now() - window.end).total_seconds() <= FULL_RATE


def _every(window: Window) -> int:
    """Of how many minutes one is read: of very long windows there are far more than a chart has points."""
    minutes = (window.end - window.start) / MINUTE
    return next(n for n in (60, 30, 20, 15, 12, 10, 6, 5, 4, 3, 2, 1) if n == 1 or minutes / n > 4 * MOST_POINTS)


def _events(run: Run, window: Window, *, to_the_end: bool) -> list[dict[str, Any]]:
    """What befell the run in that time, oldest first: its states, wishes, signals and warnings. Its end is written
    down a moment after it, and marked where the lines end."""
    found = JobEvent.objects.filter(run=run, kind__in=MARKED, at__gte=window.start)
    found = found if to_the_end else found.filter(at__lte=window.end)
    rows = list(found.select_related("actor").order_by("-id")[:MOST_EVENTS])
    return [
        {"at": min(event.at, window.end).timestamp(), "kind": event.kind, "text": wording.event_sentence(event)}
        for event in reversed(rows)
    ]
