"""Move a live job to other GPUs: stopped with its grace, first in line again, started in the same workspace."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs import quotas, snapshot, suppose, usage
from jobs.control import revoke, wish
from jobs.images import Allowed
from jobs.models import Cluster, Job, Run
from jobs.quotas import Refusal
from jobs.request import Problem
from jobs.states import EndReason, RunState, Wish
from jobs.submit import Refused


def rebind(job: Job, actor: Any, *, gpus: int | None = None, regardless: bool = False) -> bool:
    """RUNNING → STOPPING → QUEUED → …: the job goes on elsewhere, or, if it is elastic, with so many GPUs.

    False when it is not running, or is being stopped already. Raises Refused, with numbers, when there is no
    place for it now: it is not stopped for nothing, unless `regardless` says that it is to wait for one.
    """
    job.refresh_from_db()
    run = job.current_run
    if run is None or run.state not in (RunState.PLACED, RunState.STARTING, RunState.RUNNING) or run.wish:
        return False
    wanted = _size(job, run, gpus)
    avoid = [] if gpus is not None or run.node.cordoned else run.gpu_uuids
    if not regardless:
        _check_place(job, run, wanted, avoid)
    changes: dict[str, Any] = {"avoid_gpus": avoid}
    if gpus is not None:
        changes |= {"gpus": wanted, "least_gpus": min(job.least_gpus or wanted, wanted)}
    return _move(job, run, actor, changes)


def _move(job: Job, run: Run, actor: Any, changes: dict[str, Any]) -> bool:
    told = {"gpus": changes["gpus"]} if "gpus" in changes else {}
    with transaction.atomic():
        moved = _not_begun(run, actor, told) or wish(run, Wish.REBIND, actor, **told)
        if moved:
            Job.objects.filter(pk=job.pk).update(**changes)
    return moved


def _not_begun(run: Run, actor: Any, told: dict[str, Any]) -> bool:
    """Take back a run that is only placed; the journal says why as of any other."""
    if run.state != RunState.PLACED:
        return False
    with transaction.atomic():
        run.job.note("WISHED", actor=actor, run=run, wish=str(Wish.REBIND), **told)
        if revoke(run, EndReason.REBOUND, actor):
            return True
        transaction.set_rollback(True)
    return False


def _size(job: Job, run: Run, gpus: int | None) -> int:
    """The number of GPUs it is to have. Raises Refused for one that its request or a quota does not allow."""
    held = run.allocation.gpus
    if gpus is None:
        if not job.gpus and not run.node.cordoned:
            raise Refused(problems=[Problem(field="gpus", code="NO_GPUS_TO_MOVE")])
        return held
    if job.least_gpus is None:
        raise Refused(problems=[Problem(field="gpus", code="NOT_ELASTIC")])
    if gpus < job.least_gpus:
        raise Refused(problems=[Problem(field="gpus", code="TOO_SMALL", params={"least": job.least_gpus})])
    if gpus == held:
        raise Refused(problems=[Problem(field="gpus", code="SAME_SIZE", params={"gpus": held})])
    refusals = _over_quota(job, run, gpus, held)
    if refusals:
        raise Refused(refusals)
    return gpus


def _over_quota(job: Job, run: Run, gpus: int, held: int) -> list[Refusal]:
    """What of the quotas on GPUs, without which it runs already, and their time the larger size would pass."""
    if gpus < held:
        return []
    now = timezone.now()
    levels = usage.levels(job.owner, job.team, now)
    whole, more = _asking(job, gpus), _asking(job, gpus - held)
    if run.deadline is not None:
        more.limit_seconds = max(int((run.deadline - now).total_seconds()), 1)
    never = quotas.never(whole, *(limits for limits, _used in levels))
    return _of_size(never) or _of_size(quotas.start(more, *levels))


def _of_size(refusals: list[Refusal]) -> list[Refusal]:
    return [refusal for refusal in refusals if refusal.field == "gpus" or refusal.code == "BUDGET_USED"]


def _asking(job: Job, gpus: int) -> Job:
    """A copy of the job that asks for so many GPUs; never saved."""
    copy = Job.objects.get(pk=job.pk)
    copy.gpus, copy.least_gpus = gpus, None
    return copy


def _check_place(job: Job, run: Run, gpus: int, avoid: list[str]) -> None:
    cluster = Cluster.get()
    if not Allowed(cluster.image_patterns)(job.image):
        raise Refused(problems=[Problem(field="image", code="IMAGE_NOT_ALLOWED", params={"image": job.image})])
    picture = snapshot.take(timezone.now(), cluster=cluster)
    placed, reasons = suppose.place_for(job, run, picture, gpus=gpus, avoid=avoid)
    if placed is None:
        raise Refused(problems=[Problem(field="gpus", code="NO_OTHER_PLACE", params={"reasons": list(reasons)})])
