"""GPU-seconds over time, from allocations: closed days are rolled up in `UsageDay`, the rest is summed each time.

Days are UTC's. A day's rows are written once, after it is over, all of them in one transaction and in the order of
days: what is at or before the newest row is rolled up. They can be thrown away and made again at any time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain, groupby
from math import log
from operator import itemgetter
from time import monotonic
from typing import NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Min, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from jobs.models import Allocation, AllocationSlot, Cluster, UsageDay
from jobs.policy.weights import EQUAL, Weights
from jobs.quotas import WHOLE

DAY = timedelta(days=1)
SETTLED = timedelta(hours=1)  # after midnight: by then every allocation of the day is in the database
SHORTEST_HALF_LIFE = 1 / 24  # days
HALF_LIVES = 10  # after so many, use counts a thousandth and is not read any more


class Held(NamedTuple):
    """GPUs, in thousandths, that one run held from `start` to `end`."""

    user: int
    team: int
    milli: float
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
    weights = Cluster.get().weights
    sums = _daily(_held(start, end))
    charged = _daily(_held(start, end, weights)) if weights else {}
    rows = [UsageDay(day=day, user_id=user, team_id=team, gpu_seconds=sums.get((day, user, team), 0.0),
                     charged_seconds=charged.get((day, user, team)))
            for day, user, team in sorted(sums.keys() | charged.keys())]  # fmt: skip
    with transaction.atomic():
        UsageDay.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)
    return len(rows)


def _daily(found: Iterable[Held]) -> dict[tuple[date, int, int], float]:
    """GPU-seconds by day, user and team."""
    sums: dict[tuple[date, int, int], float] = defaultdict(float)
    for held in found:
        for piece in _by_day(held):
            sums[piece.start.date(), piece.user, piece.team] += piece.seconds
    return sums


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


def _held(start: datetime, end: datetime, weights: Weights = EQUAL, *, of: Q | None = None) -> Iterator[Held]:
    """What was held between these times, cut to them, as it counts; what is held still, to `end`."""
    rows = _overlapping(start, end).filter(of or Q()) if not weights else _weighed(start, end)
    columns = ("user_id", "team_id", "gpu_milli", "created_at", "released_at")
    for user, team, milli, begun, ended, *more in rows.values_list(*columns, *(_WEIGHED if weights else ())).iterator():
        counts = weights.milli(milli, **dict(zip(_WEIGHED, more, strict=True))) if weights else milli
        yield Held(user, team, counts, max(begun, start), min(ended or end, end))


_WEIGHED = ("model", "millicpus", "memory_mib")


def _weighed(start: datetime, end: datetime) -> QuerySet[Allocation]:
    """Those without GPUs too, each with the model of its first GPU."""
    slots = AllocationSlot.objects.filter(allocation=OuterRef("pk")).order_by("pk").values("gpu__model")
    return _overlapping(start, end, least=0).annotate(model=Coalesce(Subquery(slots[:1]), Value("")))


def _overlapping(start: datetime, end: datetime, least: int = 1) -> QuerySet[Allocation]:
    still = Q(released_at=None) | Q(released_at__gt=start)
    return Allocation.objects.filter(still, gpu_milli__gte=least, created_at__lt=end)


def in_window(field: str, windows: Mapping[int, int], now: datetime) -> dict[int, int]:
    """GPU-seconds of users (field="user") or teams in the last so many days, and what live runs may still use.

    A live run may use its GPUs for the rest of its limit.
    """
    rolled = rolled_until() if windows else None
    total: dict[int, float] = defaultdict(float)
    for days, ids in _by_length(windows):
        for pk, seconds in _since(field, ids, now - days * DAY, now, rolled):
            total[pk] += seconds
    for pk, seconds in _promised(field, set(windows), now):
        total[pk] += seconds
    return {pk: round(total[pk]) for pk in windows}


def leaving(field: str, windows: Mapping[int, int], now: datetime) -> dict[int, tuple[tuple[datetime, int], ...]]:
    """When how many of the GPU-seconds used in the window have left it, oldest first: those of a day all at its end."""
    rolled = rolled_until() if windows else None
    found: dict[int, dict[datetime, float]] = {pk: defaultdict(float) for pk in windows}
    for days, ids in _by_length(windows):
        for pk, day, seconds in _daily_since(field, ids, now - days * DAY, now, rolled):
            found[pk][midnight(day) + (days + 1) * DAY] += seconds
    return {pk: tuple((at, round(seconds)) for at, seconds in sorted(of.items())) for pk, of in found.items()}


def _by_length(windows: Mapping[int, int]) -> Iterable[tuple[int, set[int]]]:
    """Those with windows of so many days."""
    found: dict[int, set[int]] = defaultdict(set)
    for pk, days in windows.items():
        found[days].add(pk)
    return found.items()


def _daily_since(
    field: str, ids: Collection[int], start: datetime, now: datetime, rolled: datetime | None
) -> Iterator[tuple[int, date, float]]:
    """As `_since`, by day."""
    theirs, (parts, first) = Q(**{f"{field}__in": ids}), _apart(start, now, rolled)
    for held in chain.from_iterable(_held(*part, of=theirs) for part in parts):
        for piece in _by_day(held):
            yield getattr(piece, field), piece.start.date(), piece.seconds
    if first is not None:
        rows = UsageDay.objects.filter(theirs, day__gte=first)
        yield from rows.values_list(f"{field}_id", "day", "gpu_seconds").iterator()


def _apart(
    start: datetime, now: datetime, rolled: datetime | None
) -> tuple[list[tuple[datetime, datetime]], date | None]:
    """What no row tells of a time, and from which day on rows tell the rest; None: there are none."""
    whole = midnight(start.astimezone(UTC).date()) + DAY
    if rolled is None or rolled <= whole:
        return [(start, now)], None
    return [(start, whole), (rolled, now)], whole.date()


def _since(
    field: str, ids: Collection[int], start: datetime, now: datetime, rolled: datetime | None
) -> Iterator[tuple[int, float]]:
    """Piece by piece: the beginning of the first day, whole days from their rows, and what is not rolled up yet."""
    parts, first = _apart(start, now, rolled)
    for part in parts:
        yield from _sums(field, ids, *part)
    if first is not None:
        rows = UsageDay.objects.filter(day__gte=first, **{f"{field}__in": ids})
        yield from rows.values_list(f"{field}_id").annotate(n=Sum("gpu_seconds"))


def _sums(field: str, ids: Collection[int], start: datetime, end: datetime) -> Iterator[tuple[int, float]]:
    return ((getattr(held, field), held.seconds) for held in _held(start, end, of=Q(**{f"{field}__in": ids})))


def _promised(field: str, ids: Collection[int], now: datetime) -> Iterator[tuple[int, float]]:
    if not ids:
        return
    rows = Allocation.objects.filter(released_at=None, gpu_milli__gt=0, **{f"{field}__in": ids})
    columns = (f"{field}_id", "gpu_milli", "run__deadline", Coalesce("run__job__limit_seconds", 0))
    for pk, milli, deadline, limit in rows.values_list(*columns):
        ends = deadline or now + timedelta(seconds=limit)
        yield pk, milli / WHOLE * max((ends - now).total_seconds(), 0.0)


def decayed(now: datetime, half_life_days: float, weights: Weights = EQUAL) -> dict[tuple[int, int], float]:
    """GPU-seconds as they count by (team, user), each weighed by ½ ^ (age / half-life)."""
    half_life = max(half_life_days, SHORTEST_HALF_LIFE) * DAY
    oldest, rolled = now - HALF_LIVES * half_life, rolled_until()
    total = _closed_days(now, half_life, rolled) if rolled is not None and rolled > oldest else defaultdict(float)
    for held in _held(oldest if rolled is None else max(rolled, oldest), now, weights):
        total[held.team, held.user] += held.seconds * mean_weight(held.start, held.end, now, half_life)
    return dict(total)


class _Days(NamedTuple):
    """What closed days counted at a time, and when this process summed them, by the monotonic clock."""

    of: tuple[timedelta, datetime]
    at: datetime
    read_at: float
    total: dict[tuple[int, int], float]


_kept: list[_Days] = []  # one at most: what was summed last


def _closed_days(now: datetime, half_life: timedelta, rolled: datetime) -> dict[tuple[int, int], float]:
    """What closed days count by now. A year of them is not read each time: all fade by the same factor."""
    last = _kept[0] if _kept else None
    if last is None or last.of != (half_life, rolled) or monotonic() - last.read_at >= settings.PAST_REREAD:
        last = _Days((half_life, rolled), now, monotonic(), _sum_days(now, half_life))
        _kept[:] = [last]
    faded = 0.5 ** ((now - last.at) / half_life)
    return defaultdict(float, {who: seconds * faded for who, seconds in last.total.items()})


def _sum_days(now: datetime, half_life: timedelta) -> dict[tuple[int, int], float]:
    total: dict[tuple[int, int], float] = defaultdict(float)
    for day, rows in groupby(_days_since(now - HALF_LIVES * half_life), key=itemgetter(0)):
        weight = mean_weight(midnight(day), midnight(day) + DAY, now, half_life)
        for _day, team, user, seconds in rows:
            total[team, user] += seconds * weight
    return total


def _days_since(oldest: datetime) -> Iterable[tuple[date, int, int, float]]:
    rows = UsageDay.objects.filter(day__gte=oldest.astimezone(UTC).date()).order_by("day")
    charged = Coalesce("charged_seconds", "gpu_seconds")
    return rows.values_list("day", "team_id", "user_id", charged).iterator()


def mean_weight(start: datetime, end: datetime, now: datetime, half_life: timedelta) -> float:
    """The mean of ½ ^ (age / half-life) between two times that are past."""
    young, old = (now - end) / half_life, (now - start) / half_life
    if old <= young:
        return float(0.5**young)
    return float((0.5**young - 0.5**old) / ((old - young) * log(2)))
