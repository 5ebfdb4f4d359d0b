"""How long like jobs ran: of the same owner, image and name, else of wider circles. Pure. Times in seconds.

The circles, from the nearest on: owner, image and name; owner and image; owner; everybody. A circle counts once it
holds a few runs. Within one, a length is told either as such or as a part of the time limit, whichever has varied
less: some ask for what they need times a factor, others always for the same.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

KEPT = 50  # of each circle's runs, the newest
EVERYBODY_KEPT = 500
TINY = 1e-6
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


@dataclass
class _Circle:
    """The runs of one circle: how long they ran, and what part of their limits that was."""

    lengths: _Sorted
    shares: _Sorted

    def longer(self, ran: float, limit: int | None) -> list[float] | None:
        """Lengths above `ran` that such a run may have, in order; None when too few are known."""
        lengths = _above(self.lengths.values, ran)
        shares = _above(self.shares.values, ran / limit) if limit else []
        if limit and len(shares) >= FEWEST and (len(lengths) < FEWEST or self._shares_vary_less()):
            return [share * limit for share in shares]
        return lengths if len(lengths) >= FEWEST else None

    def _shares_vary_less(self) -> bool:
        return spread(self.shares.values) < spread(self.lengths.values)


class Past:
    """Runs that ended, and what they say of others."""

    def __init__(self) -> None:
        self._circles: dict[tuple[object, ...], _Circle] = {}

    def add(self, like: Like, seconds: float) -> None:
        """A run that ended after so long."""
        for key in _circles(like):
            kept = KEPT if key else EVERYBODY_KEPT
            circle = self._circles.setdefault(key, _Circle(_Sorted(kept), _Sorted(kept)))
            circle.lengths.add(seconds)
            if like.limit_seconds:
                circle.shares.add(min(seconds / like.limit_seconds, 1.0))

    def seconds(self, like: Like, *, ran: float = 0.0) -> tuple[float, float] | None:
        """A low and a high quantile of how long such a job runs in all, if it ran so long already; None: no idea."""
        found = self.longer(like, ran)
        if found is None:
            return None
        low, high = quantile(found, LOW), quantile(found, HIGH)
        limit = like.limit_seconds
        return (low, high) if limit is None else (min(low, limit), min(high, limit))

    def ends(self, like: Like, *, since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
        """When a run that began at `since` and runs still should end: early and late."""
        found = self.seconds(like, ran=max((now - since).total_seconds(), 0.0))
        if found is None:
            return None
        early, late = (since + timedelta(seconds=seconds) for seconds in found)
        return max(early, now), max(late, now)

    def longer(self, like: Like, ran: float) -> list[float] | None:
        """The nearest circle's lengths above `ran`, in order; None when no circle knows enough."""
        for key in _circles(like):
            circle = self._circles.get(key)
            found = None if circle is None else circle.longer(ran, like.limit_seconds)
            if found is not None:
                return found
        return None


def _circles(like: Like) -> tuple[tuple[object, ...], ...]:
    return (like.user, like.image, like.name), (like.user, like.image), (like.user,), ()


def _above(values: list[float], least: float) -> list[float]:
    return values[bisect_right(values, least) :] if least > 0 else values


def spread(values: Sequence[float]) -> float:
    """How far the middle half of ordered values lies apart, as a factor."""
    return (quantile(values, 0.75) + TINY) / (quantile(values, 0.25) + TINY)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the ordered `values` lie, between neighbours in proportion."""
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)
