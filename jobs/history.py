"""What jobs took: the allocations of their runs, summed."""

from datetime import datetime

from django.db.models import Prefetch, QuerySet

from jobs.models import Job, Run
from jobs.quotas import WHOLE


def with_allocations(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The jobs with owner, team, runs and allocations, in a fixed number of queries."""
    runs = Run.objects.select_related("node", "wish_by", "allocation")
    return jobs.select_related("owner", "team").defer(*Job.BODY).prefetch_related(Prefetch("runs", queryset=runs))


def gpu_seconds(job: Job, now: datetime) -> float:
    """GPU-seconds that the job's runs have held GPUs, from placing to release."""
    allocations = [run.allocation for run in job.runs.all() if hasattr(run, "allocation")]
    return sum(a.gpu_milli / WHOLE * ((a.released_at or now) - a.created_at).total_seconds() for a in allocations)


def waited_seconds(job: Job, now: datetime) -> float:
    """From submission to the start of its last run, or until it ended or now without one."""
    return ((job.started_at or job.ended_at or now) - job.created_at).total_seconds()


def ran_seconds(job: Job, now: datetime) -> float | None:
    """How long its last run has run; None when it never did."""
    if job.started_at is None:
        return None
    return max(((job.ended_at or now) - job.started_at).total_seconds(), 0)
