"""Forget what has been kept for as long as the settings say: GPU minutes, and logs of ended jobs. In small batches."""

from datetime import datetime, timedelta

from django.conf import settings

from gpus import history
from jobs import logstore
from jobs.models import LogSegment
from jobs.states import RunState

MOST_MINUTES = 5000
MOST_SEGMENTS = 200
PERIOD = timedelta(minutes=10)


class Retention:
    """Asked at every turn of a timer, it looks every PERIOD, and at once again while there is more."""

    def __init__(self) -> None:
        self._next: datetime | None = None

    def prune(self, now: datetime) -> None:
        """One batch, if it is time. Two schedulers at once, or one that is killed half-way, do no harm."""
        if self._next is None or now >= self._next:
            more = [prune_minutes(now), prune_logs(now)]
            self._next = now if any(more) else now + PERIOD


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
