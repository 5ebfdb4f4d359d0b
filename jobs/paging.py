"""Lists of jobs: what was asked for in the address, and pages by key, so that page 1,000 costs what page 1 does."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db import connections
from django.db.models import BooleanField, F, Func, OrderBy, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext_lazy as _

from jobs import search
from jobs.access import visible_parts
from jobs.models import Job
from jobs.plain import is_number, storable
from jobs.states import LIVE, WAITING, EndReason, JobState

PAGE = 50
NEAR, FAR = 2000, 20_000  # rows
NEAR_TEXT = 500  # where a text is looked for, which an index finds wherever it is
# Keys must be columns that are never null in what is listed; the id comes last and makes them unique.
SORTS: dict[str, tuple[str, ...]] = {
    "new": ("-id",),
    "old": ("id",),
    "name": ("name", "id"),
    "gpus": ("-gpus", "-id"),
    "ended": ("-ended_at", "-id"),
}
BY_STATE = frozenset({"new", "old"})  # what the indexes of states have, of all jobs, an owner's and a team's
GROUPS: dict[str, tuple[Any, frozenset[JobState]]] = {
    "waiting": (_("waiting"), WAITING),
    "active": (_("running"), LIVE),
    "succeeded": (_("succeeded"), frozenset({JobState.SUCCEEDED})),
    "failed": (_("failed"), frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.LOST})),
    "cancelled": (_("cancelled"), frozenset({JobState.CANCELLED})),
}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What a list was asked for. Nonsense in the address is left out, never an error."""

    whose: str = "mine"  # mine, all, or a team's number
    groups: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()  # other than by groups; empty: any
    reason: str = ""
    q: str = ""
    since: datetime | None = None
    until: datetime | None = None
    sort: str = "new"
    after: tuple[Any, ...] = ()

    @property
    def narrows(self) -> bool:
        """Whether anything but whose jobs they are is asked for."""
        return bool(self.sifts or self.since or self.until)

    @property
    def sifts(self) -> bool:
        """Whether rows that no order brings together are asked for."""
        return bool(self.groups or self.states or self.q or self.reason)

    @property
    def one_by_one(self) -> list[str]:
        """The states that are asked for and nothing else, in an order that an index has for each; empty: no such."""
        if self.q or self.reason or self.since or self.until or self.whose.isdecimal() or self.sort not in BY_STATE:
            return []
        grouped = frozenset().union(*(GROUPS[group][1] for group in self.groups))
        return sorted(grouped & self.states if grouped and self.states else grouped | self.states)

    def address(self, **changes: Any) -> str:
        """The query string of this list with `changes`, from its first page on."""
        asked = {
            "whose": self.whose, "state": list(self.groups), "reason": self.reason, "q": self.q,
            "since": self.since and f"{self.since:%Y-%m-%d}", "until": self.until and f"{self.until:%Y-%m-%d}",
            "sort": self.sort, **changes,
        }  # fmt: skip
        return "?" + urlencode({k: v for k, v in asked.items() if v}, doseq=True)


def read_filters(data: Any, *, sorts: tuple[str, ...], whose: str) -> Filters:
    """The filters in a request's GET; `sorts` are those offered, the first by default."""
    sort = data.get("sort") if data.get("sort") in sorts else sorts[0]
    asked_whose = data.get("whose", "")
    return Filters(
        whose=asked_whose if asked_whose in ("mine", "all") or is_number(asked_whose) else whose,
        groups=tuple(g for g in GROUPS if g in data.getlist("state")),
        reason=data.get("reason") if data.get("reason") in set(EndReason) else "",
        q=data.get("q", "").replace("\0", "").strip()[:200], since=_day(data.get("since", "")),
        until=_day(data.get("until", "")), sort=sort, after=_cursor(data.get("after", ""), SORTS[sort]),
    )  # fmt: skip


def _day(text: str) -> datetime | None:
    try:
        day = parse_date(text)
    except ValueError:
        return None
    if day is None or not 1970 <= day.year <= 2200:
        return None
    return timezone.make_aware(datetime(day.year, day.month, day.day))  # noqa: DTZ001


def _cursor(text: str, keys: tuple[str, ...]) -> tuple[Any, ...]:
    """The keys of the last row of the page before; empty for the first page and for nonsense."""
    try:
        values = json.loads(text)
        read = tuple(_key(value, key) for value, key in zip(values, keys, strict=True))
    except (ValueError, TypeError, RecursionError, OverflowError):
        return ()
    return read if all(value is not None for value in read) else ()


def _key(value: Any, key: str) -> Any:
    column = key.lstrip("-")
    if column == "ended_at":
        moment = parse_datetime(value)
        return moment.astimezone(UTC) if moment is not None and timezone.is_aware(moment) else None
    if column == "name":
        return storable(str(value))
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def narrow(jobs: QuerySet[Job], filters: Filters, user: Any) -> QuerySet[Job]:
    """The jobs that the filters leave, in their order."""
    return _narrow(jobs, filters, user, search.wanted(filters.q) if filters.q else None)


def _narrow(
    jobs: QuerySet[Job], filters: Filters, user: Any, text: search.Wanted | None, *, few: bool = False
) -> QuerySet[Job]:  # fmt: skip
    if filters.whose == "mine":
        jobs = jobs.filter(owner=user)
    elif filters.whose.isdecimal():
        jobs = jobs.filter(team=int(filters.whose))
    if filters.groups:
        jobs = jobs.filter(state__in=frozenset().union(*(GROUPS[g][1] for g in filters.groups)))
    if filters.states:
        jobs = jobs.filter(state__in=filters.states)
    if filters.reason:
        jobs = jobs.filter(end_reason=filters.reason)
    jobs = text.among(jobs, few=few) if text is not None else jobs
    return _by_time(jobs, filters).order_by(*SORTS[filters.sort])


def _by_time(jobs: QuerySet[Job], filters: Filters) -> QuerySet[Job]:
    if filters.since is not None:
        jobs = jobs.filter(ended_at__gte=filters.since)
    if filters.until is not None:
        jobs = jobs.filter(ended_at__lt=filters.until + timedelta(days=1))
    return jobs


class Part(NamedTuple):
    """Jobs of one owner or one team, or all, of the time that is asked for, and what the filters leave of them.

    `near` is that too, for who looks at few rows of `of`. `all`: of any time, and before the cursor too. `by_state`:
    `within` state by state, where an index has each in its order.
    """

    all: QuerySet[Job]
    of: QuerySet[Job]
    within: QuerySet[Job]
    near: QuerySet[Job]
    by_state: list[QuerySet[Job]]


class Parts(NamedTuple):
    """What a list shows, as parts that may overlap. `within` narrows any jobs as it did each part's `all`."""

    each: list[Part]
    within: Callable[[QuerySet[Job]], QuerySet[Job]]


def parts(filters: Filters, user: Any, **more: Any) -> Parts:
    """What the filters, and `more`, leave of the jobs that the user may see, after the cursor."""
    visible = [Job.objects.filter(owner=user)] if filters.whose == "mine" else visible_parts(user)
    past = _past(SORTS[filters.sort], filters.after) if filters.after else Q()
    text = search.wanted(filters.q) if filters.q else None

    def within(jobs: QuerySet[Job], *, few: bool = False) -> QuerySet[Job]:
        return _narrow(jobs.filter(past, **more), filters, user, text, few=few)

    def part(jobs: QuerySet[Job]) -> Part:
        of = _by_time(jobs.filter(past, **more), filters)
        states = [] if more else filters.one_by_one
        by_state = [of.filter(state=state).order_by(*SORTS[filters.sort]) for state in states]
        return Part(jobs, of, within(jobs), within(jobs, few=True), by_state)

    return Parts([part(jobs) for jobs in visible], within)


def page(
    found: Parts, filters: Filters, whole: Callable[[QuerySet[Job]], QuerySet[Job]], size: int = PAGE
) -> tuple[list[Job], str]:
    """One page of all these parts, and the cursor of the next, empty when this is the last.

    `whole` adds what the rows show. The ids are found alone first, part by part: each from an index, and narrow.
    """
    keys = SORTS[filters.sort]
    ids = _first(found, keys, filters, size + 1)
    rows = list(whole(Job.objects.filter(pk__in=ids)).order_by(*keys)[: size + 1]) if ids else []
    return rows[:size], _cursor_of(rows[size - 1], keys) if len(rows) > size else ""


def _first(found: Parts, keys: tuple[str, ...], filters: Filters, count: int) -> set[int]:
    """The ids of each part's first rows.

    Of each state that is asked for they come from an index, where it has them in this order. For the rest, no database
    can know whether what was asked for is near: to go through the order until enough is found may mean to go through
    all, and to find all first may mean to sort a million. So the next NEAR rows are gone through, or as
    many as should do by what these hold, and only where that is not enough, all that was asked for is found by other
    indexes and then sorted. The index of texts knows neither owners nor teams: it is asked once for all lacking parts.
    """
    if not filters.sifts:
        return {pk for part in found.each for pk in part.within.values_list("pk", flat=True)[:count]}
    if by_state := [jobs for part in found.each for jobs in part.by_state]:
        return set(_together([jobs.values_list("pk", flat=True)[:count] for jobs in by_state]))
    near = [_near(part, keys, count, NEAR_TEXT if filters.q else NEAR) for part in found.each]
    lacking = [part for part, ids in zip(found.each, near, strict=True) if len(ids) < count]
    if lacking and filters.q:
        wider = [found.within(reduce(or_, (part.all for part in lacking)))]
    else:
        wider = [part.within for part in lacking]
    far = (jobs.order_by(*map(_sorted, keys)).values_list("pk", flat=True)[:count] for jobs in wider)
    return set(chain(*near, *far))


def _together(lists: list[QuerySet[Job, int]]) -> Iterable[int]:
    """What is in any of these, each with an end of its own: asked for at once where the database can."""
    if len(lists) > 1 and connections[lists[0].db].features.supports_slicing_ordering_in_compound:
        return lists[0].union(*lists[1:], all=True)
    return chain(*lists)


def _near(part: Part, keys: tuple[str, ...], count: int, near: int) -> list[int]:
    """So many of the part's first rows, or fewer: then there may be others farther away."""
    found = _among(part, keys, count, near)
    enough = 2 * near * count // len(found) if found else FAR
    return _among(part, keys, count, enough) if len(found) < count and enough < FAR else found


def _among(part: Part, keys: tuple[str, ...], count: int, rows: int) -> list[int]:
    looked_at = part.of.order_by(*keys).values("pk")[:rows]
    return list(part.near.filter(_one_of(looked_at)).values_list("pk", flat=True)[:count])


def _one_of(looked_at: QuerySet[Job, Any]) -> Q | Func:
    """Whether a job is one of these. Where PostgreSQL could choose, it would rather read the table for a few thousand.

    To it, an array has a handful of members, whatever their number.
    """
    if connections[looked_at.db].vendor == "sqlite":
        return Q(pk__in=looked_at)
    array = {"template": "(%(expressions)s))", "arg_joiner": " = ANY(ARRAY"}
    return Func(F("pk"), Subquery(looked_at), **array, output_field=BooleanField())


def _sorted(key: str) -> OrderBy:
    """By this key, and by no index of it."""
    column = F(key.lstrip("-"))
    return Coalesce(column, column).desc() if key.startswith("-") else Coalesce(column, column).asc()


def _past(keys: tuple[str, ...], values: tuple[Any, ...]) -> Q:
    """Rows after these values in the order of these keys; the first key bounds them by itself, for the index."""
    first = keys[0].lstrip("-")
    condition = Q()
    for key, value in reversed(list(zip(keys, values, strict=True))):
        column = key.lstrip("-")
        beyond = Q(**{f"{column}__{'lt' if key.startswith('-') else 'gt'}": value})
        condition = beyond | (Q(**{column: value}) & condition) if condition else beyond
    bound = Q(**{f"{first}__{'lte' if keys[0].startswith('-') else 'gte'}": values[0]})
    return bound & condition if len(keys) > 1 else condition


def _cursor_of(job: Job, keys: tuple[str, ...]) -> str:
    values = (getattr(job, key.lstrip("-")) for key in keys)
    return json.dumps([v.isoformat() if isinstance(v, datetime) else v for v in values], separators=(",", ":"))


def searched(filters: Filters) -> int | None:
    """Among how many of the newest jobs a text was looked for; None: among all."""
    return search.NEWEST if filters.q and not search.is_whole(Job.objects.db, filters.q) else None


def chips(filters: Filters) -> list[dict[str, Any]]:
    """The state filters as links that each turn themselves on or off."""
    found = []
    for group, (label, _states) in GROUPS.items():
        on = group in filters.groups
        left = [g for g in GROUPS if (g in filters.groups) != (g == group)]
        found.append({"label": label, "on": on, "address": filters.address(state=left), "group": group})
    return found
