"""What people may do to a job after submitting it. Each says whether anything changed; a second press is harmless."""

from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from jobs.models import Job, Run
from jobs.queues import send_stop, wake_scheduler
from jobs.states import (
    LIVE_RUNS,
    WISH_STRENGTH,
    EndReason,
    JobState,
    RunState,
    Wish,
    job_state_after,
    reason_for_wish,
)


def cancel(job: Job, actor: Any) -> bool:
    """End the job: at once while it waits, through STOPPING with its grace period while it runs."""
    job.refresh_from_db()
    reason = reason_for_wish(Wish.CANCEL, by_owner=actor is not None and actor.pk == job.owner_id)
    if job.state in (JobState.QUEUED, JobState.HELD):
        moved = job.advance(
            JobState(job.state), JobState.CANCELLED, actor=actor, event="ENDED", params={"reason": str(reason)},
            end_reason=reason, ended_at=timezone.now(), wait_reasons=[],
        )  # fmt: skip
        return moved or cancel(job, actor)  # it moved meanwhile: look again
    run = job.current_run
    if run is None or run.state == RunState.ENDED:
        return False
    if revoke(run, reason, actor):
        return True
    return wish(run, Wish.CANCEL, actor)


def revoke(run: Run, reason: EndReason, actor: Any = None) -> bool:
    """PLACED → ENDED: no engine call has been made, so nothing needs proof. False when it is past that."""
    if run.state != RunState.PLACED:
        return False
    state = job_state_after(reason, requeues=0, max_requeues=1, held=run.job.is_held)
    with transaction.atomic():
        if not run.end(RunState.PLACED, reason, state, now=timezone.now(), actor=actor):
            return False
        transaction.on_commit(wake_scheduler, robust=True)
    return True


def wish(
    run: Run, wanted: Wish, actor: Any = None, *, for_job: int | None = None, still: dict[str, Any] | None = None,
    **params: Any,
) -> bool:  # fmt: skip
    """Raise a wish on a live run; a stronger one replaces a weaker. False when it changes nothing.

    `for_job` is the waiting job that the run makes way for; `still` is what else must be true of the row;
    `params` go into the event.
    """
    weaker = [w for w, strength in WISH_STRENGTH.items() if strength < WISH_STRENGTH[wanted]]
    with transaction.atomic():
        live = Run.objects.filter(Q(wish="") | Q(wish__in=weaker), pk=run.pk, state__in=LIVE_RUNS, **(still or {}))
        # A victim that is cancelled meanwhile makes way all the same.
        winner = {} if for_job is None else {"makes_way_for_id": for_job}
        if not live.update(wish=wanted, wish_by=actor, wish_at=timezone.now(), **winner):
            return False
        told = params if for_job is None else {"for": for_job, **params}
        run.job.note("WISHED", actor=actor, run=run, wish=str(wanted), **told)
        node, pk = run.node.name, run.pk
        transaction.on_commit(lambda: send_stop(node, pk), robust=True)
    return True


def hold(job: Job, actor: Any, *, why: str = "") -> bool:
    """Keep a waiting job from starting: QUEUED → HELD. A user's and an admin's hold are two; the journal has `why`."""
    field = _field_of_hold(job, actor)
    told: dict[str, Any] = {"by": field.removeprefix("held_by_"), **({"why": why} if why else {})}
    with transaction.atomic():
        if Job.objects.filter(pk=job.pk, state=JobState.HELD, **{field: False}).update(**{field: True}):
            job.note("HELD", actor=actor, **told)
            return True
        return job.advance(
            JobState.QUEUED, JobState.HELD, actor=actor, event="HELD", params=told,
            wait_reasons=[{"code": field.upper()}], blocked_since=None, **_held(field),
        )  # fmt: skip


def release(job: Job, actor: Any, *, why: str = "") -> bool:
    """Lift one's own hold; the job is QUEUED again, at its old place, once nobody holds it."""
    field = _field_of_hold(job, actor)
    told: dict[str, Any] = {"by": field.removeprefix("held_by_"), **({"why": why} if why else {})}
    other = "held_by_admin" if field == "held_by_user" else "held_by_user"
    with transaction.atomic():
        moved = Job.objects.filter(pk=job.pk, **{field: True, other: False}).exists() and job.advance(
            JobState.HELD, JobState.QUEUED, actor=actor, event="RELEASED", params=told,
            wait_reasons=[{"code": "NOT_LOOKED_AT"}], **_released(field),
        )  # fmt: skip
        if not moved:
            lifted = Job.objects.filter(pk=job.pk, state=JobState.HELD, **{field: True}).update(**_released(field))
            if lifted:
                job.note("RELEASED", actor=actor, **told)
            return bool(lifted)
        transaction.on_commit(wake_scheduler, robust=True)
    return True


def _held(field: str) -> dict[str, Any]:
    return {field: True}


def _released(field: str) -> dict[str, Any]:
    return {field: False, **({"released_at": timezone.now()} if field == "held_by_user" else {})}


def _field_of_hold(job: Job, actor: Any) -> str:
    """Which of the two holds this actor sets and lifts: staff hold other people's jobs as admins."""
    return "held_by_admin" if actor is None or (actor.is_staff and actor.pk != job.owner_id) else "held_by_user"
