"""How much of each host's GPUs was held, day by day: what months of the timeline are drawn from.

Days are UTC's and written once, after they are over, in order; they can be thrown away and made again at any time.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Max, Min, Q

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


def held(start: datetime, end: datetime) -> Iterator[Hold]:
    """What was held between these times, cut to them; what is held still, to `end`."""
    still = Q(released_at=None) | Q(released_at__gt=start)
    rows = Allocation.objects.filter(still, gpu_milli__gt=0, created_at__lt=end).order_by()
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
    sums: dict[tuple[date, int], float] = defaultdict(float)
    for hold in held(start, end):
        for day, seconds in _by_day(hold):
            sums[day, hold.node] += hold.milli / WHOLE * seconds
    rows = [HostDay(day=day, node_id=node, gpu_seconds=seconds) for (day, node), seconds in sorted(sums.items())]
    rows += _marks(end, rows)
    with transaction.atomic():
        HostDay.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)
    return len(rows)


def _marks(end: datetime, rows: list[HostDay]) -> list[HostDay]:
    """A row of nothing for the last day, where it has none: else an idle month would be read again each time."""
    last = (end - DAY).date()
    if rows and rows[-1].day == last:
        return []
    node = Allocation.objects.order_by("pk").values_list("node_id", flat=True).first()
    return [HostDay(day=last, node_id=node, gpu_seconds=0.0)] if node is not None else []


def _first() -> datetime | None:
    found: datetime | None = Allocation.objects.filter(gpu_milli__gt=0).aggregate(at=Min("created_at"))["at"]
    return None if found is None else midnight(found.astimezone(UTC).date())


def _by_day(hold: Hold) -> Iterator[tuple[date, float]]:
    start = hold.start.astimezone(UTC)
    while start < hold.end:
        end = min(midnight(start.date()) + DAY, hold.end)
        yield start.date(), (end - start).total_seconds()
        start = end
