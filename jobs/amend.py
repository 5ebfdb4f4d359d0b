"""Ask for less: what a waiting job may still change of its request without losing its place."""

from typing import Any

from django.db import transaction

from jobs.models import Job
from jobs.queues import wake_scheduler
from jobs.request import MIN_MEMORY_MIB, Problem
from jobs.states import WAITING, JobState
from jobs.submit import Refused

LEAST_MILLICPUS = 100
FIELDS = ("gpus", "limit_seconds", "millicpus", "memory_mib")


def amend(
    job: Job, actor: Any, *, gpus: int | None = None, limit_seconds: int | None = None, millicpus: int | None = None,
    memory_mib: int | None = None,
) -> bool:  # fmt: skip
    """Lower what the waiting job asks for, or raise it again; the scheduler looks at it at once.

    False when it no longer waits or that is what it asks for. Raises Refused for more than it was submitted with.
    """
    job.refresh_from_db()
    first = submitted_with(job)
    changes = {
        **_gpus(job, gpus, first), **_limit(job, limit_seconds, first),
        **_size(job, "millicpus", millicpus, LEAST_MILLICPUS, first),
        **_size(job, "memory_mib", memory_mib, MIN_MEMORY_MIB, first),
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


def submitted_with(job: Job) -> dict[str, Any]:
    """What the job asked for before it was ever amended, by the journal, or what it has been given since if more."""
    first: dict[str, Any] = {name: getattr(job, name) for name in (*FIELDS, "least_gpus", "shm_mib")}
    for params in job.events.filter(kind="AMENDED").order_by("-id").values_list("params", flat=True):
        first |= params["before"]
    for name in FIELDS:
        if first[name] is not None and getattr(job, name) is not None:
            first[name] = max(first[name], getattr(job, name))
    return first


def lowered(job: Job, first: dict[str, Any]) -> dict[str, Any]:
    """What the job asks less of than it was submitted with: by field, what that was. No limit is not offered again."""
    return {name: first[name] for name in FIELDS if first[name] is not None and first[name] != getattr(job, name)}


def _gpus(job: Job, gpus: int | None, first: dict[str, Any]) -> dict[str, int]:
    if gpus is None or gpus == job.gpus:
        return {}
    if not 1 <= gpus <= first["gpus"]:
        params = {"least": 1, "most": first["gpus"], "asked": gpus}
        raise Refused(problems=[Problem(field="gpus", code="ONLY_LESS", params=params)])
    least = first["least_gpus"]
    return {"gpus": gpus} if least is None else {"gpus": gpus, "least_gpus": min(least, gpus)}


def _size(job: Job, name: str, size: int | None, least: int, first: dict[str, Any]) -> dict[str, int]:
    """CPUs or memory; shared memory is a part of memory, and shrinks and grows with it."""
    if size is None or size == getattr(job, name):
        return {}
    if not least <= size <= first[name]:
        params = {"field": name, "least": least, "most": first[name], "asked": size}
        raise Refused(problems=[Problem(field=name, code="ONLY_SMALLER", params=params)])
    return {name: size, "shm_mib": min(first["shm_mib"], size)} if name == "memory_mib" else {name: size}


def _limit(job: Job, seconds: int | None, first: dict[str, Any]) -> dict[str, int]:
    if seconds is None or seconds == job.limit_seconds:
        return {}
    most = first["limit_seconds"]
    if seconds < 1 or (most is not None and seconds > most):
        params = {"most": most, "asked": seconds}
        raise Refused(problems=[Problem(field="limit", code="ONLY_SHORTER", params=params)])
    return {"limit_seconds": seconds}
