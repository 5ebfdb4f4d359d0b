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
    """Pack one batch of segments of runs that ended LOG_PACK_AFTER ago; whether there may be more."""
    due = timezone.now() - timedelta(seconds=settings.LOG_PACK_AFTER)
    found = LogSegment.objects.filter(
        packed__isnull=True, run__log_complete=True, run__ended_at__lt=due, run__node__name=node_name
    )
    batch = list(found.defer("marks").order_by("pk")[:BATCH])
    for segment in batch:
        if stopping.is_set():
            return False
        logstore.pack(segment)
    return len(batch) >= BATCH
