"""Grant a wish: RUNNING → STOPPING with SIGTERM; later, SIGKILL; and say so when even that does not help.

The order is: move the state, then send the signal. A signal that meets nobody leaves the real end to `finish`.
"""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from gpus.models import GPU
from jobs import containers
from jobs.control import wish
from jobs.models import Run
from jobs.states import RunState, Wish

log = logging.getLogger(__name__)


def stop(run_id: int) -> None:
    """RUNNING → STOPPING when there is a wish. Anything else is left to who acts on it; repeating does no harm."""
    run = Run.objects.select_related("job", "node").filter(pk=run_id).first()
    if run is None or run.node.name != settings.NODE_NAME or not run.wish or run.state != RunState.RUNNING:
        return
    now = timezone.now()
    if run.advance(
        RunState.RUNNING, RunState.STOPPING, actor=run.wish_by, event="SIGNALLED",
        params={"signal": "SIGTERM", "grace": run.job.grace_seconds, "wish": run.wish}, stopping_at=now,
    ):  # fmt: skip
        _signal(run, "SIGTERM")


def _signal(run: Run, signal: str) -> None:
    try:
        containers.kill(run.container_id, signal)
    except (containers.EngineUnavailable, containers.EngineRefused) as error:
        log.warning("run %d: %s not delivered: %s", run.pk, signal, error)


def enforce_time_limits(now: datetime) -> None:
    """Raise the wish TIME_LIMIT on each run of this node that is past its deadline, and grant waiting wishes."""
    running = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.RUNNING).select_related("job", "node")
    for run in running.filter(deadline__lt=now).exclude(wish__in=[Wish.TIME_LIMIT, Wish.CANCEL]):
        wish(run, Wish.TIME_LIMIT)
    late = now - timedelta(seconds=1)  # the stop queue's worker usually was faster
    for pk in running.exclude(wish="").filter(wish_at__lt=late).values_list("pk", flat=True):
        stop(pk)


def end_grace(now: datetime) -> None:
    """Send SIGKILL to each run of this node whose grace is over; warn of one that not even that has ended."""
    stopping = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.STOPPING).select_related("job")
    for run in stopping:
        assert run.stopping_at is not None
        over = (now - run.stopping_at).total_seconds() - run.job.grace_seconds
        if over >= settings.KILL_STUCK_AFTER:
            _warn_of_stuck(run)
        if over >= 0:
            _kill(run)


def _kill(run: Run) -> None:
    codes = [warning["code"] for warning in run.warnings]
    if "KILLED" not in codes:
        run.warnings = [*run.warnings, {"code": "KILLED"}]
        run.save(update_fields=["warnings"])
        run.job.note("SIGNALLED", run=run, signal="SIGKILL")
    _signal(run, "SIGKILL")


def _warn_of_stuck(run: Run) -> None:
    """A container that outlives SIGKILL hangs in the driver: its GPUs are held, and kept from others."""
    if any(warning["code"] == "KILL_STUCK" for warning in run.warnings):
        return
    run.warnings = [*run.warnings, {"code": "KILL_STUCK"}]
    run.save(update_fields=["warnings"])
    run.job.note("WARNED", run=run, code="KILL_STUCK")
    GPU.objects.filter(uuid__in=run.gpu_uuids, quarantine_reason="").update(
        quarantine_reason=f"job {run.job_id} could not be killed"
    )
