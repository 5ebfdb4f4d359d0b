"""STARTING → RUNNING, once the container runs."""

from datetime import UTC, datetime, timedelta

from jobs import containers, readback, timeleft
from jobs.models import Run
from jobs.queues import send_stop
from jobs.states import RunState


def become_running(run: Run, container: containers.Container) -> bool:
    """STARTING → RUNNING, from the container's own StartedAt on; reads back what it really got.

    A container that got other GPUs than it was allotted is killed at once: its end is GPU_START_FAILED.
    """
    started = container.started_at or datetime.now(UTC)
    limit = timeleft.of(run.job)
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
