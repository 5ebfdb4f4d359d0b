"""What RQ may run: a closed list (see `jobs.queues`). Each task is short, idempotent and takes at most one id."""

import time

from django.conf import settings

from jobs import dispatch, mail, queues
from jobs import launch as launching
from jobs import stop as stopping
from portal.logs import about


def schedule() -> None:
    """Make one scheduling pass: QUEUED jobs become PLACED, or learn why not."""
    dispatch.breathe(queues.pass_is_urgent)
    queues.pass_begins()
    give_up = time.monotonic() + settings.SCHEDULER_LEASE
    while dispatch.run_brief_pass() is None and time.monotonic() < give_up:
        time.sleep(0.1)  # another scheduler's pass may have begun before what we were woken for


def launch(run_id: int) -> None:
    """PLACED → STARTING → RUNNING, or ENDED with the reason why not."""
    with about(run=run_id):
        launching.launch(run_id)


def mail_end(job_id: int) -> None:
    """Tell the owner of an ended job how it ended."""
    mail.job_ended(job_id)


def mail_idle(run_id: int) -> None:
    """Tell the owner of a run whose GPUs do nothing."""
    mail.run_idle(run_id)


def stop(run_id: int) -> None:
    """RUNNING → STOPPING when somebody wishes the run to end."""
    with about(run=run_id):
        stopping.stop(run_id)
