"""What people are told of when a job should start: corrected by past estimates, recorded, and scored.

A start, here, is when the job's GPUs are given. An estimate is hit when that lies within the range.
"""

import statistics
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Q
from django.utils import timezone

from jobs import announce, arrivals
from jobs.models import Estimate, Job
from jobs.policy import Expected, Plan, Snapshot, Waiting
from jobs.policy.calibrate import RECENT, Calibration, Outcome
from jobs.policy.estimate import FARTHEST
from jobs.policy.rehearse import rehearse
from jobs.policy.stage import MOST_WAITING
from jobs.states import JobState

DAYS = 30
MOST_PER_JOB = 6
SCORED = 5000  # at most, the newest
LEAST_MOVE = timedelta(seconds=60)  # a range that moved by less, and by less than a tenth, is shown as it was
SHOWN_PART, RECORDED_PART = 0.1, 0.25  # of the time until the start
HORIZONS = (600.0, 3600.0, 6 * 3600.0, 86400.0, None)  # seconds
_Row = tuple[datetime, datetime, datetime, datetime]  # made, earliest, latest, started
Range = tuple[datetime | None, datetime | None]  # earliest, latest; None: nobody can say


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good estimates were. Widths in seconds; None without any."""

    estimates: int
    hits: int
    early: int  # started before the range
    late: int
    mean_width: float | None
    median_width: float | None
    median_wait: float | None

    @property
    def percent(self) -> int | None:
        return round(100 * self.hits / self.estimates) if self.estimates else None


class _Kept:
    """This process's last readings, by the monotonic clock."""

    calibration: Calibration | None = None
    score: Score | None = None
    horizons: list[tuple[float | None, Score]] | None = None
    calibrated_at = scored_at = sorted_at = 0.0


_kept = _Kept()


# --- what is planned ---


def planned(picture: Snapshot, plan: Plan, only: Collection[int] | None = None) -> dict[int, Expected]:
    """The plan's ranges, those of these jobs drawn anew by a rehearsal; None: of the first in the queue."""
    jobs = list(plan.expected)[:MOST_WAITING] if only is None else only
    return rehearse(picture, plan, jobs, arrivals.recent(picture.now)) if jobs else plan.expected


# --- what is shown ---


def shown(expected: Mapping[int, Expected], gpus: Mapping[int, int], now: datetime) -> dict[int, Expected]:
    """The planned ranges as they are to be told, by job; `gpus` are those that the jobs ask for."""
    by = calibration() if expected else None
    return {job: _corrected(raw, gpus.get(job, 0), by, now) for job, raw in expected.items()} if by is not None else {}


def _corrected(raw: Expected, gpus: int, by: Calibration, now: datetime) -> Expected:
    if raw.latest is None:
        return raw
    low, high = by.correct(_ahead(raw.earliest, now), _ahead(raw.latest, now), gpus)
    if high > FARTHEST:
        return raw._replace(latest=None)
    return Expected(earliest=now + timedelta(seconds=low), latest=now + timedelta(seconds=high))


def _ahead(at: datetime, now: datetime) -> float:
    return max((at - now).total_seconds(), 0.0)


def calibration() -> Calibration:
    """By the newest estimates, also those of jobs that wait still; at most `PAST_REREAD` seconds old."""
    if _kept.calibration is None or time.monotonic() - _kept.calibrated_at >= settings.PAST_REREAD:
        _kept.calibration, _kept.calibrated_at = Calibration(_outcomes(timezone.now())), time.monotonic()
    return _kept.calibration


def _outcomes(now: datetime) -> list[Outcome]:
    """The newest estimates that count, oldest first."""
    counts = Q(started_at__isnull=False) | Q(job__state=JobState.QUEUED)
    rows = Estimate.objects.filter(
        counts, made_at__gte=now - timedelta(days=DAYS), raw_earliest__isnull=False, raw_latest__isnull=False
    ).order_by("-made_at", "-id")
    columns = ("made_at", "raw_earliest", "raw_latest", "job__gpus", "started_at", "earliest", "latest")
    return [_outcome(row, now) for row in reversed(rows.values_list(*columns)[:RECENT])]


def _outcome(row: tuple[Any, ...], now: datetime) -> Outcome:
    made, low, high, gpus, started, earliest, latest = row
    planned = _ahead(low, made), _ahead(high, made), gpus
    width = None if latest is None else _ahead(latest, earliest)
    if started is None:
        return Outcome(*planned, _ahead(now, made), open=True, width=width)
    hit = None if latest is None else earliest <= started <= latest
    return Outcome(*planned, _ahead(started, made), hit=hit, width=width)


# --- what is written ---


def write(
    expected: Mapping[int, Expected], told: Mapping[int, Range], waiting: Iterable[Waiting], now: datetime
) -> None:
    """Store each waiting job's range where it moved by more than a bit, and record it where it moved by much.

    `expected` are the planned ranges, `told` those that the waiting jobs' rows hold; a waiting job that is not
    planned is one of which nobody can say. In a transaction.
    """
    jobs = {job.id: job for job in waiting}
    gpus = {pk: job.gpus for pk, job in jobs.items()}
    fresh = shown({pk: expected[pk] for pk in told if pk in expected and not jobs[pk].held_by}, gpus, now)
    moved = {pk: fresh.get(pk) for pk, said in told.items() if _differ(_range(*said), fresh.get(pk), now, SHOWN_PART)}
    if not moved:
        return
    rows = [
        Job(pk=pk, expected_earliest=new.earliest if new else None, expected_latest=new.latest if new else None)
        for pk, new in moved.items()
    ]
    still = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD])
    still.bulk_update(rows, ["expected_earliest", "expected_latest"], batch_size=200)
    for pk in moved:
        announce.job_changed(pk)
    _forget(pk for pk in moved if jobs[pk].held_by)
    _record({pk: (new, expected[pk]) for pk, new in moved.items() if new is not None}, now)


def _range(earliest: datetime | None, latest: datetime | None) -> Expected | None:
    return None if earliest is None else Expected(earliest=earliest, latest=latest)


def _forget(job_ids: Iterable[int]) -> None:
    """Open estimates of jobs that somebody holds no longer count: the start was put off on purpose."""
    if ids := list(job_ids):
        Estimate.objects.filter(job__in=ids, started_at=None).delete()


def _record(told: Mapping[int, tuple[Expected, Expected]], now: datetime) -> None:
    """A row for each job's first estimate, and for each that is far from the last recorded one."""
    rows = Estimate.objects.filter(job__in=told, started_at=None).order_by("id")
    last = {pk: _range(low, high) for pk, low, high in rows.values_list("job", "earliest", "latest")}
    counts = dict(Estimate.objects.filter(job__in=told).order_by().values_list("job").annotate(n=Count("pk")))
    Estimate.objects.bulk_create(
        Estimate(job_id=pk, made_at=now, earliest=new.earliest, latest=new.latest, raw_earliest=raw.earliest,
                 raw_latest=raw.latest)
        for pk, (new, raw) in told.items()
        if counts.get(pk, 0) < MOST_PER_JOB and _differ(last.get(pk), new, now, RECORDED_PART)
    )  # fmt: skip


def _differ(old: Expected | None, new: Expected | None, now: datetime, part: float) -> bool:
    """Whether two ranges are apart by more than `part` of the time until the start, and by more than a minute."""
    if old is None or new is None or (old.latest is None) != (new.latest is None):
        return old != new
    ahead = max((new.latest or new.earliest) - now, timedelta())
    most = max(part * ahead, LEAST_MOVE)
    return abs(new.earliest - old.earliest) > most or (
        new.latest is not None and old.latest is not None and abs(new.latest - old.latest) > most
    )


def started(job_id: int, now: datetime) -> None:
    """The job's GPUs were given: its estimates can be scored. In the transaction that gives them."""
    Estimate.objects.filter(job=job_id, started_at=None).update(started_at=now)


# --- how good they were ---


def score() -> Score:
    """Of the last 30 days, all estimates that were told; at most `PAST_REREAD` seconds old."""
    if _kept.score is None or time.monotonic() - _kept.scored_at >= settings.PAST_REREAD:
        _kept.score, _kept.scored_at = _score(timezone.now()), time.monotonic()
    return _kept.score


def by_horizon() -> list[tuple[float | None, Score]]:
    """The same by how far ahead the middle of the range was: below so many seconds (None: any), and its score."""
    if _kept.horizons is None or time.monotonic() - _kept.sorted_at >= settings.PAST_REREAD:
        _kept.horizons, _kept.sorted_at = _by_horizon(timezone.now()), time.monotonic()
    return _kept.horizons


def score_like(expected: Expected, now: datetime) -> Score:
    """Of the estimates that were told as far ahead as this one."""
    assert expected.latest is not None
    bound = _horizon(now, expected.earliest, expected.latest)
    return dict(by_horizon()).get(bound) or score_of([])


def _by_horizon(now: datetime) -> list[tuple[float | None, Score]]:
    groups: dict[float | None, list[_Row]] = {bound: [] for bound in HORIZONS}
    for row in _rows(now):
        made, low, high, _started = row
        groups[_horizon(made, low, high)].append(row)
    return [(bound, score_of(rows)) for bound, rows in groups.items() if rows]


def _horizon(made: datetime, low: datetime, high: datetime) -> float | None:
    ahead = ((low - made) + (high - made)).total_seconds() / 2
    return next(bound for bound in HORIZONS if bound is None or ahead < bound)


def _score(now: datetime) -> Score:
    return score_of(_rows(now))


def _rows(now: datetime) -> list[_Row]:
    found = Estimate.objects.filter(started_at__gte=now - timedelta(days=DAYS), latest__isnull=False)
    rows = found.order_by("-started_at").values_list("made_at", "earliest", "latest", "started_at")[:SCORED]
    return [(made, low, high, start) for made, low, high, start in rows if high is not None and start is not None]


def score_of(told: Iterable[_Row]) -> Score:
    """The score of estimates: when made, earliest, latest, and when the job started."""
    rows = list(told)
    early = sum(start < low for _made, low, _high, start in rows)
    late = sum(start > high for _made, _low, high, start in rows)
    widths = [(high - low).total_seconds() for _made, low, high, _start in rows]
    waited = [(start - made).total_seconds() for made, _low, _high, start in rows]
    return Score(
        estimates=len(rows), hits=len(rows) - early - late, early=early, late=late,
        mean_width=statistics.fmean(widths) if rows else None,
        median_width=statistics.median(widths) if rows else None,
        median_wait=statistics.median(waited) if rows else None,
    )  # fmt: skip
