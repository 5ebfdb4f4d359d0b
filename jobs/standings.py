"""Who has had their part of the GPUs: the fair-share tree as the scheduler sees it now, for people."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs import snapshot, usage
from jobs.models import Cluster, Membership, Team
from jobs.policy.fairtree import Standing, Tree, tree_of
from jobs.quotas import Limits, Usage
from jobs.wording import shares as words
from portal.models import User


@dataclass(frozen=True, kw_only=True)
class Row:
    """A team or a member of one. `sentences`: what its standing does to its jobs, and a soft mark that is passed."""

    name: str
    standing: Standing
    of: int  # among how many it has its rank
    sentences: tuple[str, ...]
    mine: bool
    members: tuple["Row", ...] = ()
    hidden: int = 0  # members that the reader does not see, being in another team


@dataclass(frozen=True, kw_only=True)
class Standings:
    rows: tuple[Row, ...]
    half_life_days: int
    busy: bool  # whether anybody has used a GPU, or may
    weights: str  # what counts otherwise than an hour of a GPU as one; "" where nothing does


def standings(user: Any, now: datetime) -> Standings:
    """Every team by rank; the members only of the reader's own teams, and for staff of all."""
    cluster = Cluster.get()
    picture = snapshot.holdings(now, cluster=cluster)
    tree = tree_of(picture)
    teams = tree.teams()
    names = {team.pk: team.name for team in Team.objects.all()}
    own = set(Membership.objects.filter(user=user).values_list("team_id", flat=True))
    marks = {pk: _beyond(limits, picture.team_usage.get(pk)) for pk, limits in picture.team_limits.items()}
    seen = set(teams) if user.is_staff else own
    people = _people({who for team, who in picture.member_shares if team in seen})
    passed = _passed(people, now)
    rows = [
        Row(
            name=names[pk], standing=found, of=len(teams), mine=pk in own,
            sentences=(words.team_sentence(found, teams.values()), *marks[pk]),
            members=_members(tree, pk, people, passed, user) if pk in seen else (),
            hidden=0 if pk in seen else len(tree.members(pk)),
        )
        for pk, found in sorted(teams.items(), key=lambda item: (item[1].rank, names[item[0]]))
    ]  # fmt: skip
    busy = any(found.used or found.promised for found in teams.values())
    return Standings(
        rows=tuple(rows), half_life_days=cluster.half_life_days, busy=busy, weights=words.weights(cluster.weights)
    )


def _members(
    tree: Tree, team: int, people: dict[int, User], passed: dict[int, tuple[str, ...]], reader: Any
) -> tuple[Row, ...]:
    found = tree.members(team)
    return tuple(
        Row(
            name=people[pk].get_username(), standing=standing, of=len(found), mine=pk == reader.pk,
            sentences=(words.member_sentence(standing, found.values()), *passed.get(pk, ())),
        )
        for pk, standing in sorted(found.items(), key=lambda item: (item[1].rank, people[item[0]].get_username()))
    )  # fmt: skip


def _people(ids: set[int]) -> dict[int, User]:
    return {person.pk: person for person in User.objects.filter(pk__in=ids).only("username")}


def _passed(people: dict[int, User], now: datetime) -> dict[int, tuple[str, ...]]:
    """Who is beyond a soft mark of their own."""
    limits = usage.user_limits(people.values())
    limits = {pk: limit for pk, limit in limits.items() if limit.gpu_seconds_soft is not None}
    used = usage.usages("user", limits, now) if limits else {}
    return {pk: _beyond(limit, used[pk]) for pk, limit in limits.items()}


def _beyond(limits: Limits, used: Usage | None) -> tuple[str, ...]:
    mark = limits.gpu_seconds_soft
    if mark is None or used is None or used.gpu_seconds < mark:
        return ()
    return (words.beyond_soft_mark(mark // 3600, limits.window_days),)
