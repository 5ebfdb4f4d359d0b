"""How much of each host's GPUs was held, day by day: what months of the timeline are drawn from.

Days are UTC's and written once, after they are over, in order; they can be thrown away and made again at any time.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import NamedTuple

from django.db import transaction
from django.db.models import Max, Min, Q, QuerySet

from jobs.gputime import DAY, SETTLED, midnight
from jobs.models import Allocation, HostDay
from jobs.quotas import WHOLE

AT_ONCE = timedelta(days=31)  # rolled up in one transaction


class Hold(NamedTuple):
    """GPUs, in thousandths, of a host (primary key) that one run held from `start` to `end`."""

    node: int
    milli: int
    start: datetime
    end: datetime


def overlapping(start: datetime, end: datetime) -> QuerySet[Allocation]:
    """The allocations that were held at some time in [start, end), with GPUs or without, in no order."""
    still = Q(released_at=None) | Q(released_at__gt=start)
    found = Allocation.objects.filter(still, created_at__lt=end).order_by()
    rolled = rolled_until()
    if rolled is None:
        return found
    day = min(start.astimezone(UTC).date(), (rolled - DAY).date())
    told = list(HostDay.objects.filter(day=day).values_list("held_over", flat=True))
    over = [pks for pks in told if pks is not None]
    if len(over) < len(told):
        return found
    # Neither the times of starts nor those of ends bound a window in the midst of a year: this does.
    return found.filter(Q(created_at__gte=midnight(day), created_at__lt=end) | Q(pk__in=list(chain(*over))))


def held(start: datetime, end: datetime) -> Iterator[Hold]:
    """What was held between these times, cut to them; what is held still, to `end`."""
    rows = overlapping(start, end).filter(gpu_milli__gt=0)
    for node, milli, begun, ended in rows.values_list("node_id", "gpu_milli", "created_at", "released_at").iterator():
        yield Hold(node, milli, max(begun, start), min(ended or end, end))


def rolled_until() -> datetime | None:
    """The end of the newest day that is rolled up; None: none is."""
    newest: date | None = HostDay.objects.aggregate(day=Max("day"))["day"]
    return None if newest is None else midnight(newest) + DAY


def roll_up(now: datetime) -> int:
    """Write the rows of days that have closed since the last time, a month of them at most. Two write the same."""
    start, end = rolled_until() or _first(), midnight((now - SETTLED).astimezone(UTC).date())
    if start is None or start >= end:
        return 0
    end = min(end, start + AT_ONCE)
    rows = _days(start, end)
    with transaction.atomic():
        HostDay.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)
    return len(rows)


def _days(start: datetime, end: datetime) -> list[HostDay]:
    """The rows of all days between these midnights; a row of nothing for the last, lest all be read again."""
    sums: dict[tuple[date, int], float] = defaultdict(float)
    over: dict[tuple[date, int], list[int]] = defaultdict(list)
    rows = overlapping(start, end).values_list("pk", "node_id", "gpu_milli", "created_at", "released_at")
    for pk, node, milli, begun, ended in rows.iterator():
        for day, seconds in _by_day(Hold(node, milli, max(begun, start), min(ended or end, end))):
            sums[day, node] += milli / WHOLE * seconds
            if begun < midnight(day):
                over[day, node].append(pk)
    last = (end - DAY).date()
    if all(day != last for day, _node in sums) and (any_node := _any_node()) is not None:
        sums[last, any_node] = 0.0
    return [
        HostDay(day=day, node_id=node, gpu_seconds=seconds, held_over=over[day, node])
        for (day, node), seconds in sorted(sums.items())
    ]


def _any_node() -> int | None:
    return Allocation.objects.order_by("pk").values_list("node_id", flat=True).first()


def _first() -> datetime | None:
    found: datetime | None = Allocation.objects.aggregate(at=Min("created_at"))["at"]
    return None if found is None else midnight(found.astimezone(UTC).date())


def _by_day(hold: Hold) -> Iterator[tuple[date, float]]:
    start = hold.start.astimezone(UTC)
    while start < hold.end:
        end = min(midnight(start.date()) + DAY, hold.end)
        yield start.date(), (end - start).total_seconds()
        start = end
