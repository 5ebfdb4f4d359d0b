"""Packs the segments of this host's ended runs, a while after their end, at the lowest priority of the CPU."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import close_old_connections, connection
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from jobs import logstore
from jobs.models import LogSegment, Run
from jobs.states import RunState

log = logging.getLogger(__name__)

BATCH = 32
MOST_JOINED = 2000  # files read for one
_LOWEST = 19  # nice
_EVER = datetime.fromtimestamp(0, UTC)
_WHOLE_PERIOD = timedelta(days=1)  # between two looks at all runs of this host, which are many in time
_LATELY = timedelta(hours=1)  # a log may be complete so long after its run's end, and is found before the day is over


def run_packer(node_name: str, stopping: threading.Event) -> None:
    """Until `stopping`: pack what is due, and look again after LOG_PACK_PERIOD. Ends nothing when it fails."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
    packed_at = whole_at = _EVER  # when nothing was left to be packed, and when so of all runs
    while not stopping.is_set():
        more, now = False, timezone.now()
        is_whole = now - whole_at > _WHOLE_PERIOD
        try:
            close_old_connections()
            more = pack_some(node_name, stopping, since=_EVER if is_whole else packed_at - _LATELY)
            if not more:
                packed_at, whole_at = now, now if is_whole else whole_at
        except Exception:  # a log storage may raise whatever it likes
            log.exception("segments can't be packed for now")
        connection.close()
        stopping.wait(0.1 if more else settings.LOG_PACK_PERIOD)


def pack_some(node_name: str, stopping: threading.Event, *, since: datetime = _EVER) -> bool:
    """Pack a batch of what belongs to runs that ended LOG_PACK_AFTER ago; whether there may be more.

    What was due before `since` is packed, or is not looked at now.
    """
    left = BATCH
    for run in _unpacked(node_name, since):
        raw = list(_raw(run).order_by("generation", "offset")[:MOST_JOINED])
        for segments in _joined(raw):
            if stopping.is_set():
                return False
            if not left or not _pack(segments):
                return True
            left -= 1
        if len(raw) == MOST_JOINED:
            return True
    return False


def _unpacked(node_name: str, since: datetime) -> list[int]:
    """The runs of which something is to be packed.

    Found from the runs: nearly all raw segments are of runs that go on, on all hosts, and no index parts them. Without
    a limit, for which PostgreSQL would walk through the runs of all hosts in their order.
    """
    after = timedelta(seconds=settings.LOG_PACK_AFTER)
    runs = Run.objects.filter(
        Exists(_raw(OuterRef("pk"))), node__name=node_name, state=RunState.ENDED, log_complete=True,
        ended_at__gte=since - after, ended_at__lt=timezone.now() - after,
    )  # fmt: skip
    return list(runs.order_by("ended_at").values_list("pk", flat=True))


def _raw(run: int | OuterRef) -> QuerySet[LogSegment]:
    return LogSegment.objects.filter(run=run, packed__isnull=True)


def _joined(raw: Iterable[LogSegment]) -> Iterator[list[LogSegment]]:
    """Those that follow one another, LOG_SEGMENT_BYTES at most together: a quiet log has many small ones."""
    found: list[LogSegment] = []
    for segment in raw:
        if found and not _goes_with(found, segment):
            yield found
            found = []
        found.append(segment)
    if found:
        yield found


def _goes_with(found: list[LogSegment], segment: LogSegment) -> bool:
    first, last = found[0], found[-1]
    length = segment.offset + segment.length - first.offset
    follows = (last.generation, last.offset + last.length) == (segment.generation, segment.offset)
    return follows and length <= settings.LOG_SEGMENT_BYTES


def _pack(segments: list[LogSegment]) -> bool:
    """False when one is lost, which must not keep the rest of the host's logs from being packed: look again."""
    try:
        logstore.pack(segments)
    except FileNotFoundError:
        if missing := logstore.pass_over_missing(segments):
            log.warning("segments of run %d have no file any more: %s", segments[0].run_id, ", ".join(missing))
            return False
    return True
