"""Correct expected starts by how the last ones came out, so that a chosen part of them is hit. Pure.

Split conformal prediction on ratios: among the past estimates whose horizon was most like this one's, how did the
true wait relate to the middle of the range? The shortest span of those ratios that holds `AIM` of them is the range.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

AIM = 0.8
LIKE = 80  # so many past estimates with the nearest horizons decide
RECENT = 500  # past estimates to judge by, the newest
FEWEST = 20  # with fewer, a range stays as it was planned
FLOOR = 60.0  # seconds: below, waits count as alike


class Outcome(NamedTuple):
    """A past estimate: the range that was planned and the true wait, all in seconds from when it was made."""

    low: float
    high: float
    waited: float


class Calibration:
    """What past estimates say of new ones."""

    def __init__(self, past: Sequence[Outcome]) -> None:
        ratios = sorted(
            (middle(low, high), (waited + FLOOR) / math.exp(middle(low, high))) for low, high, waited in past
        )
        self._middles = [at for at, _ratio in ratios]
        self._ratios = [ratio for _at, ratio in ratios]

    def correct(self, low: float, high: float) -> tuple[float, float]:
        """The range of seconds from now to show for a planned one."""
        like = self._like(middle(low, high))
        if len(like) < FEWEST:
            return low, high
        least, most = shortest(sorted(like), AIM)
        scale = math.exp(middle(low, high))
        return max(least * scale - FLOOR, 0.0), max(most * scale - FLOOR, 0.0)

    def _like(self, at: float) -> list[float]:
        """The ratios of the estimates whose horizons are nearest."""
        left = right = bisect_left(self._middles, at)
        while right - left < min(LIKE, len(self._middles)):
            if right == len(self._middles) or (left > 0 and at - self._middles[left - 1] <= self._middles[right] - at):
                left -= 1
            else:
                right += 1
        return self._ratios[left:right]


def middle(low: float, high: float) -> float:
    """The logarithm of the range's geometric middle, floored."""
    return (math.log(low + FLOOR) + math.log(high + FLOOR)) / 2


def shortest(values: Sequence[float], part: float) -> tuple[float, float]:
    """The shortest span that holds `part` of the ordered values, and one more, as conformal prediction asks."""
    count = min(math.ceil(part * (len(values) + 1)), len(values))
    begin = min(range(len(values) - count + 1), key=lambda at: (values[at + count - 1] - values[at], at))
    return values[begin], values[begin + count - 1]
