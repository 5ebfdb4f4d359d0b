"""The queue in the scheduler's order, and each job's place in it. Worked out on read, stored nowhere."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.db.models import Count, Max, Min, Prefetch, Q, QuerySet, Sum
from django.utils import timezone

from jobs import snapshot
from jobs.access import visible_jobs
from jobs.models import Cluster, Job, JobEvent, Run
from jobs.policy import Waiting
from jobs.policy.ahead import Ahead, ahead
from jobs.policy.turns import whole
from jobs.reorder import standing
from jobs.states import JobState

ORDER_PART = 20.0  # at ORDER_REREAD = 1: a twentieth of a process's time goes into the places that lists show
ORDER_KEPT = 5.0  # seconds; use changes it slowly, and whatever changes it at once leaves an event
ORDER_LAG = 5.0  # times ORDER_REREAD: how much older it may be while the next one is worked out

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A waiting job on the board. `place` is None for one that is held or to start later; strangers see no name.

    `line` names the jobs that its owner may exchange it with; `first` and `last` are those that can't move further.
    """

    job: Job
    place: int | None
    visible: bool
    mine: bool
    line: str = ""
    first: bool = True
    last: bool = True

    @property
    def movable(self) -> bool:
        """Whether its owner has another that it may be exchanged with."""
        return bool(self.line) and not (self.first and self.last)


@dataclass(frozen=True, kw_only=True)
class Board:
    """One page of the queue, and how long it is altogether. `after` is the place of the last entry, None at the end.

    `held` and `later` can't start now, so they are before nobody: on hold, or not to start before some time.
    """

    entries: list[Entry]
    total: int
    held: list[Entry]
    later: list[Entry]
    after: int | None


def board(user: Any, *, after: int = 0, size: int = 100) -> Board:
    """The queue from place `after` + 1 on, as `user` may see it; apart from it, jobs that can't start yet."""
    order = queue_order()
    wanted = order[after : after + size]
    barred = Q(pk__in=_kept.barred, state=JobState.QUEUED)
    held = Job.objects.filter(Q(state=JobState.HELD) | barred).order_by("queued_at", "id")
    later = Job.objects.filter(~barred, state=JobState.QUEUED, start_after__gt=timezone.now())
    later = later.order_by("start_after", "id")
    held_ids, later_ids = (list(found.values_list("id", flat=True)[:size]) for found in (held, later))
    jobs = in_full(Job.objects.filter(pk__in=[*wanted, *held_ids, *later_ids])).in_bulk()
    seen = set(visible_jobs(user).filter(pk__in=jobs).values_list("pk", flat=True))
    lines = _lines(user)

    def entry(pk: int, place: int | None) -> Entry:
        job = jobs[pk]
        return Entry(job=job, place=place, visible=pk in seen, mine=job.owner_id == user.pk, **lines.get(pk, {}))

    end = after + size
    return Board(
        entries=[entry(pk, place) for place, pk in enumerate(wanted, after + 1) if pk in jobs],
        total=len(order), held=[entry(pk, None) for pk in held_ids if pk in jobs],
        later=[entry(pk, None) for pk in later_ids if pk in jobs],
        after=end if end < len(order) else None,
    )  # fmt: skip


def _lines(user: Any) -> dict[int, dict[str, Any]]:
    """Each of the user's own waiting jobs → among which it may be moved, and whether it is the first or last of them.

    The lines are those of `jobs.reorder.movable_with`.
    """
    lines: dict[str, list[int]] = defaultdict(list)
    own, now = Job.objects.filter(owner=user).exclude(pk__in=_kept.barred).order_by("queued_at", "pk"), timezone.now()
    for held in (False, True):
        rows = standing(own, held=held, now=now).values_list("pk", "team_id", "priority", "pinned")
        for pk, team, priority, pinned in rows:
            lines[f"{team}-{priority}-{pinned:d}-{held:d}"].append(pk)
    return {
        pk: {"line": line, "first": pk == pks[0], "last": pk == pks[-1]} for line, pks in lines.items() for pk in pks
    }


class _Kept:
    """The order that this process worked out last, by the monotonic clock."""

    mark: object = None
    order: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()  # queued, with images that are not allowed
    line: tuple[Waiting, ...] = ()  # what stands at the ids of the order
    ahead: dict[int, Ahead] = {}
    read_at = 0.0
    took = 0.0  # seconds


_kept = _Kept()
_turn = threading.Lock()
_behind = ThreadPoolExecutor(1, thread_name_prefix="order")


def queue_order(*, fresh: bool = True) -> tuple[int, ...]:
    """The ids of all queued jobs that could start now, first to start first; the others are ahead of nobody.

    Kept while nothing has happened to the queue, for ORDER_KEPT. Who only asks for the places of some jobs takes an
    order that is up to ORDER_REREAD old, up to ten times as old where it takes long to work out: a flood of
    submissions asks at each one, and every list does. One thread works it out. Whom an order will do that has only
    just grown too old takes that one, and a thread behind the page works out the next.
    """
    age = time.monotonic() - _kept.read_at
    if fresh:
        good = ORDER_KEPT if _mark() == _kept.mark else 0.0
    else:
        good = settings.ORDER_REREAD * min(1 + ORDER_PART * _kept.took, 10)
    if age < good:
        return _kept.order
    if good and age < good + ORDER_LAG * settings.ORDER_REREAD:
        if _turn.acquire(blocking=False):
            _behind.submit(_work_out_behind)
    elif _turn.acquire(blocking=fresh or _kept.mark is None):
        try:
            _work_out()
        finally:
            _turn.release()
    return _kept.order


def _work_out_behind() -> None:
    """In the thread behind pages. What goes wrong is met again, and told, by whoever finds the order too old."""
    close_old_connections()
    try:
        _work_out()
    except DatabaseError as error:
        log.warning("the order of the queue was not worked out: %s", error)
    finally:
        close_old_connections()
        _turn.release()


def _work_out() -> None:
    begun, mark = time.monotonic(), _mark()
    if mark == _kept.mark and begun - _kept.read_at <= ORDER_KEPT:
        return
    picture = snapshot.queue(timezone.now(), cluster=Cluster.get())
    line = whole(picture)
    _kept.line, _kept.ahead = tuple(job for job in line if in_line(job, picture.now)), {}
    _kept.order = tuple(job.id for job in _kept.line)
    _kept.barred = tuple(job.id for job in line if job.held_by == ("image",))
    _kept.mark, _kept.read_at = mark, time.monotonic()
    _kept.took = _kept.read_at - begun


def ahead_of(job_id: int) -> Ahead:
    """Who is before the job and could take the same GPUs, as long as the order is kept."""
    queue_order(fresh=False)
    if job_id not in _kept.ahead:
        _kept.ahead[job_id] = ahead(job_id, _kept.line, snapshot.hardware(timezone.now()))
    return _kept.ahead[job_id]


def in_line(job: Waiting, now: datetime) -> bool:
    """Whether only room and quotas keep it from starting."""
    return not job.held_by and (job.start_after is None or job.start_after <= now)


def _mark() -> object:
    """What changes with the queue: its jobs, their columns, and the journal."""
    queued = Job.objects.filter(state=JobState.QUEUED).aggregate(
        n=Count("pk"), ids=Sum("pk"), priorities=Sum("priority"), first=Min("queued_at"), last=Max("queued_at"),
        pinned=Count("pk", filter=Q(pinned=True)),
    )  # fmt: skip
    return {**queued, "event": JobEvent.objects.aggregate(n=Max("pk"))["n"]}


def places(ids: Iterable[int]) -> tuple[dict[int, int], int]:
    """The places of these jobs in the queue (from 1; one that can't start yet has none), and the queue's length."""
    wanted, order = set(ids), queue_order(fresh=False)
    return {pk: place for place, pk in enumerate(order, 1) if pk in wanted}, len(order)


def in_full(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The jobs with all that a row shows and no more: owner, team, and their runs with node and who wished for what."""
    runs = Run.objects.select_related("node", "wish_by")
    return jobs.select_related("owner", "team").defer(*Job.BODY).prefetch_related(Prefetch("runs", queryset=runs))
