"""What earlier runs say of a waiting job: how long it ran, and what a job that goes on has left of its limit."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from jobs.models import Job, Run
from jobs.states import EndReason, RunState


def left(jobs: Collection[int]) -> dict[int, float]:
    """Of those of the jobs whose last run was moved after it had begun to run: seconds, at least 1.

    All others have their whole limit: what is stopped for another reason starts anew.
    """
    found: dict[int, float] = {}
    runs = Run.objects.filter(job__in=jobs, state=RunState.ENDED).order_by("number") if jobs else Run.objects.none()
    for job, reason, deadline, stopping_at in runs.values_list("job_id", "end_reason", "deadline", "stopping_at"):
        if reason != EndReason.REBOUND:
            found.pop(job, None)
        elif deadline is not None and stopping_at is not None:  # else it was moved before it ran
            found[job] = max((deadline - stopping_at).total_seconds(), 1)
    return found


def of(job: Job) -> float | None:
    """How long the job's next run, or the one that is about to begin, may take. None: no limit."""
    if job.limit_seconds is None:
        return None
    return min(left([job.pk]).get(job.pk, job.limit_seconds), job.limit_seconds)


def spans(jobs: Collection[int]) -> dict[int, tuple[tuple[datetime, datetime], ...]]:
    """From when to when earlier runs of the jobs held their places, of those that had begun to run."""
    found: dict[int, list[tuple[datetime, datetime]]] = defaultdict(list)
    if not jobs:
        return {}
    runs = Run.objects.filter(job__in=jobs, state=RunState.ENDED, started_at__isnull=False).order_by("number")
    for job, placed_at, ended_at in runs.values_list("job_id", "placed_at", "ended_at"):
        if ended_at is not None:
            found[job].append((placed_at, ended_at))
    return {job: tuple(of) for job, of in found.items()}
