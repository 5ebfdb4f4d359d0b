"""GPU-seconds over time, from allocations: closed days are rolled up in `UsageDay`, the rest is summed each time.

Days are UTC's. A day's rows are written once, after it is over, all of them in one transaction and in the order of
days: what is at or before the newest row is rolled up. They can be thrown away and made again at any time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from math import log
from operator import itemgetter
from typing import NamedTuple

from django.db import transaction
from django.db.models import Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from jobs.models import Allocation, UsageDay
from jobs.quotas import WHOLE

DAY = timedelta(days=1)
SETTLED = timedelta(hours=1)  # after midnight: by then every allocation of the day is in the database
SHORTEST_HALF_LIFE = 1 / 24  # days
HALF_LIVES = 10  # after so many, use counts a thousandth and is not read any more


class Held(NamedTuple):
    """GPUs, in thousandths, that one run held from `start` to `end`."""

    user: int
    team: int
    milli: int
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """GPU-seconds."""
        return self.milli / WHOLE * max((self.end - self.start).total_seconds(), 0.0)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def rolled_until() -> datetime | None:
    """The end of the newest day that is rolled up; None: none is."""
    newest: date | None = UsageDay.objects.aggregate(day=Max("day"))["day"]
    return None if newest is None else midnight(newest) + DAY


# --- rolling up ---


def roll_up(now: datetime) -> int:
    """Write the rows of all days that have closed since the last time. Two at once write the same."""
    start, end = rolled_until() or _first(), midnight((now - SETTLED).astimezone(UTC).date())
    if start is None or start >= end:
        return 0
    sums: dict[tuple[date, int, int], float] = defaultdict(float)
    for held in _held(start, end):
        for piece in _by_day(held):
            sums[piece.start.date(), piece.user, piece.team] += piece.seconds
    rows = [UsageDay(day=day, user_id=user, team_id=team, gpu_seconds=sums[day, user, team])
            for day, user, team in sorted(sums)]  # fmt: skip
    with transaction.atomic():
        UsageDay.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)
    return len(rows)


def rebuild(now: datetime) -> int:
    """Throw all rows away and write them again."""
    with transaction.atomic():
        UsageDay.objects.all().delete()
        return roll_up(now)


def _first() -> datetime | None:
    found: datetime | None = Allocation.objects.filter(gpu_milli__gt=0).aggregate(at=Min("created_at"))["at"]
    return None if found is None else midnight(found.astimezone(UTC).date())


def _by_day(held: Held) -> Iterator[Held]:
    start = held.start.astimezone(UTC)
    while start < held.end:
        end = min(midnight(start.date()) + DAY, held.end)
        yield held._replace(start=start, end=end)
        start = end


# --- reading ---


def _held(start: datetime, end: datetime, **of: object) -> Iterator[Held]:
    """What was held between these times, cut to them; what is held still, to `end`."""
    rows = _overlapping(start, end).filter(**of)
    for user, team, milli, begun, ended in rows.values_list(
        "user_id", "team_id", "gpu_milli", "created_at", "released_at"
    ).iterator():
        yield Held(user, team, milli, max(begun, start), min(ended or end, end))


def _overlapping(start: datetime, end: datetime) -> QuerySet[Allocation]:
    still = Q(released_at=None) | Q(released_at__gt=start)
    return Allocation.objects.filter(still, gpu_milli__gt=0, created_at__lt=end)


def in_window(field: str, windows: Mapping[int, int], now: datetime) -> dict[int, int]:
    """GPU-seconds of users (field="user") or teams in the last so many days, and what live runs may still use.

    A live run may use its GPUs for the rest of its limit.
    """
    by_days: dict[int, set[int]] = defaultdict(set)
    for pk, days in windows.items():
        by_days[days].add(pk)
    rolled = rolled_until() if windows else None
    total: dict[int, float] = defaultdict(float)
    for days, ids in by_days.items():
        for pk, seconds in _since(field, ids, now - days * DAY, now, rolled):
            total[pk] += seconds
    for pk, seconds in _promised(field, set(windows), now):
        total[pk] += seconds
    return {pk: round(total[pk]) for pk in windows}


def _since(
    field: str, ids: Collection[int], start: datetime, now: datetime, rolled: datetime | None
) -> Iterator[tuple[int, float]]:
    """Piece by piece: the beginning of the first day, whole days from their rows, and what is not rolled up yet."""
    whole = midnight(start.astimezone(UTC).date()) + DAY
    if rolled is None or rolled <= whole:
        yield from _sums(field, ids, start, now)
        return
    yield from _sums(field, ids, start, whole)
    yield from _sums(field, ids, rolled, now)
    rows = UsageDay.objects.filter(day__gte=whole.date(), **{f"{field}__in": ids})
    yield from rows.values_list(f"{field}_id").annotate(n=Sum("gpu_seconds"))


def _sums(field: str, ids: Collection[int], start: datetime, end: datetime) -> Iterator[tuple[int, float]]:
    return ((getattr(held, field), held.seconds) for held in _held(start, end, **{f"{field}__in": ids}))


def _promised(field: str, ids: Collection[int], now: datetime) -> Iterator[tuple[int, float]]:
    if not ids:
        return
    rows = Allocation.objects.filter(released_at=None, gpu_milli__gt=0, **{f"{field}__in": ids})
    columns = (f"{field}_id", "gpu_milli", "run__deadline", Coalesce("run__job__limit_seconds", 0))
    for pk, milli, deadline, limit in rows.values_list(*columns):
        ends = deadline or now + timedelta(seconds=limit)
        yield pk, milli / WHOLE * max((ends - now).total_seconds(), 0.0)


def decayed(now: datetime, half_life_days: float) -> dict[tuple[int, int], float]:
    """GPU-seconds by (team, user), each weighed by ½ ^ (age / half-life)."""
    half_life = max(half_life_days, SHORTEST_HALF_LIFE) * DAY
    oldest, rolled = now - HALF_LIVES * half_life, rolled_until()
    total: dict[tuple[int, int], float] = defaultdict(float)
    if rolled is not None and rolled > oldest:
        for day, rows in groupby(_days_since(oldest), key=itemgetter(0)):
            weight = mean_weight(midnight(day), midnight(day) + DAY, now, half_life)
            for _day, team, user, seconds in rows:
                total[team, user] += seconds * weight
    for held in _held(oldest if rolled is None else max(rolled, oldest), now):
        total[held.team, held.user] += held.seconds * mean_weight(held.start, held.end, now, half_life)
    return dict(total)


def _days_since(oldest: datetime) -> Iterable[tuple[date, int, int, float]]:
    rows = UsageDay.objects.filter(day__gte=oldest.astimezone(UTC).date()).order_by("day")
    return rows.values_list("day", "team_id", "user_id", "gpu_seconds").iterator()


def mean_weight(start: datetime, end: datetime, now: datetime, half_life: timedelta) -> float:
    """The mean of ½ ^ (age / half-life) between two times that are past."""
    young, old = (now - end) / half_life, (now - start) / half_life
    if old <= young:
        return float(0.5**young)
    return float((0.5**young - 0.5**old) / ((old - young) * log(2)))
