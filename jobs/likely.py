"""How long like jobs ran, from the database: one query, and what it said is kept for a while."""

import time
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from jobs.models import Job
from jobs.policy.past import Like, Past
from jobs.states import ENDED

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
    ended = Job.objects.filter(
        state__in=ENDED, ended_at__gte=now - timedelta(days=DAYS), started_at__isnull=False
    ).order_by("-ended_at", "-id")
    columns = ("owner_id", "image", "name", "limit_seconds", "started_at", "ended_at")
    found = Past()
    for owner, image, name, limit, start, end in reversed(ended.values_list(*columns)[:MOST]):
        found.add(Like(owner, image, name, limit), max((end - start).total_seconds(), 0.0))
    return found
