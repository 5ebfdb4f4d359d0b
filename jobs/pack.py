"""Packs the segments of this host's ended runs, a while after their end, at the lowest priority of the CPU."""

import logging
import os
import threading
from datetime import timedelta

from django.conf import settings
from django.db import close_old_connections, connection
from django.utils import timezone

from jobs import logstore
from jobs.models import LogSegment

log = logging.getLogger(__name__)

BATCH = 32
MOST_JOINED = 2000  # files read for one
_LOWEST = 19  # nice


def run_packer(node_name: str, stopping: threading.Event) -> None:
    """Until `stopping`: pack what is due, and look again after LOG_PACK_PERIOD. Ends nothing when it fails."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
    while not stopping.is_set():
        more = False
        try:
            close_old_connections()
            more = pack_some(node_name, stopping)
        except Exception:  # a log storage may raise whatever it likes
            log.exception("segments can't be packed for now")
        connection.close()
        stopping.wait(0.1 if more else settings.LOG_PACK_PERIOD)


def pack_some(node_name: str, stopping: threading.Event) -> bool:
    """Pack a batch of what belongs to runs that ended LOG_PACK_AFTER ago; whether there may be more."""
    due = timezone.now() - timedelta(seconds=settings.LOG_PACK_AFTER)
    found = LogSegment.objects.filter(
        packed__isnull=True, run__log_complete=True, run__ended_at__lt=due, run__node__name=node_name
    ).defer("marks")
    for _ in range(BATCH):
        first = None if stopping.is_set() else found.order_by("pk").first()
        if first is None:
            return False
        _pack(_followed(first))
    return True


def _pack(segments: list[LogSegment]) -> None:
    """What is lost must not keep the rest of the host's logs from being packed."""
    try:
        logstore.pack(segments)
    except FileNotFoundError:
        if missing := logstore.pass_over_missing(segments):
            log.warning("segments of run %d have no file any more: %s", segments[0].run_id, ", ".join(missing))


def _followed(first: LogSegment) -> list[LogSegment]:
    """The raw segments from `first` on, LOG_SEGMENT_BYTES at most together: a quiet log has many small ones."""
    later = LogSegment.objects.filter(
        run=first.run_id, generation=first.generation, offset__gt=first.offset, packed__isnull=True
    ).order_by("offset")
    found, end = [first], first.offset + first.length
    for segment in later[:MOST_JOINED]:
        if segment.offset != end or end + segment.length - first.offset > settings.LOG_SEGMENT_BYTES:
            break
        found.append(segment)
        end += segment.length
    return found
