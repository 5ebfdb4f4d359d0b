"""Change who waits before whom: pins and priorities, and the places of one owner's own jobs.

Each says whether anything changed, leaves an event, and moves no state. Who may call: see `jobs.access`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import Any

from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from jobs import announce, quotas, usage
from jobs.images import Allowed
from jobs.models import Cluster, Job, Priority
from jobs.queues import wake_scheduler
from jobs.request import Problem
from jobs.states import WAITING, JobState
from jobs.submit import Refused

LEAST = timedelta(microseconds=1)  # between two places


def pin(job: Job, actor: Any) -> bool:
    """Put a waiting job before all that are not pinned."""
    return _change(job, actor, "PINNED", {"pinned": True})


def unpin(job: Job, actor: Any) -> bool:
    return _change(job, actor, "UNPINNED", {"pinned": False})


def reprioritise(job: Job, actor: Any, priority: int) -> bool:
    """Give a waiting job another priority. Raises Refused above a ceiling, its owner's or team's; not for staff."""
    if priority not in Priority.values:
        raise Refused(problems=[Problem(field="priority", code="PRIORITY_RANGE")])
    if not actor.is_staff:
        job.priority, old = priority, job.priority
        limits = usage.limits_of(job.owner, job.team)
        refusals = quotas.above_ceiling(job, *limits)
        job.priority = old
        if refusals:
            raise Refused(refusals)
    return _change(job, actor, "REPRIORITISED", {"priority": priority}, old=job.priority, new=priority)


def priorities(job: Job, actor: Any) -> list[Priority]:
    """Those that the actor may give the job: none once it no longer waits."""
    if job.state not in WAITING:
        return []
    limits = usage.limits_of(job.owner, job.team)
    ceilings = [limit.priority for limit in limits if limit.priority is not None]
    most = max(Priority.values) if actor.is_staff else min(ceilings, default=max(Priority.values))
    return [level for level in Priority if level <= most]


def _change(job: Job, actor: Any, event: str, changes: dict[str, Any], **told: Any) -> bool:
    ((name, value),) = changes.items()
    with transaction.atomic():
        rows = Job.objects.filter(pk=job.pk, state__in=WAITING).exclude(**changes)
        if not rows.update(**changes):
            return False
        setattr(job, name, value)
        job.note(event, actor=actor, **told)
        transaction.on_commit(wake_scheduler, robust=True)
    return True


def movable_with(job: Job, now: datetime) -> QuerySet[Job]:
    """The jobs that the job may change places with: of the same owner, team and priority, first one first.

    Those in line among themselves, those on hold too, which keep their places for later; empty for one that is to
    start later, since that time is its place.
    """
    same = Job.objects.filter(owner=job.owner_id, team=job.team_id, priority=job.priority, pinned=job.pinned)
    return standing(same, held=job.state == JobState.HELD, now=now).order_by("queued_at", "pk")


def standing(jobs: QuerySet[Job], *, held: bool, now: datetime) -> QuerySet[Job]:
    """Those that are on hold, or those in line."""
    if held:
        return jobs.filter(state=JobState.HELD)
    return jobs.filter(Q(start_after=None) | Q(start_after__lte=now), state=JobState.QUEUED)


def move_up(job: Job, actor: Any) -> bool:
    """One place up among the owner's own."""
    return _move(job, actor, lambda line: line.index(job.pk) - 1)


def move_down(job: Job, actor: Any) -> bool:
    return _move(job, actor, lambda line: line.index(job.pk) + 1)


def move_to(job: Job, actor: Any, other: int) -> bool:
    """To the place of another of the owner's jobs, which makes room; False where that is none of `movable_with`."""
    return _move(job, actor, lambda line: line.index(other) if other in line else -1)


def _move(job: Job, actor: Any, where: Callable[[list[int]], int]) -> bool:
    """Exchange places among the owner's own jobs: the set of their places stays, so nobody else waits longer."""
    with transaction.atomic():
        rows, allowed = movable_with(job, timezone.now()), Allowed(Cluster.get().image_patterns)
        if connection.features.has_select_for_update:  # on SQLite the transaction itself is the line
            rows = rows.select_for_update(no_key=True)
        line = [row for row in rows.only("pk", "queued_at", "image") if allowed(row.image)]
        line.sort(key=attrgetter("queued_at", "pk"))  # PostgreSQL sorts before it waits for the locks
        order = [row.pk for row in line]
        to = where(order) if job.pk in order else -1
        if not 0 <= to < len(line) or order[to] == job.pk:
            return False
        places = _apart([row.queued_at for row in line])
        line.insert(to, line.pop(order.index(job.pk)))
        for row, place in zip(line, places, strict=True):
            if row.queued_at != place:
                Job.objects.filter(pk=row.pk).update(queued_at=place)
                announce.job_changed(row.pk)
        job.note("REORDERED", actor=actor, up=to < order.index(job.pk), passed=order[to])
        transaction.on_commit(wake_scheduler, robust=True)
    return True


def _apart(places: Sequence[datetime]) -> list[datetime]:
    """The places with none the same as another, else an exchange would change nothing."""
    found = [*places[:1]]
    for _before, place in pairwise(places):
        found.append(max(place, found[-1] + LEAST))
    return found
