"""`manage.py scheduler`: places jobs. Any number may run; one at a time has its turn."""

import logging
import subprocess
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from jobs import dispatch, gputime, hostdays, hostevents, joining, queues, whatif
from jobs.retention import Retention
from portal import health, readiness

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Run the scheduler: a worker on the queue `scheduler`, and a pass every SCHEDULER_PERIOD."

    def handle(self, *args: Any, **options: Any) -> None:
        readiness.await_migrations()
        threading.Thread(target=_passes, name="passes", daemon=True).start()
        queues.work("scheduler")


def _passes() -> None:
    """The timer: whatever Redis holds or has lost, a pass comes."""
    kept, doctor = Retention(), health.Doctor()
    asked: subprocess.Popen[bytes] | None = None  # an admin's question that is worked on
    while True:
        close_old_connections()
        try:
            dispatch.run_pass()
            dispatch.resend_lost_starts(timezone.now())
            dispatch.take_back_unbegun(timezone.now())
            gputime.roll_up(timezone.now())
            hostdays.roll_up(timezone.now())
            hostevents.watch(timezone.now())
            joining.restore_users()
            if asked is None or asked.poll() is not None:
                asked = whatif.start_next(timezone.now())
            kept.prune(timezone.now())
            doctor.look()
        except DatabaseError as error:
            log.warning("a pass failed, the next one comes: %s", error)
        except Exception:
            log.exception("a pass failed")
        finally:
            close_old_connections()
        _rest()


def _rest() -> None:
    try:
        dispatch.rest(settings.SCHEDULER_PERIOD)
    except DatabaseError as error:
        log.warning("a pass failed, the next one comes: %s", error)
        time.sleep(settings.SCHEDULER_PERIOD)
