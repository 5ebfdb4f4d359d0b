"""Give a silent host up: what ran there ends without proof, by a named admin, and is stopped first if it comes back."""

from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from gpus.models import Node
from jobs import blame, hostevents
from jobs.control import revoke
from jobs.joining import Refused
from jobs.models import Run
from jobs.queues import send_mail, wake_scheduler
from jobs.states import LIVE_RUNS, WAITING, EndReason, JobState, RunState, Wish, job_state_after, reason_for_wish

_GOES_BACK = frozenset({Wish.PREEMPT, Wish.REBIND})


def at_stake(node: Node) -> list[tuple[Run, JobState]]:
    """What runs on the host, or may, and what would become of each job: its end, or its old place in the queue."""
    runs = Run.objects.filter(node=node, state__in=LIVE_RUNS).select_related("job__owner", "node").order_by("pk")
    return [(run, _next(run)[1]) for run in runs]


def declare_dead(node: Node, actor: Any) -> list[Run]:
    """Each live run of a silent host → ENDED (HOST_LOST), its job to the queue if it may be started again, else LOST.

    Nothing starts on the host until its agent has come back and found nothing of them. Raises Refused(ALIVE).
    """
    now = timezone.now()
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        if node.is_alive(now):
            raise Refused("ALIVE", node=node.name)
        node.declared_dead_at = now
        node.save(update_fields=["declared_dead_at"])
        runs = Run.objects.filter(node=node, state__in=LIVE_RUNS).select_related("job", "node")
        ended = [run for run in runs.order_by("pk") if _give_up(run, actor, now)]
        hostevents.note(node, "DECLARED_DEAD", actor=actor, count=len(ended))
        transaction.on_commit(wake_scheduler, robust=True)
        for run in ended:
            if run.job.state not in WAITING:
                transaction.on_commit(partial(send_mail, run.job_id), robust=True)
    return ended


def _give_up(run: Run, actor: Any, now: datetime) -> bool:
    if run.state == RunState.PLACED:
        return revoke(run, EndReason.START_TIMEOUT, actor)
    reason, state = _next(run)
    return run.end(RunState(run.state), reason, state, now=now, actor=actor)


def _next(run: Run) -> tuple[EndReason, JobState]:
    """For what reason the run would end, and where its job would go."""
    if run.state == RunState.PLACED:
        return EndReason.START_TIMEOUT, JobState.HELD if run.job.is_held else JobState.QUEUED
    if run.wished is Wish.CANCEL:
        reason = reason_for_wish(Wish.CANCEL, by_owner=run.wish_by_id == run.job.owner_id)
    else:
        reason = EndReason.HOST_LOST
    job = run.job
    again = blame.may_start_again(job) or run.wished in _GOES_BACK
    return reason, job_state_after(
        reason, requeues=job.requeues, max_requeues=settings.MAX_REQUEUES, held=job.is_held, again=again
    )
