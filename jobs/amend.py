"""Ask for less: what a waiting job may still change of its request without losing its place."""

import copy
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs import snapshot, usage
from jobs.models import Job
from jobs.policy.kinds import Kinds
from jobs.queues import wake_scheduler
from jobs.request import MIN_MEMORY_MIB, Problem
from jobs.states import WAITING, JobState
from jobs.submit import Refused, beyond_hosts, beyond_limits

LEAST_MILLICPUS = 100
SIZES = ("gpus", "limit_seconds", "millicpus", "memory_mib")
FIELDS = (*SIZES, "gpu_model", "node_labels")


def amend(
    job: Job, actor: Any, *, gpus: int | None = None, limit_seconds: int | None = None, millicpus: int | None = None,
    memory_mib: int | None = None, gpu_model: str | None = None, node_labels: Sequence[str] | None = None,
) -> bool:  # fmt: skip
    """Lower what the waiting job asks for, or raise it again, or take another GPU model ("": any).

    `node_labels` are those that are left. The scheduler looks at it at once. False when it no longer waits or that is
    what it asks for. Raises Refused for more than it was submitted with, and for a model that it could never have.
    """
    job.refresh_from_db()
    first = submitted_with(job)
    less = {
        **_gpus(job, gpus, first), **_limit(job, limit_seconds, first),
        **_size(job, "millicpus", millicpus, LEAST_MILLICPUS, first),
        **_size(job, "memory_mib", memory_mib, MIN_MEMORY_MIB, first),
        **_labels(job, node_labels, first),
    }  # fmt: skip
    changes = {**less, **_model(job, gpu_model, first, less)}
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
    for name in SIZES:
        if first[name] is not None and getattr(job, name) is not None:
            first[name] = max(first[name], getattr(job, name))
    return first


def lowered(job: Job, first: dict[str, Any]) -> dict[str, Any]:
    """What the job asks for otherwise than it was submitted with: by field, what that was. No limit is not offered."""
    return {name: first[name] for name in FIELDS if first[name] is not None and first[name] != getattr(job, name)}


def _gpus(job: Job, gpus: int | None, first: dict[str, Any]) -> dict[str, Any]:
    if gpus is None or gpus == job.gpus:
        return {}
    if not 1 <= gpus <= first["gpus"]:
        params = {"least": 1, "most": first["gpus"], "asked": gpus}
        raise Refused(problems=[Problem(field="gpus", code="ONLY_LESS", params=params)])
    least = first["least_gpus"]
    return {"gpus": gpus} if least is None else {"gpus": gpus, "least_gpus": min(least, gpus)}


def _size(job: Job, name: str, size: int | None, least: int, first: dict[str, Any]) -> dict[str, Any]:
    """CPUs or memory; shared memory is a part of memory, and shrinks and grows with it."""
    if size is None or size == getattr(job, name):
        return {}
    if not least <= size <= first[name]:
        params = {"field": name, "least": least, "most": first[name], "asked": size}
        raise Refused(problems=[Problem(field=name, code="ONLY_SMALLER", params=params)])
    return {name: size, "shm_mib": min(first["shm_mib"], size)} if name == "memory_mib" else {name: size}


def _limit(job: Job, seconds: int | None, first: dict[str, Any]) -> dict[str, Any]:
    if seconds is None or seconds == job.limit_seconds:
        return {}
    most = first["limit_seconds"]
    if seconds < 1 or (most is not None and seconds > most):
        params = {"most": most, "asked": seconds}
        raise Refused(problems=[Problem(field="limit", code="ONLY_SHORTER", params=params)])
    return {"limit_seconds": seconds}


def _labels(job: Job, labels: Sequence[str] | None, first: dict[str, Any]) -> dict[str, Any]:
    if labels is None or set(labels) == set(job.node_labels):
        return {}
    more = sorted(set(labels) - set(first["node_labels"]))
    if more:
        params = {"labels": more, "first": first["node_labels"]}
        raise Refused(problems=[Problem(field="node_labels", code="ONLY_FEWER_LABELS", params=params)])
    return {"node_labels": [label for label in first["node_labels"] if label in labels]}


def _model(job: Job, model: str | None, first: dict[str, Any], less: dict[str, Any]) -> dict[str, Any]:
    """Another model is no less: it must be one that the job could have been submitted with."""
    if model is None or model == job.gpu_model:
        return {}
    asked = copy.copy(job)
    asked.__dict__.update({**less, "gpu_model": model})
    hosts = snapshot.hardware(timezone.now())
    limits = usage.user_limits([job.owner])[job.owner_id], usage.team_limits([job.team])[job.team_id]
    problems, refusals = beyond_hosts(asked, hosts), beyond_limits(asked, Kinds(hosts), *limits)
    if not job.gpus:
        problems.append(Problem(field="gpu_model", code="MODEL_WITHOUT_GPUS"))
    if (problems or refusals) and model != first["gpu_model"]:
        raise Refused(refusals, problems)
    return {"gpu_model": model}
