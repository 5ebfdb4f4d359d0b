"""Forget what has been kept for as long as the settings say: GPU minutes, and logs of ended jobs. In small batches.

Of logs, those that are too old go, and the oldest of a user who has more than LOG_USER_BYTES of them.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Sum

from gpus import history
from jobs import logstore
from jobs.models import LogSegment, Run
from jobs.states import RunState

MOST_MINUTES = 5000
MOST_SEGMENTS = 200
MOST_RUNS = 50
LATE = timedelta(hours=1)  # a run's end may be written so long after it
PERIOD = timedelta(minutes=10)


class Retention:
    """Asked at every turn of a timer, it looks every PERIOD, and at once again while there is more."""

    def __init__(self) -> None:
        self._next: datetime | None = None
        self._users_looked_at: datetime | None = None

    def prune(self, now: datetime) -> None:
        """One batch, if it is time. Two schedulers at once, or one that is killed half-way, do no harm."""
        if self._next is None or now >= self._next:
            more = [prune_minutes(now), prune_logs(now), self._prune_users(now)]
            self._next = now if any(more) else now + PERIOD

    def _prune_users(self, now: datetime) -> bool:
        """Only owners of runs that ended since the last look can have come to have too much."""
        if not settings.LOG_USER_BYTES:
            return False
        since = self._users_looked_at
        more = [prune_user(owner, settings.LOG_USER_BYTES) for owner in _owners_since(since)]
        if not any(more):
            self._users_looked_at = now
        return any(more)


def _owners_since(since: datetime | None) -> list[int]:
    ended = Run.objects.filter(state=RunState.ENDED, log_bytes__gt=0)
    if since is not None:
        ended = ended.filter(ended_at__gte=since - LATE)
    return list(ended.order_by().values_list("job__owner", flat=True).distinct())


def prune_user(owner_id: int, most: int) -> bool:
    """Delete one batch of the oldest logs of a user's ended runs, as far as all are more than `most` bytes of text.

    Returns whether there may be more.
    """
    runs = Run.objects.filter(job__owner=owner_id, state=RunState.ENDED, log_complete=True, log_bytes__gt=0)
    beyond = (runs.aggregate(bytes=Sum("log_bytes"))["bytes"] or 0) - most
    oldest = runs.order_by("ended_at", "pk").values_list("pk", "log_bytes")
    batch: list[int] = []
    for run_id, size in oldest.iterator():
        if beyond <= 0 or len(batch) >= MOST_RUNS:
            break
        batch.append(run_id)
        beyond -= size
    logstore.forget(LogSegment.objects.filter(run__in=batch))
    return len(batch) >= MOST_RUNS


def prune_minutes(now: datetime) -> bool:
    """Delete one batch of GPU minutes that are older than GPU_HISTORY_DAYS; whether there may be more."""
    if not settings.GPU_HISTORY_DAYS:
        return False
    return history.forget(now - timedelta(days=settings.GPU_HISTORY_DAYS), MOST_MINUTES) >= MOST_MINUTES


def prune_logs(now: datetime) -> bool:
    """Delete one batch of segments of runs that ended longer than LOG_DAYS ago; whether there may be more."""
    if not settings.LOG_DAYS:
        return False
    old = now - timedelta(days=settings.LOG_DAYS)
    found = LogSegment.objects.filter(run__state=RunState.ENDED, run__ended_at__lt=old)
    batch = list(found.order_by("pk")[:MOST_SEGMENTS])
    logstore.forget(batch)
    return len(batch) >= MOST_SEGMENTS
