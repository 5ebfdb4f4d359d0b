"""The queue in the scheduler's order, and each job's place in it. Worked out on read, stored nowhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch, QuerySet

from jobs.access import visible_jobs
from jobs.models import Job, Run
from jobs.states import JobState

ORDER = ("-priority", "queued_at", "id")  # the same as jobs.policy.order


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A waiting job on the board. `place` is None for a held one; strangers see no name and no image."""

    job: Job
    place: int | None
    visible: bool
    mine: bool


@dataclass(frozen=True, kw_only=True)
class Board:
    """One page of the queue, and how long it is altogether. `after` is the place of the last entry, None at the end."""

    entries: list[Entry]
    total: int
    held: list[Entry]
    after: int | None


def board(user: Any, *, after: int = 0, size: int = 100) -> Board:
    """The queue from place `after` + 1 on, as `user` may see it; held jobs apart."""
    order = queue_order()
    wanted = order[after : after + size]
    held_ids = list(Job.objects.filter(state=JobState.HELD).order_by(*ORDER).values_list("id", flat=True)[:size])
    jobs = in_full(Job.objects.filter(pk__in=[*wanted, *held_ids])).in_bulk()
    seen = set(visible_jobs(user).filter(pk__in=jobs).values_list("pk", flat=True))

    def entry(pk: int, place: int | None) -> Entry:
        return Entry(job=jobs[pk], place=place, visible=pk in seen, mine=jobs[pk].owner_id == user.pk)

    end = after + size
    return Board(
        entries=[entry(pk, place) for place, pk in enumerate(wanted, after + 1) if pk in jobs],
        total=len(order), held=[entry(pk, None) for pk in held_ids if pk in jobs],
        after=end if end < len(order) else None,
    )  # fmt: skip


def queue_order() -> list[int]:
    """The ids of all queued jobs, first to start first."""
    return list(Job.objects.filter(state=JobState.QUEUED).order_by(*ORDER).values_list("id", flat=True))


def places(ids: Iterable[int]) -> tuple[dict[int, int], int]:
    """The places of these jobs in the queue (from 1; a job that is not queued has none), and the queue's length."""
    wanted, order = set(ids), queue_order()
    return {pk: place for place, pk in enumerate(order, 1) if pk in wanted}, len(order)


def in_full(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The jobs with all that a row shows: owner, team, and their runs with node and who wished for what."""
    runs = Run.objects.select_related("node", "wish_by")
    return jobs.select_related("owner", "team").prefetch_related(Prefetch("runs", queryset=runs))
