"""Grant a wish: RUNNING → STOPPING with the job's own signal; later, SIGKILL; and say so when even that does not help.

The order is: move the state, then send the signal. A signal that meets nobody leaves the real end to `finish`.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from gpus.models import GPU
from jobs import containers
from jobs.control import wish
from jobs.models import Run
from jobs.states import RunState, Wish
from jobs.watch import warn

log = logging.getLogger(__name__)


def stop(run_id: int) -> None:
    """RUNNING → STOPPING when there is a wish. Anything else is left to who acts on it; repeating does no harm."""
    run = Run.objects.select_related("job", "node").filter(pk=run_id).first()
    if run is None or run.node.name != settings.NODE_NAME or not run.wish or run.state != RunState.RUNNING:
        return
    now, signal = timezone.now(), run.job.stop_signal
    if run.advance(
        RunState.RUNNING, RunState.STOPPING, actor=run.wish_by, event="SIGNALLED",
        params={"signal": signal, "grace": run.job.grace_seconds, "wish": run.wish}, stopping_at=now,
    ):  # fmt: skip
        _signal(run, signal)


def _signal(run: Run, signal: str) -> None:
    try:
        containers.kill(run.container_id, signal)
    except (containers.EngineUnavailable, containers.EngineRefused) as error:
        log.warning("run %d: %s not delivered: %s", run.pk, signal, error)


def enforce_time_limits(now: datetime, stop: Callable[[int], None]) -> None:
    """Raise the wish TIME_LIMIT on each run of this node that is past its deadline; `stop` runs whose wish waits."""
    running = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.RUNNING).select_related("job", "node")
    for run in running.filter(deadline__lt=now).exclude(wish__in=[Wish.TIME_LIMIT, Wish.CANCEL]):
        wish(run, Wish.TIME_LIMIT, still={"deadline__lt": now})  # it may have been given more time just now
    late = now - timedelta(seconds=1)  # the stop queue's worker usually was faster
    for pk in running.exclude(wish="").filter(wish_at__lt=late).values_list("pk", flat=True):
        stop(pk)


def end_grace(now: datetime, kill: Callable[[int], None]) -> None:
    """`kill` each run of this node whose grace is over; warn of one that not even that has ended."""
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


def kill(run_id: int) -> None:
    """Send SIGKILL to the container of a run that is STOPPING, which may take a while."""
    run = Run.objects.filter(pk=run_id, state=RunState.STOPPING).first()
    if run is not None:
        _signal(run, "SIGKILL")


def _warn_of_stuck(run: Run) -> None:
    """A container that outlives SIGKILL hangs in the driver: its GPUs are held, and kept from others."""
    if not warn(run, "KILL_STUCK"):
        return
    GPU.objects.filter(uuid__in=run.gpu_uuids, quarantine_reason="").update(
        quarantine_reason=f"job {run.job_id} could not be killed"
    )
