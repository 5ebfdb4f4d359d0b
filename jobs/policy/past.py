"""How long like jobs ran: of the same owner, image and name, else of wider circles. Pure. Times in seconds.

The circles, from the nearest on: owner, image and name; owner and image; owner; and for whoever has no past,
the part of their time limits that everybody used. A circle counts once it holds a few runs.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

KEPT = 50  # of each circle's runs, the newest
SHARES_KEPT = 500
FEWEST = 4  # runs without which a circle says nothing
LOW, HIGH = 0.2, 0.8  # quantiles


class Like(NamedTuple):
    """What makes jobs alike. `limit_seconds` None: no limit."""

    user: int
    image: str
    name: str
    limit_seconds: int | None


class _Sorted:
    """The newest `kept` values, in order of size as well."""

    def __init__(self, kept: int) -> None:
        self.newest: deque[float] = deque()
        self.values: list[float] = []
        self.kept = kept

    def add(self, value: float) -> None:
        if len(self.newest) == self.kept:
            self.values.remove(self.newest.popleft())
        self.newest.append(value)
        insort(self.values, value)


class Past:
    """Runs that ended, and what they say of others."""

    def __init__(self) -> None:
        self._circles: dict[tuple[object, ...], _Sorted] = {}
        self._shares = _Sorted(SHARES_KEPT)

    def add(self, like: Like, seconds: float) -> None:
        """A run that ended after so long."""
        for circle in _circles(like):
            self._circles.setdefault(circle, _Sorted(KEPT)).add(seconds)
        if like.limit_seconds:
            self._shares.add(min(seconds / like.limit_seconds, 1.0))

    def seconds(self, like: Like, *, ran: float = 0.0) -> tuple[float, float] | None:
        """A low and a high quantile of how long such a job runs in all, if it ran so long already; None: no idea."""
        limit = like.limit_seconds
        found = self._longer(like, ran)
        if found is None:
            return None
        low, high = quantile(found, LOW), quantile(found, HIGH)
        return (low, high) if limit is None else (min(low, limit), min(high, limit))

    def ends(self, like: Like, *, since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
        """When a run that began at `since` and runs still should end: early and late."""
        found = self.seconds(like, ran=max((now - since).total_seconds(), 0.0))
        if found is None:
            return None
        early, late = (since + timedelta(seconds=seconds) for seconds in found)
        return max(early, now), max(late, now)

    def _longer(self, like: Like, ran: float) -> Sequence[float] | None:
        """The nearest circle's values above `ran`, in order."""
        for circle in _circles(like):
            held = self._circles.get(circle)
            if held is not None and len(rest := _above(held.values, ran)) >= FEWEST:
                return rest
        limit = like.limit_seconds
        if not limit or len(rest := _above(self._shares.values, ran / limit)) < FEWEST:
            return None
        return [share * limit for share in rest]


def _circles(like: Like) -> tuple[tuple[object, ...], ...]:
    return (like.user, like.image, like.name), (like.user, like.image), (like.user,)


def _above(values: list[float], least: float) -> list[float]:
    return values[bisect_right(values, least) :] if least > 0 else values


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the ordered `values` lie, between neighbours in proportion."""
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)
