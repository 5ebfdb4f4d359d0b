"""Compare the containers of this host with the rows of the database, and adopt, finish, stop or report.

Runs at the agent's start, every RECONCILE_PERIOD, and after the engine was away. Each step may be repeated.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from jobs import containers, unknown
from jobs.finish import LogKeeper
from jobs.launch import PULLING, give_up
from jobs.models import Run
from jobs.queues import send_launch
from jobs.runlock import forget_locks, lock
from jobs.states import RunState
from portal import logs

log = logging.getLogger(__name__)


class Follower(LogKeeper, Protocol):
    """What reconciliation needs of the agent's follower."""

    def adopt(self, run_id: int, container_id: str) -> None: ...

    def active_runs(self) -> set[int]: ...

    def forget_ended(self) -> None: ...


def reconcile(follower: Follower, finish: Callable[[int], None]) -> None:
    """One pass over this host. `finish` is given each run whose container is to be looked at for its end.

    One that can't be acted on keeps no other from its turn; what went wrong first is raised at the end of the pass, or
    at once when the engine or the database is away.
    """
    now, attempts = timezone.now(), _Attempts()
    # Rows first: a run that is placed after this, and its container, wait for the next pass.
    runs = {
        run.pk: run
        for run in Run.objects.filter(node__name=settings.NODE_NAME).exclude(state=RunState.ENDED).select_related(
            "job", "node"
        )
    }  # fmt: skip
    ours = containers.ours()
    found = {c.run_id: c for c in ours if c.run_id is not None}
    for run in runs.values():
        with logs.about(job=run.job_id, run=run.pk), attempts.go_on():
            _reconcile_run(run, found.get(run.pk), follower, finish, now)
    strays = unknown.unknown(c for c in ours if c.run_id not in runs)
    for container in ours:
        if container.run_id is not None and container.run_id not in runs and container not in strays:
            with logs.about(run=container.run_id), attempts.go_on():
                _reconcile_ended(container.run_id, container, follower)
    for run in _left_in_spool(found.keys()):
        with logs.about(job=run.job_id, run=run.pk), attempts.go_on():
            _complete_log(run, follower)
    unknown.tell(strays)
    follower.forget_ended()
    forget_locks()
    attempts.tell()


class _Attempts:
    """Of one pass: what went wrong with one run or container is kept until all others have had their turn."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def go_on(self) -> Iterator[None]:
        """Go on after the block whatever it raises, unless the next would only wait for the same in vain."""
        begun = timezone.now()
        try:
            yield
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001 - logged, and raised in the end
            log.warning("to be tried again with the next pass: %s", error)
            self._first = self._first or error
            if isinstance(error, containers.EngineUnavailable):
                containers.confirm(begun)  # it may be this container alone that it can't answer for

    def tell(self) -> None:
        if self._first is not None:
            raise self._first


def _reconcile_run(
    run: Run, container: containers.Container | None, follower: Follower, finish: Callable[[int], None], now: datetime
) -> None:
    if run.state in (RunState.PLACED, RunState.STARTING):
        _reconcile_start(run, container, follower, finish, now)
    elif container is None or not container.is_running:
        finish(run.pk)
    elif run.pk not in follower.active_runs():
        follower.adopt(run.pk, container.id)


def _reconcile_start(
    run: Run, container: containers.Container | None, follower: Follower, finish: Callable[[int], None], now: datetime
) -> None:
    """A start that nobody acts on is sent again; one that takes too long is given up."""
    with lock(run.pk) as idle:
        if not idle or run.progress.get("code") in PULLING:
            return
    if container is not None and container.has_ended and container.status != "created":
        finish(run.pk)
        return
    if container is not None and container.is_running and run.pk not in follower.active_runs():
        follower.adopt(run.pk, container.id)
    begun = _begun(run)
    if now - begun > timedelta(seconds=settings.START_TIMEOUT) and give_up(run):
        return
    if now - begun > timedelta(seconds=settings.START_RESEND):
        send_launch(run.node.name, run.pk)


def _begun(run: Run) -> datetime:
    """When the start began that START_TIMEOUT is for: after the pull, if there was one."""
    since = run.progress.get("since")
    return datetime.fromisoformat(since) if since else run.starting_at or run.placed_at


def _reconcile_ended(run_id: int, container: containers.Container, follower: Follower) -> None:
    """A container of an ended run is stopped and removed."""
    state = Run.objects.filter(pk=run_id, node__name=settings.NODE_NAME).values_list("state", flat=True).first()
    if state != RunState.ENDED:
        return  # placed since the rows were read
    if container.is_running:
        log.warning("run %d has ended, but its container %s runs: killing it", run_id, container.name)
        containers.kill(container.id, "SIGKILL")
        return
    follower.finish(run_id, container.id, timeout=settings.ENGINE_TIMEOUT)  # of a host that was lost and came back
    containers.remove(container.id)
    follower.discard(run_id)


def _left_in_spool(listed: Collection[int]) -> list[Run]:
    """Runs of this host that were given up with it, whose containers are no more, and whose output is still here."""
    spooled = {int(path.name) for path in settings.SPOOL_DIR.glob("*") if path.name.isdigit()} - set(listed)
    return list(
        Run.objects.filter(pk__in=spooled, node__name=settings.NODE_NAME, state=RunState.ENDED, log_complete=False)
    )


def _complete_log(run: Run, follower: Follower) -> None:
    if containers.of_run(run.container_id or run.container_name, run.pk) is not None:
        return  # made since they were listed
    follower.finish(run.pk, "", timeout=settings.ENGINE_TIMEOUT)  # whichever its spool is of
    follower.discard(run.pk)
