"""How much of its time limit a job has left that goes on elsewhere."""

from collections.abc import Collection

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
