"""Who holds and has used what, summed from allocations and jobs each time: there is no counter to drift."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from django.db.models import Count, Q

from jobs import gputime
from jobs.models import Allocation, AllocationSlot, Job, Membership, Quota, Team
from jobs.policy import Running, Share
from jobs.policy.weights import EQUAL, Weights
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


def limits_of(owner: Any, team: Any) -> tuple[Limits, Limits]:
    """The limits of a job's owner and of its team, in one query."""
    rows = Quota.objects.filter(Q(user=owner) | Q(team=team) | Q(user=None, team=None))
    found = {(row.user_id, row.team_id): row for row in rows}
    own, everybody = found.get((owner.pk, None)), found.get((None, None))
    theirs = _limits("team", team.name, [found.get((None, team.pk))])
    return _limits("user", owner.get_username(), [own, everybody]), theirs


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


Level = tuple[Limits, Usage]


class Holding(NamedTuple):
    """What one live run holds, and for whom (primary keys)."""

    user: int
    team: int
    gpu_milli: int
    milli_by_model: Mapping[str, int]
    millicpus: int
    memory_mib: int
    interactive: bool


def holdings(of: Q) -> list[Holding]:
    """What is held now by those that the filter leaves."""
    live = Allocation.objects.filter(of, released_at=None)
    slots = AllocationSlot.objects.filter(allocation__in=live).order_by().distinct()
    models: dict[int, list[str]] = defaultdict(list)
    for pk, _gpu, model in slots.values_list("allocation_id", "gpu_id", "gpu__model"):
        models[pk].append(model)
    columns = ("pk", "user_id", "team_id", "gpu_milli", "millicpus", "memory_mib", "run__job__interactive")
    return [
        Holding(user, team, milli, by_model(milli, models[pk]), cpus, memory, interactive)
        for pk, user, team, milli, cpus, memory, interactive in live.values_list(*columns)
    ]


def of_running(running: Iterable[Running], models: Mapping[str, str]) -> list[Holding]:
    """The same from the policy's picture; `models` by GPU UUID."""
    return [
        Holding(
            run.user, run.team, run.milli, by_model(run.milli, [models.get(uuid, "") for uuid in run.slots]),
            run.millicpus, run.memory_mib, run.interactive,
        )
        for run in running
    ]  # fmt: skip


def by_model(milli: int, models: Sequence[str]) -> dict[str, int]:
    """Thousandths of GPUs by model, from the model of each GPU that has a part in them."""
    return {model: milli * count // len(models) for model, count in Counter(models).items()}


def usages(
    field: str, limits: Mapping[int, Limits], now: datetime, held: Iterable[Holding] | None = None
) -> dict[int, Usage]:
    """The usage of each of these users (field="user") or teams ("team"), whose limits tell of which time.

    GPU-seconds are only summed for those who have a budget: that sum reads history. `held`: what these hold, and maybe
    others, for those who have read it.
    """
    queued = _queued("owner" if field == "user" else "team", set(limits))
    held = holdings(Q(**{f"{field}__in": set(limits)})) if held is None else held
    return in_use(field, limits, held, now, queued=queued)


def levels(owner: Any, team: Any, now: datetime, *, queued: bool = False) -> tuple[Level, Level]:
    """Limits and usage of a job's owner and of its team; jobs that wait are only counted when asked for."""
    return levels_under(limits_of(owner, team), owner, team, now, queued=queued)


def levels_under(
    limits: tuple[Limits, Limits], owner: Any, team: Any, now: datetime, *, queued: bool = False
) -> tuple[Level, Level]:
    """The same under limits already read."""
    held = holdings(Q(user=owner) | Q(team=team))
    of_user = in_use("user", {owner.pk: limits[0]}, held, now, queued=_queued("owner", {owner.pk}) if queued else {})
    of_team = in_use("team", {team.pk: limits[1]}, held, now, queued=_queued("team", {team.pk}) if queued else {})
    return (limits[0], of_user[owner.pk]), (limits[1], of_team[team.pk])


def in_use(
    field: str, limits: Mapping[int, Limits], held: Iterable[Holding], now: datetime, *,
    queued: Mapping[int, int] = MappingProxyType({}), returns: bool = False,
) -> dict[int, Usage]:  # fmt: skip
    """The same from holdings already read; waiting jobs count only where `queued` tells them.

    With `returns`, also when what was used of budgets is there again.
    """
    by: dict[int, list[Holding]] = defaultdict(list)
    for holding in held:
        by[getattr(holding, field)].append(holding)
    windows = {pk: limit.window_days for pk, limit in limits.items() if limit.has_budget}
    seconds = gputime.in_window(field, windows, now)
    hard = {pk: days for pk, days in windows.items() if returns and limits[pk].gpu_seconds is not None}
    back = gputime.leaving(field, hard, now)
    return {pk: _usage(by[pk], queued.get(pk, 0), seconds.get(pk, 0), back.get(pk, ())) for pk in limits}


def _usage(held: list[Holding], queued: int, seconds: int, back: tuple[tuple[datetime, int], ...]) -> Usage:
    models: Counter[str] = Counter()
    for holding in held:
        models.update(holding.milli_by_model)
    return Usage(
        gpu_milli=sum(h.gpu_milli for h in held), milli_by_model=dict(models), millicpus=sum(h.millicpus for h in held),
        memory_mib=sum(h.memory_mib for h in held), running_jobs=len(held), queued_jobs=queued,
        interactive_jobs=sum(h.interactive for h in held), gpu_seconds=seconds, returns=back,
    )  # fmt: skip


def _queued(field: str, ids: set[int]) -> dict[int, int]:
    """How many jobs wait, held ones too."""
    rows = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD], **{f"{field}__in": ids})
    return dict(rows.order_by().values_list(field).annotate(n=Count("pk")))


def shares(
    teams: Iterable[Team], now: datetime, half_life_days: float, weights: Weights = EQUAL
) -> tuple[dict[int, Share], dict[tuple[int, int], Share]]:  # fmt: skip
    """The fair-share tree's teams and, by (team, user), their members, with what they used.

    Who used GPUs and has left the team has no share in it any more, but the team has used them.
    """
    used = gputime.decayed(now, half_life_days, weights)
    of_team: dict[int, float] = defaultdict(float)
    for (team, _user), seconds in used.items():
        of_team[team] += seconds
    members = {(team, user): shares for team, user, shares in Membership.objects.values_list("team", "user", "shares")}
    return (
        {team.pk: Share(shares=team.shares, used=of_team[team.pk]) for team in teams},
        {who: Share(shares=members.get(who, 0), used=used.get(who, 0.0)) for who in members.keys() | used.keys()},
    )
