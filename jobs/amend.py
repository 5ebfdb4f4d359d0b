"""Ask for less: what a waiting job may still change of its request without losing its place."""

from typing import Any

from django.db import transaction

from jobs.models import Job
from jobs.queues import wake_scheduler
from jobs.request import MIN_MEMORY_MIB, Problem
from jobs.states import WAITING, JobState
from jobs.submit import Refused

LEAST_MILLICPUS = 100


def amend(
    job: Job, actor: Any, *, gpus: int | None = None, limit_seconds: int | None = None, millicpus: int | None = None,
    memory_mib: int | None = None,
) -> bool:  # fmt: skip
    """Lower what the waiting job asks for; the scheduler looks at it at once.

    False when it no longer waits or that is what it asks for. Raises Refused for anything that is not smaller.
    """
    job.refresh_from_db()
    changes = {
        **_gpus(job, gpus), **_limit(job, limit_seconds), **_size(job, "millicpus", millicpus, LEAST_MILLICPUS),
        **_size(job, "memory_mib", memory_mib, MIN_MEMORY_MIB),
    }  # fmt: skip
    if not changes or JobState(job.state) not in WAITING:
        return False
    before = {name: getattr(job, name) for name in changes}
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, state__in=WAITING, **before).update(**changes):
            return False
        job.note("AMENDED", actor=actor, before=before, after=changes)
        transaction.on_commit(wake_scheduler, robust=True)
    return True


def _gpus(job: Job, gpus: int | None) -> dict[str, int]:
    if gpus is None or gpus == job.gpus:
        return {}
    if not 1 <= gpus < job.gpus:
        raise Refused(problems=[Problem(field="gpus", code="ONLY_LESS", params={"least": 1, "most": job.gpus})])
    return {"gpus": gpus} if job.least_gpus is None else {"gpus": gpus, "least_gpus": min(job.least_gpus, gpus)}


def _size(job: Job, name: str, size: int | None, least: int) -> dict[str, int]:
    """CPUs or memory; shared memory is a part of memory, and shrinks with it."""
    now = getattr(job, name)
    if size is None or size == now:
        return {}
    if not least <= size < now:
        raise Refused(
            problems=[Problem(field=name, code="ONLY_SMALLER", params={"field": name, "least": least, "most": now})]
        )
    return {name: size, "shm_mib": min(job.shm_mib, size)} if name == "memory_mib" else {name: size}


def _limit(job: Job, seconds: int | None) -> dict[str, int]:
    if seconds is None or seconds == job.limit_seconds:
        return {}
    if seconds < 1 or (job.limit_seconds is not None and seconds > job.limit_seconds):
        raise Refused(problems=[Problem(field="limit", code="ONLY_SHORTER", params={"most": job.limit_seconds})])
    return {"limit_seconds": seconds}
