"""More time for a running job: at once where that delays nobody or admins allow it; else, whom it would delay."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from jobs import quotas, snapshot, suppose, units, usage
from jobs.models import Cluster, Job, Run
from jobs.request import Problem
from jobs.states import RunState, Wish
from jobs.submit import Refused

MOST_SECONDS = 10 * 365 * 86400


@dataclass(frozen=True, kw_only=True)
class Extension:
    """`granted`: the deadline is `until` now. Else it stays, since `delayed` jobs (id → seconds) would start later."""

    granted: bool
    until: datetime
    delayed: dict[int, float | None]


def extend(job: Job, actor: Any, seconds: int) -> Extension:
    """Move the deadline of the running job by `seconds`; its time limit grows with it.

    Raises Refused when it does not run with a limit, is being stopped, or the limits of owner or team are passed,
    which staff may.
    """
    job.refresh_from_db()
    run = _extensible(job, seconds)
    assert run.deadline is not None
    until = run.deadline + timedelta(seconds=seconds)
    cluster = Cluster.get()
    if not actor.is_staff:
        _check_quotas(job, run, seconds)
    delayed = suppose.delays(snapshot.take(timezone.now(), cluster=cluster), run, until)
    may = actor.is_staff or not delayed or seconds <= spare_seconds(job, cluster)
    if may and not _grant(job, run, actor, seconds, until, delayed):
        raise Refused(problems=[Problem(field="extension", code="NOT_RUNNING")])
    return Extension(granted=may, until=until, delayed=delayed)


def spare_seconds(job: Job, cluster: Cluster) -> float:
    """How much more time the job may still get although others are delayed."""
    given = job.events.filter(kind="EXTENDED", params__delayed__gt=0).values_list("params__seconds", flat=True)
    return float(cluster.extension_hours * 3600 - sum(given))


def _extensible(job: Job, seconds: int) -> Run:
    if not 60 <= seconds <= MOST_SECONDS:
        raise Refused(problems=[Problem(field="extension", code="EXTENSION_RANGE")])
    run = job.current_run
    if run is None or run.state != RunState.RUNNING or run.wish:
        raise Refused(problems=[Problem(field="extension", code="NOT_RUNNING")])
    if run.deadline is None or job.limit_seconds is None:
        raise Refused(problems=[Problem(field="extension", code="NO_DEADLINE")])
    longer = job.limit_seconds + seconds
    if longer > units.MOST:
        params = {"text": units.exact_duration(longer)}
        raise Refused(problems=[Problem(field="extension", code="QUANTITY_LARGE", params=params)])
    return run


def _check_quotas(job: Job, run: Run, seconds: int) -> None:
    """Raise Refused when the longer limit is above the longest allowed, or more GPU-hours than are left."""
    now, longer = timezone.now(), Job.objects.get(pk=job.pk)
    longer.limit_seconds = (job.limit_seconds or 0) + seconds
    longer.gpus, longer.least_gpus = run.allocation.gpus, None
    longer.gpu_milli = run.allocation.gpu_milli  # of a share, what it is charged
    more = Job.objects.get(pk=job.pk)  # the rest of the run is promised already
    more.limit_seconds, more.gpus, more.least_gpus = seconds, run.allocation.gpus, None
    more.gpu_milli = run.allocation.gpu_milli
    levels = usage.levels(job.owner, job.team, now)
    found = [*quotas.never(longer, *(limits for limits, _used in levels)), *quotas.start(more, *levels)]
    found = [refusal for refusal in found if refusal.field == "limit_seconds"]
    if found:
        raise Refused(found)


def _grant(
    job: Job, run: Run, actor: Any, seconds: int, until: datetime, delayed: dict[int, float | None]
) -> bool:  # fmt: skip
    """Write the deadline, unless the run has ended, is being stopped or was extended meanwhile. Agents read it anew."""
    with transaction.atomic():
        runs = Run.objects.filter(pk=run.pk, state=RunState.RUNNING, deadline=run.deadline)
        if not runs.exclude(wish__in=[Wish.CANCEL, Wish.TIME_LIMIT]).update(deadline=until):
            return False
        Job.objects.filter(pk=job.pk).update(limit_seconds=F("limit_seconds") + seconds)
        job.note(
            "EXTENDED", actor=actor, run=run, seconds=seconds, until=until.isoformat(), delayed=len(delayed),
            delayed_jobs=sorted(delayed)[:20],
        )  # fmt: skip
    return True
