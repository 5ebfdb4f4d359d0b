"""Grant a wish: RUNNING → STOPPING with the job's own signal; later, SIGKILL; and say so when even that does not help.

The order is: move the state, send the signal, note that it was sent. Whoever dies in between leaves the sending to
`end_grace`, so that no job loses its grace. Who sends it holds the run's lock: while the engine takes its time, nobody
sends it again. A signal that meets nobody leaves the real end to `finish`.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from gpus.quarantine import quarantine
from jobs import containers
from jobs.control import wish
from jobs.models import Run
from jobs.runlock import lock
from jobs.states import RunState, Wish
from jobs.watch import warn
from portal.logs import know

log = logging.getLogger(__name__)

OVERDUE = timedelta(seconds=1)  # the stop queue's worker usually was faster


def stop(run_id: int) -> None:
    """RUNNING → STOPPING when there is a wish. Anything else is left to who acts on it; repeating does no harm."""
    found = Run.objects.select_related("job", "node", "wish_by").defer("wish_by__password")  # closed to hosts
    run = found.filter(pk=run_id).first()
    if run is None or run.node.name != settings.NODE_NAME or run.wished is None or run.state != RunState.RUNNING:
        return
    know(job=run.job_id)
    now, signal = timezone.now(), run.job.stop_signal
    if run.advance(
        RunState.RUNNING, RunState.STOPPING, actor=run.wish_by, event="SIGNALLED",
        params={"signal": signal, "grace": run.job.grace_seconds, "wish": run.wish}, stopping_at=now,
    ):  # fmt: skip
        with lock(run.pk) as locked:
            if locked:
                _signal(run, signal)


def stop_again(run_id: int) -> None:
    """Send its signal to a run that is STOPPING and never got it: the sender died, or the engine was away."""
    with lock(run_id) as locked:
        run = Run.objects.select_related("job").filter(pk=run_id, state=RunState.STOPPING, signalled_at=None).first()
        if not locked or run is None:
            return
        assert run.stopping_at is not None
        try:
            heard = containers.kill_was_asked(run.container_id, run.stopping_at)
        except (containers.EngineUnavailable, containers.EngineRefused) as error:
            log.warning("run %d: no answer to whether it got its signal: %s", run.pk, error)
            return
        if heard:
            _note_signalled(run)
        else:
            _signal(run, run.job.stop_signal)


def _signal(run: Run, signal: str) -> None:
    try:
        containers.kill(run.container_id, signal)
    except (containers.EngineUnavailable, containers.EngineRefused) as error:
        log.warning("run %d: %s not delivered: %s", run.pk, signal, error)
    else:
        _note_signalled(run)


def _note_signalled(run: Run) -> None:
    Run.objects.filter(pk=run.pk, signalled_at=None).update(signalled_at=timezone.now())


def enforce_time_limits(now: datetime, stop: Callable[[int], None]) -> None:
    """Raise the wish TIME_LIMIT on each run of this node that is past its deadline; `stop` runs whose wish waits."""
    running = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.RUNNING).select_related("job", "node")
    for run in running.filter(deadline__lt=now).exclude(wish__in=[Wish.TIME_LIMIT, Wish.CANCEL]):
        wish(run, Wish.TIME_LIMIT, still={"deadline__lt": now})  # it may have been given more time just now
    for pk in running.exclude(wish="").filter(wish_at__lt=now - OVERDUE).values_list("pk", flat=True):
        stop(pk)


def end_grace(now: datetime, stop_again: Callable[[int], None], kill: Callable[[int], None]) -> None:
    """`kill` each run of this node whose grace is over; warn of one that not even that has ended.

    `stop_again` each that is within its grace and whose signal nobody noted as sent.
    """
    stopping = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.STOPPING).select_related("job")
    for run in stopping:
        assert run.stopping_at is not None
        over = (now - run.stopping_at).total_seconds() - run.job.grace_seconds
        if over >= settings.KILL_STUCK_AFTER:
            _warn_of_stuck(run)
        if over >= 0:
            if not run.events.filter(kind="SIGNALLED", params__signal="SIGKILL").exists():
                run.job.note("SIGNALLED", run=run, signal="SIGKILL")
            kill(run.pk)
        elif run.signalled_at is None and run.stopping_at < now - OVERDUE:
            stop_again(run.pk)


def kill(run_id: int) -> None:
    """Send SIGKILL to the container of a run that is STOPPING, which may take a while."""
    run = Run.objects.filter(pk=run_id, state=RunState.STOPPING).first()
    if run is not None:
        _signal(run, "SIGKILL")


def _warn_of_stuck(run: Run) -> None:
    """A container that outlives SIGKILL hangs in the driver: its GPUs are held, and kept from others."""
    if warn(run, "KILL_STUCK"):
        quarantine(run.gpu_uuids, f"job {run.job_id} could not be killed")
