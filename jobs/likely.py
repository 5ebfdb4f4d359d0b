"""How long like jobs ran, from the database: one query, and what it said is kept for a while."""

import time
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from jobs.models import Job, Run
from jobs.policy.past import Like, Past
from jobs.states import OF_ITSELF, RunState

DAYS = 90
MOST = 20_000  # of the newest ends


class _Kept:
    """This process's last reading, by the monotonic clock."""

    past: Past | None = None
    read_at = 0.0


_kept = _Kept()


def past() -> Past:
    """All runs that ended lately. At most `PAST_REREAD` seconds old: a pass does not read them each time."""
    age = time.monotonic() - _kept.read_at
    if _kept.past is None or age >= settings.PAST_REREAD:
        _kept.past, _kept.read_at = _read(timezone.now()), time.monotonic()
    return _kept.past


def like(job: Job) -> Like:
    return Like(job.owner_id, job.image, job.name, job.limit_seconds)


def _read(now: datetime) -> Past:
    """Each run by itself: a job that was put back began anew."""
    runs = Run.objects.filter(
        state=RunState.ENDED, ended_at__gte=now - timedelta(days=DAYS), started_at__isnull=False
    ).order_by("-ended_at", "-id")
    rows = runs.values_list(
        "job__owner_id", "job__image", "job__name", "job__limit_seconds", "started_at", "ended_at", "end_reason", "job"
    )
    found, begun = Past(), set[int]()
    for owner, image, name, limit, start, end, reason, job in reversed(rows[:MOST]):
        if start is None or end is None:
            continue
        stopped = reason not in OF_ITSELF or job in begun  # a later run may have gone on from what the first one left
        found.add(Like(owner, image, name, limit), max((end - start).total_seconds(), 0.0), stopped=stopped)
        begun.add(job)
    return found
