"""Carry out what a plan says of running jobs: who ends, or goes on elsewhere, so that a waiting job can start.

Decided again under locks, and for one winner all or none: nobody is stopped for a job that then does not fit.
The winner itself starts in a later pass, once the room is free.
"""

import logging
from collections import defaultdict
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from jobs import snapshot
from jobs.control import wish
from jobs.models import Cluster, Job, Run
from jobs.policy import Move, Plan, Preemption
from jobs.states import LIVE_RUNS, JobState, Wish

log = logging.getLogger(__name__)

Asked = Preemption | Move


class _Changed(Exception):
    """The picture was out of date: the next pass decides anew."""


def make_room(plan: Plan) -> int:
    """Raise the plan's wishes on the runs that are to make way; how many there were."""
    by_winner: dict[int, list[Asked]] = defaultdict(list)
    wanted: list[Asked] = [*plan.preemptions, *plan.moves]
    for asked in wanted:
        by_winner[asked.job].append(asked)
    return sum(_for_winner(winner, asked) for winner, asked in by_winner.items())


def _for_winner(winner: int, asked: list[Asked]) -> int:
    try:
        with transaction.atomic():
            cluster = Cluster.objects.select_for_update(no_key=True).get(pk=1)
            if not Job.objects.filter(pk=winner, state=JobState.QUEUED).exists():
                raise _Changed
            runs = Run.objects.select_for_update(of=("self",), no_key=True).select_related("job", "node")
            found = runs.in_bulk([one.run for one in asked])
            now = timezone.now()
            for one in asked:
                _ask(one, found.get(one.run), cluster, now)
    except _Changed:
        log.info("no room is made for job %d: something changed meanwhile", winner)
        return 0
    return len(asked)


def _ask(asked: Asked, run: Run | None, cluster: Cluster, now: datetime) -> None:
    """Raise the wish on one run. Raises _Changed when it may not, or no longer needs to, make way."""
    if run is None or not may_make_way(run, asked, cluster, now):
        raise _Changed
    if isinstance(asked, Preemption):
        done = wish(run, Wish.PREEMPT, for_job=asked.job, why=asked.why)
    else:
        done = wish(run, Wish.REBIND, for_job=asked.job)
        Job.objects.filter(pk=run.job_id).update(avoid_gpus=run.gpu_uuids)
    if not done:
        raise _Changed


def may_make_way(run: Run, asked: Asked, cluster: Cluster, now: datetime) -> bool:
    """Whether the run may be stopped for another: live, not asked already, allowed, and past its protected time."""
    if run.state not in LIVE_RUNS or run.wish or snapshot.why_closed(run.node, now) is not None:
        return False
    if now - (run.started_at or run.placed_at) < timedelta(minutes=cluster.protected_minutes):
        return False
    if isinstance(asked, Move):
        return run.job.movable and cluster.defragment
    return asked.why == "GUARANTEE" or (run.job.preemptible and cluster.preempt_lower)
