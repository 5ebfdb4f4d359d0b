"""End a run, on proof that its container is gone: the log first, then state, allocation and job in one transaction."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from jobs import blame, containers, endings, lastwords, logstore, watch
from jobs.begin import become_running
from jobs.models import Run
from jobs.plain import storable
from jobs.queues import send_mail, wake_scheduler
from jobs.states import CHARGED_TO, EndReason, JobState, RunState, job_state_after
from portal.logs import know

log = logging.getLogger(__name__)


Gap = tuple[datetime, datetime | None]  # from when to when the engine was away; None: still


class EngineLife(NamedTuple):
    """What the agent saw of the engine: its last absence and signal to the container, the exit code that it told."""

    gap: Callable[[], Gap | None] = lambda: None
    signalled: Callable[[], datetime | None] = lambda: None
    exit_code: Callable[[], int | None] = lambda: None


class LogKeeper(Protocol):
    """What `finish` needs of the agent's follower."""

    def finish(self, run_id: int, container_id: str, timeout: float) -> None: ...

    def discard(self, run_id: int) -> None: ...


def finish(run_id: int, logs: LogKeeper, engine: EngineLife = EngineLife()) -> bool:  # noqa: B008
    """RUNNING, STOPPING or STARTING → ENDED, when inspect says that the container has ended or is gone.

    False when there is no proof, or nothing to do. May be repeated.
    """
    run = Run.objects.select_related("job", "node").filter(pk=run_id).first()
    if run is None or run.state in (RunState.ENDED, RunState.PLACED):
        return False
    know(job=run.job_id)
    container = containers.of_run(run.container_id or run.container_name, run.pk)
    if container is None:
        return _finish_vanished(run, logs)
    if not container.has_ended:
        return False
    if container.exit_code == endings.UNKNOWN and (code := engine.exit_code()) is not None:
        container = replace(container, exit_code=code)  # an engine that dies then forgets what it has said
    if run.state == RunState.STARTING:
        become_running(run, container)  # it ended before its start was written down: no state is skipped
    logs.finish(run.pk, container.id, timeout=settings.ENGINE_TIMEOUT)
    run = Run.objects.select_related("job", "node").get(pk=run_id)
    told = endings.heard(engine.signalled(), container.finished_at)
    if (told or endings.was_signalled(container.exit_code)) and not run.wish and not container.oom_killed:
        time.sleep(settings.KILL_SETTLE)  # an engine that shuts down kills its containers first, then goes away
    reason, words = endings.decide(_facts(run, container, engine.gap(), told=told)), container.error
    if reason is EndReason.EXIT_CODE and container.exit_code is not None:
        size = logstore.size(run)
        end = logstore.read(run, max(size - lastwords.BYTES, 0), size)
        found = lastwords.read(end, container.exit_code, has_gpus=bool(run.gpu_uuids))
        reason, words = found or (reason, words)
    if container.oom_killed and reason is not EndReason.OOM_KILLED:
        watch.warn_of_memory(run)
    ended = _end(run, reason, exit_code=container.exit_code, oom_killed=container.oom_killed, engine_message=words)
    containers.remove(container.id)
    logs.discard(run.pk)
    return ended


def _finish_vanished(run: Run, logs: LogKeeper) -> bool:
    """A container that is gone: proof only from the engine that the run was started on."""
    if run.state == RunState.STARTING or run.engine_id != containers.engine().id:
        return False  # a start is repeated by `reconcile`; another engine knows nothing of it
    logs.finish(run.pk, run.container_id, timeout=settings.ENGINE_TIMEOUT)
    run.refresh_from_db()
    facts = _facts(run, None, None)
    ended = _end(run, endings.decide(facts), exit_code=None, engine_message="the container was removed")
    logs.discard(run.pk)
    return ended


def _facts(run: Run, container: containers.Container | None, gap: Gap | None, *, told: bool = False) -> endings.Facts:
    finished = container.finished_at if container else None
    signalled = container is not None and endings.was_signalled(container.exit_code)
    return endings.Facts(
        exit_code=container.exit_code if container else None,
        oom_killed=bool(container and container.oom_killed),
        finished_at=finished,
        wish=run.wished,
        wish_by_owner=run.wish_by_id == run.job.owner_id,
        signalled_at=run.stopping_at,
        kill_asked=signalled and containers.kill_was_asked(run.container_id, run.started_at or run.placed_at),
        told_to_stop=told,
        engine_restarted=container is not None and _ended_with_engine(run, container, gap, told=told),
        host_rebooted=endings.went_down_with(containers.boot_time(), started=run.started_at, finished=finished),
        gpu_lost=watch.has_lost_gpu(run),
        grant_mismatch=bool(run.granted.get("mismatch")),
    )


def _ended_with_engine(run: Run, container: containers.Container, gap: Gap | None, *, told: bool) -> bool:
    """Whether the engine's restart ended it: one that the agent saw, or one while nobody was there."""
    if not (told or endings.may_be_of_engine(container.exit_code)):
        return False
    started, finished = run.started_at, container.finished_at
    if started and finished and gap and started < gap[0] and not _is_after(finished, gap):
        return True
    since = containers.fresh_since()
    return since is not None and endings.went_down_with(since, started=started, finished=finished)


def _is_after(finished: datetime, gap: Gap) -> bool:
    """Whether a container lived on until after the engine was back: then its restart did not end it."""
    return gap[1] is not None and finished > gap[1]


def _end(run: Run, reason: EndReason, *, engine_message: str, **facts: object) -> bool:
    """Write the end down from whatever live state the run is in; wake who waits for the room."""
    facts["engine_message"] = words = storable(engine_message)  # of programs too, which print what they like
    for _attempt in range(3):
        state = _next_job_state(run, reason)
        with transaction.atomic():
            if run.end(RunState(run.state), reason, state, now=timezone.now(), **facts):
                blame.charge(run, reason, words)
                transaction.on_commit(wake_scheduler, robust=True)
                if state not in (JobState.QUEUED, JobState.HELD):
                    transaction.on_commit(partial(send_mail, run.job_id), robust=True)
                return True
        run.refresh_from_db()
        if run.state == RunState.ENDED:
            return False
    return False


def _next_job_state(run: Run, reason: EndReason) -> JobState:
    job = run.job
    return job_state_after(
        reason, requeues=job.requeues, max_requeues=settings.MAX_REQUEUES, held=job.is_held,
        again=blame.may_start_again(job), retries=blame.retries(run) if reason in CHARGED_TO else 0,
    )  # fmt: skip


def end_without_container(run: Run, reason: EndReason, words: str) -> bool:
    """STARTING → ENDED: nothing of it runs, and the caller has looked."""
    run.refresh_from_db()
    if run.state != RunState.STARTING:
        return False
    return _end(run, reason, exit_code=run.exit_code, engine_message=words[:4000], log_complete=True)
