"""Which jobs were submitted lately: such may come again. One query, and what it said is kept for a while."""

import time
from datetime import datetime, timedelta

from django.conf import settings

from jobs import likely, snapshot
from jobs.policy import Waiting

DAYS = 7
MOST = 3000  # of the newest


class _Kept:
    """This process's last reading, by the monotonic clock."""

    jobs: tuple[Waiting, ...] | None = None
    read_at = 0.0


_kept = _Kept()


def recent(now: datetime) -> tuple[Waiting, ...]:
    """Jobs of the last week as they were submitted, oldest first; at most `PAST_REREAD` seconds old.

    Of more than `MOST` the newest ones, which are then of fewer days.
    """
    if _kept.jobs is None or time.monotonic() - _kept.read_at >= settings.PAST_REREAD:
        _kept.jobs, _kept.read_at = _read(now), time.monotonic()
    return _kept.jobs


def _read(now: datetime) -> tuple[Waiting, ...]:
    begin = now - timedelta(days=DAYS)
    return tuple(job for job in snapshot.submitted(MOST, likely.past()) if job.queued_at >= begin)
