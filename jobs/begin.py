"""STARTING → RUNNING, once the container runs."""

from datetime import UTC, datetime, timedelta

from jobs import containers, readback
from jobs.models import Run
from jobs.queues import send_stop
from jobs.states import EndReason, RunState


def become_running(run: Run, container: containers.Container) -> bool:
    """STARTING → RUNNING, from the container's own StartedAt on; reads back what it really got.

    A container that got other GPUs than it was allotted is killed at once: its end is GPU_START_FAILED.
    """
    started = container.started_at or datetime.now(UTC)
    limit = seconds_left(run)
    granted = readback.granted(container, run.gpu_uuids)
    moved = run.advance(
        RunState.STARTING, RunState.RUNNING, started_at=started, container_id=container.id, progress={},
        deadline=started + timedelta(seconds=limit) if limit is not None else None, granted=granted,
        facts=readback.facts(container), job_changes={"started_at": started},
    )  # fmt: skip
    if moved and granted.get("mismatch"):
        run.job.note("WARNED", run=run, code="GRANT_MISMATCH", got=granted["gpus"])
        containers.kill(container.id, "SIGKILL")
    if moved and Run.objects.filter(pk=run.pk).exclude(wish="").exists():
        send_stop(run.node.name, run.pk)  # wished between our last look and the start
    return moved


def seconds_left(run: Run) -> float | None:
    """How long the run may take: its job's limit, or what a run that was moved left of it. None: no limit."""
    if run.number == 1 or run.job.limit_seconds is None:
        return run.job.limit_seconds
    moved = run.job.runs.filter(number=run.number - 1, end_reason=EndReason.REBOUND).first()
    if moved is None:
        return run.job.limit_seconds
    if moved.deadline is None or moved.stopping_at is None:
        return seconds_left(moved)  # it was moved before it ran
    return max((moved.deadline - moved.stopping_at).total_seconds(), 1)
