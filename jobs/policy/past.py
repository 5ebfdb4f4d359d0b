"""How long like jobs ran: of the same owner, image and name, else of wider circles. Pure. Times in seconds.

The circles, from the nearest on: owner, image and name; owner and image; owner; everybody. A circle counts once it
holds a few runs that ended of themselves. Within one, a length is told either as such or as a part of the time limit,
whichever has varied less: some ask for what they need times a factor, others always for the same.

A run that was stopped, by a person, its limit, or for another, tells only that it lasts at least so long. Such runs
are at risk until then and no end (E. L. Kaplan, P. Meier, "Nonparametric estimation from incomplete observations",
1958): where most like runs were stopped early, nobody knows the late end, and the limit is all that bounds it. The
same holds for a run that has outlived its likes: no wider circle is asked, which knows less of it than they did.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

KEPT = 50  # of each circle's runs, the newest
EVERYBODY_KEPT = 500
TINY = 1e-6
FEWEST = 4  # runs without which a circle says nothing
LOW, HIGH = 0.2, 0.8  # quantiles
LAST_PART = 0.5  # of the time that was asked for in addition

_Length = tuple[float, bool]  # seconds or a part of a limit, and whether the run was stopped then


class Like(NamedTuple):
    """What makes jobs alike. `limit_seconds` None: no limit."""

    user: int
    image: str
    name: str
    limit_seconds: int | None


class _Sorted:
    """The newest `kept` lengths, in order of size as well. Each with whether the run was stopped then."""

    def __init__(self, kept: int) -> None:
        self.newest: deque[_Length] = deque()
        self.values: list[_Length] = []
        self.kept = kept
        self.ended = 0

    def add(self, value: float, *, stopped: bool) -> None:
        if len(self.newest) == self.kept:
            oldest = self.newest.popleft()
            del self.values[bisect_left(self.values, oldest)]
            self.ended -= not oldest[1]
        self.newest.append((value, stopped))
        insort(self.values, (value, stopped))
        self.ended += not stopped


@dataclass
class _Circle:
    """The runs of one circle: how long they ran, and what part of their limits that was."""

    lengths: _Sorted
    shares: _Sorted
    _tells: bool | None = None  # see `_shares_tell_more`; None: not looked at since the last run

    def add(self, seconds: float, limit: int | None, *, stopped: bool) -> None:
        self._tells = None
        self.lengths.add(seconds, stopped=stopped)
        if limit:
            self.shares.add(min(seconds / limit, 1.0), stopped=stopped)

    def quantiles(self, ran: float, limit: int | None) -> tuple[float, float] | None:
        """How long such a run lasts that lasts longer than `ran`; None when too few ended later. inf: nobody knows."""
        if limit and self._shares_tell_more():
            low, high = _quantiles(_above(self.shares.values, ran / limit)) or (inf, inf)
            return None if low == inf else (low * limit, high * limit)
        return _quantiles(_above(self.lengths.values, ran))

    def _shares_tell_more(self) -> bool:
        if self._tells is None:
            enough = self.shares.ended >= FEWEST
            self._tells = enough and _spread(self.shares.values) < _spread(self.lengths.values)
        return self._tells


class Past:
    """Runs that ended, and what they say of others."""

    def __init__(self) -> None:
        self._circles: dict[tuple[object, ...], _Circle] = {}
        self._found: dict[Like, tuple[float, float] | None] = {}  # of runs that have not begun

    def add(self, like: Like, seconds: float, *, stopped: bool = False) -> None:
        """A run that ended after so long, of itself or because it was `stopped`."""
        self._found.clear()
        for key in _circles(like):
            kept = KEPT if key else EVERYBODY_KEPT
            if key not in self._circles:
                self._circles[key] = _Circle(_Sorted(kept), _Sorted(kept))
            self._circles[key].add(seconds, like.limit_seconds, stopped=stopped)

    def seconds(self, like: Like, *, ran: float = 0.0) -> tuple[float, float] | None:
        """A low and a high quantile of how long such a job runs in all, if it ran so long already; None: no idea."""
        if ran > 0:
            return self._seconds(like, ran)
        if like not in self._found:
            self._found[like] = self._seconds(like, 0.0)
        return self._found[like]

    def _seconds(self, like: Like, ran: float) -> tuple[float, float] | None:
        known = (circle for key in _circles(like) if (circle := self._circles.get(key)) is not None)
        nearest = next((circle for circle in known if circle.lengths.ended >= FEWEST), None)
        found = None if nearest is None else nearest.quantiles(ran, like.limit_seconds)
        if found is None:
            return None
        limit = inf if like.limit_seconds is None else like.limit_seconds
        low, high = min(found[0], limit), min(found[1], limit)
        return None if high == inf else (low, high)

    def ends(self, like: Like, *, since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
        """When a run that began at `since` and runs still should end: early and late."""
        found = self.seconds(like, ran=max((now - since).total_seconds(), 0.0))
        if found is None:
            return None
        early, late = (since + timedelta(seconds=seconds) for seconds in found)
        return max(early, now), max(late, now)


def extended(until: datetime, seconds: float, now: datetime) -> tuple[datetime, datetime]:
    """When a run should end whose owner asked for so many seconds more, `until` then: early and late.

    Who asks for more time says that the old limit was too short: to be expected in the later part of what was added.
    """
    early = until - timedelta(seconds=seconds * LAST_PART)
    return min(max(early, now), max(until, now)), max(until, now)


def _circles(like: Like) -> tuple[tuple[object, ...], ...]:
    return (like.user, like.image, like.name), (like.user, like.image), (like.user,), ()


def _above(values: list[_Length], least: float) -> list[_Length]:
    return values[bisect_right(values, (least, True)) :] if least > 0 else values


def _quantiles(values: Sequence[_Length]) -> tuple[float, float] | None:
    """Of ordered lengths: a low and a high one; None where too few ended of themselves, inf for what nobody knows."""
    ended = [value for value, stopped in values if not stopped]
    if len(ended) < FEWEST:
        return None
    if len(ended) == len(values):
        return quantile(ended, LOW), quantile(ended, HIGH)
    return _product_limit(values, LOW), _product_limit(values, HIGH)


def _product_limit(values: Sequence[_Length], part: float) -> float:
    """By when `part` of the runs has ended, where some of the lengths are of stopped ones; inf: nobody knows."""
    left = 1.0
    for at_risk, (value, stopped) in zip(range(len(values), 0, -1), values, strict=True):
        if not stopped:
            left *= 1 - 1 / at_risk
        if 1 - left >= part - TINY:
            return value
    return inf


def _spread(values: Sequence[_Length]) -> float:
    """How far the middle half of ordered lengths lies apart, as a factor."""
    found = [value for value, _stopped in values]
    return (quantile(found, 0.75) + TINY) / (quantile(found, 0.25) + TINY)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the ordered `values` lie, between neighbours in proportion."""
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)
