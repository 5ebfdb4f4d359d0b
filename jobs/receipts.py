"""A job's receipt: what it asked for against what it used. The pure part is `jobs.receipt`."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.utils import timezone

from gpus.models import GPU, RunUse
from jobs.history import gpu_seconds, with_allocations
from jobs.models import Job, Run
from jobs.receipt import Asked, Used, add_up, would_have_done
from jobs.states import EndReason


def receipt(job: Job) -> tuple[Asked, Used, dict[str, str]] | None:
    """Asked, used, and the form's fields for the request that would have done; None for a job that never ran."""
    used = used_by(with_allocations(Job.objects.filter(pk=job.pk))).get(job.pk)
    if used is None:
        return None
    asked = asked_for(job)
    return asked, used, would_have_done(asked, used) if job.end_reason == EndReason.COMPLETED else {}


def used_by(jobs: Iterable[Job]) -> dict[int, Used]:
    """By job, what it used, without those that never ran. One query for jobs that come with runs and allocations."""
    jobs = list(jobs)
    found = _uses([run for job in jobs for run in job.runs.all()])
    now = timezone.now()
    return {job.pk: used for job in jobs if (used := _used(job, found, now)) is not None}


def asked_for(job: Job) -> Asked:
    cards = GPU.objects.filter(allocation_slots__allocation__run__job=job, memory_mib__isnull=False)
    smallest = cards.order_by("memory_mib").values_list("memory_mib", flat=True).first() if job.gpus else None
    return Asked(
        gpus=job.gpus, gpu_milli=job.gpu_milli, gpu_profile=job.gpu_profile, gpu_mib=smallest,
        elastic=job.least_gpus is not None, millicpus=job.millicpus, memory_mib=job.memory_mib, shm_mib=job.shm_mib,
        limit_seconds=job.limit_seconds,
    )  # fmt: skip


def _uses(runs: Collection[Run]) -> dict[int, dict[str, Any]]:
    rows = RunUse.objects.filter(run__in=[run.pk for run in runs])
    return {row["run"]: dict(row) for row in rows.values()}


def _used(job: Job, uses: dict[int, dict[str, Any]], now: datetime) -> Used | None:
    runs = list(job.runs.all())
    ran = [((run.ended_at or now) - run.started_at).total_seconds() for run in runs if run.started_at]
    if not ran:
        return None
    rows = [uses[run.pk] for run in runs if run.pk in uses]
    return add_up(rows, ran_seconds=max(ran), held_seconds=gpu_seconds(job, now))
