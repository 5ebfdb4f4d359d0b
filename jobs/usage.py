"""Who holds and has used what, summed from allocations and jobs each time: there is no counter to drift."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from django.db.models import Count, Q

from jobs.models import Allocation, Job, Quota
from jobs.quotas import BUDGET_DAYS, Limits, Scope, Usage
from jobs.states import JobState

QUOTA_FIELDS = (
    "gpus", "guaranteed_gpus", "millicpus", "memory_mib", "running_jobs", "queued_jobs", "interactive_jobs", "job_gpus",
    "limit_seconds", "priority",
)  # fmt: skip


def user_limits(users: Iterable[Any]) -> dict[int, Limits]:
    """The limits of each of these users: their own, else field by field those of every user."""
    people = {user.pk: user for user in users}
    rows = {q.user_id: q for q in Quota.objects.filter(Q(user__in=people) | Q(user=None, team=None))}
    return {pk: _limits("user", user.get_username(), [rows.get(pk), rows.get(None)]) for pk, user in people.items()}


def team_limits(teams: Iterable[Any]) -> dict[int, Limits]:
    """The limits of each of these teams."""
    named = {team.pk: team for team in teams}
    rows = {q.team_id: q for q in Quota.objects.filter(team__in=named)}
    return {pk: _limits("team", team.name, [rows.get(pk)]) for pk, team in named.items()}


def _limits(scope: Scope, name: str, rows: list[Quota | None]) -> Limits:
    """The first row that sets a field wins."""

    def first(field: str) -> int | None:
        values = (getattr(row, field) for row in rows if row is not None)
        return next((value for value in values if value is not None), None)

    by_model: dict[str, int] = next((row.gpus_by_model for row in rows if row is not None and row.gpus_by_model), {})
    vector: dict[str, Any] = {field: first(field) for field in QUOTA_FIELDS}
    return Limits(
        scope=scope, name=name, gpus_by_model=by_model, window_days=first("window_days") or BUDGET_DAYS,
        gpu_seconds=_seconds(first("gpu_hours")), gpu_seconds_soft=_seconds(first("gpu_hours_soft")), **vector,
    )  # fmt: skip


def _seconds(hours: int | None) -> int | None:
    return None if hours is None else hours * 3600


class Holding(NamedTuple):
    """What one live run holds, where and for whom (primary keys)."""

    node: int
    user: int
    team: int
    gpu_milli: int
    millicpus: int
    memory_mib: int


def holdings(**of: Any) -> list[Holding]:
    """What is held now, by everybody or by those that the filter leaves."""
    rows = Allocation.objects.filter(released_at=None, **of)
    return [Holding(*row) for row in rows.values_list("node_id", "user_id", "team_id", *Holding._fields[3:])]


def usages(field: str, ids: Iterable[int], now: datetime, *, budgets: Iterable[int] = ()) -> dict[int, Usage]:
    """The usage of each of these users (field="user") or teams ("team").

    GPU-seconds are only summed for `budgets`, those who have a budget: that sum reads 30 days of history.
    """
    wanted = set(ids)
    queued = _queued("owner" if field == "user" else "team", wanted)
    return in_use(field, wanted, holdings(**{f"{field}__in": wanted}), now, budgets=budgets, queued=queued)


def in_use(
    field: str, ids: Iterable[int], held: Iterable[Holding], now: datetime, *, budgets: Iterable[int] = (),
    queued: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, Usage]:  # fmt: skip
    """The same from holdings already read; waiting jobs count only where `queued` tells them."""
    wanted = set(ids)
    by: dict[int, list[Holding]] = defaultdict(list)
    for holding in held:
        by[getattr(holding, field)].append(holding)
    seconds = gpu_seconds(field, wanted & set(budgets), now)
    return {pk: _usage(by[pk], queued.get(pk, 0), seconds.get(pk, 0)) for pk in wanted}


def _usage(held: list[Holding], queued: int, seconds: int) -> Usage:
    return Usage(
        gpu_milli=sum(h.gpu_milli for h in held), millicpus=sum(h.millicpus for h in held),
        memory_mib=sum(h.memory_mib for h in held), running_jobs=len(held), queued_jobs=queued, gpu_seconds=seconds,
    )  # fmt: skip


def _queued(field: str, ids: set[int]) -> dict[int, int]:
    """How many jobs wait, held ones too."""
    rows = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD], **{f"{field}__in": ids})
    return dict(rows.order_by().values_list(field).annotate(n=Count("pk")))


def gpu_seconds(field: str, ids: set[int], now: datetime) -> dict[int, int]:
    """GPU-seconds used in the last 30 days, and what live runs may still use: GPUs × the rest of their limits."""
    if not ids:
        return {}
    begin = now - timedelta(days=BUDGET_DAYS)
    rows = Allocation.objects.filter(Q(released_at=None) | Q(released_at__gt=begin), gpus__gt=0)
    rows = rows.filter(**{f"{field}__in": ids})
    total: dict[int, float] = defaultdict(float)
    columns = (f"{field}_id", "gpus", "created_at", "released_at", "run__deadline", "run__job__limit_seconds")
    for pk, gpus, start, end, deadline, limit in rows.values_list(*columns):
        if end is None and limit is not None:
            end = deadline or now + timedelta(seconds=limit)
        total[pk] += gpus * ((end or now) - max(start, begin)).total_seconds()
    return {pk: round(seconds) for pk, seconds in total.items()}
