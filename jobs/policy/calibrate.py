"""Correct expected starts by how the last ones came out, so that four in five are hit. Pure. Times in seconds.

Conformal prediction by like cases: what was the true wait where the plan said about the same of a job of about as
many GPUs? The range shown is the shortest span that holds most of those waits, while that is of use: no wider than
waits usually are long. Where it would be wider, a span of that width is shown as long as it holds about half the
like cases, and else one so wide that it is hardly ever wrong. The parts follow how often shown ranges were hit, and
how many of them were of use: somewhat more than half are to be, so that the median width is at most the median wait.

Waits that go on still count too: leaving them out would make long ones look rare.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

AIM = 0.825  # hits: more than four in five, since what comes is never quite like what was
RECENT = 1500  # past estimates to judge by, the newest
LIKE = 120  # so many of them, the most alike, decide
FEWEST = 30  # with fewer, a range stays as it was planned
FLOOR = 60.0  # below, waits count as alike
ALIKE = 0.7  # planned waits within this factor's logarithm are compared as they are, others in proportion
GRID = 4.0  # steps of a planned wait's logarithm that are told apart
USUAL, STILL = 0.85, 1.25  # of the median wait: how wide a range is usually to be at most, and is still of use
NEAR, HALF, FAR = 0.87, 0.45, 0.97  # parts of like cases: a short range's, the least of a usual one's, a wide one's
LEAST = 0.25  # of like cases must be held by any range
LATEST, MOST_SHIFT = 200, 0.1  # how the parts follow the hits of so many
OF_USE, PULL = 0.57, 2.0  # so many ranges are to be of use; how much `HALF` is moved for it
PER_GPUS = 0.7  # how much a factor of GPUs tells jobs apart, against a factor of planned waits


class Outcome(NamedTuple):
    """A past estimate: the planned range, the job's GPUs, and the true wait, all from when it was made.

    `open`: it waits still, so long already. `hit`: whether the range that was shown held, `width`: how wide that was;
    None: not known.
    """

    low: float
    high: float
    gpus: int
    waited: float
    open: bool = False
    hit: bool | None = None
    width: float | None = None


Case = tuple[float, float, float]


class Calibration:
    """What past estimates, oldest first, say of new ones."""

    def __init__(self, past: Sequence[Outcome]) -> None:
        self._past = [(_case(one.low, one.high, one.gpus), one) for one in past[-RECENT:]]
        ended = [one.waited for one in past[-RECENT:] if not one.open]
        wait = median(ended) if ended else 0.0
        self._usual, self._enough = USUAL * wait, len(ended) >= FEWEST
        self._shift = _shift([one.hit for one in past if one.hit is not None])
        self._half = _half([one.width <= STILL * wait for one in past if one.width is not None])
        self._known: dict[tuple[int, int, int], list[float]] = {}

    def correct(self, low: float, high: float, gpus: int) -> tuple[float, float]:
        """The range of seconds from now to show for a planned one."""
        if not self._enough:
            return low, high
        case = _case(low, high, gpus)
        waits = self._like(case, gpus)
        near = shortest(waits, NEAR + self._shift)
        if near[1] - near[0] <= self._usual:
            return near
        begin, part = densest(waits, self._usual)
        if part >= self._half:
            return begin, begin + self._usual
        return shortest(waits, FAR + self._shift)

    def _like(self, case: Case, gpus: int) -> list[float]:
        """The waits of like cases, in order. Planned waits of one cell of the grid are of one mind."""
        cell = round(case[0] * GRID), round(case[1] * GRID), gpus
        if cell not in self._known:
            middle = (cell[0] / GRID, cell[1] / GRID, case[2])
            near = sorted((_distance(middle, other), -number) for number, (other, _one) in enumerate(self._past))
            self._known[cell] = _waits(middle, [self._past[-number] for _far, number in near[:LIKE]])
        return self._known[cell]


def _case(low: float, high: float, gpus: int) -> Case:
    return math.log(low + FLOOR), math.log(high + FLOOR), PER_GPUS * math.log(gpus + 1)


def _distance(one: Case, other: Case) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _waits(case: Case, like: Sequence[tuple[Case, Outcome]]) -> list[float]:
    """What like cases say of this one's wait. One that is open counts as the middle of those that took longer."""
    ended = sorted(one.waited * _scale(case, other) for other, one in like if not one.open)
    found = list(ended)
    for other, one in like:
        if one.open:
            so_far = one.waited * _scale(case, other)
            longer = ended[bisect_right(ended, so_far) :]
            found.append(longer[len(longer) // 2] if longer else so_far * 1.5)
    return sorted(found)


def _scale(case: Case, other: Case) -> float:
    apart = (case[0] + case[1] - other[0] - other[1]) / 2
    return math.exp(apart) if abs(apart) > ALIKE else 1.0


def _shift(hits: Sequence[bool]) -> float:
    """How much wider than usual ranges must be drawn, as a part of cases, since the last ones were hit too rarely."""
    last = hits[-LATEST:]
    if len(last) < FEWEST:
        return 0.0
    return max(min(AIM - sum(last) / len(last), MOST_SHIFT), -MOST_SHIFT)


def _half(of_use: Sequence[bool]) -> float:
    """The least part of a range of the usual width: the smaller, the fewer of the last ones were of use."""
    last = of_use[-LATEST:]
    if len(last) < FEWEST:
        return HALF
    return max(min(HALF + PULL * (sum(last) / len(last) - OF_USE), FAR), LEAST)


def shortest(values: Sequence[float], part: float) -> tuple[float, float]:
    """The shortest span that holds `part` of the ordered values, and one more, as conformal prediction asks."""
    count = min(math.ceil(part * (len(values) + 1)), len(values))
    begin = min(range(len(values) - count + 1), key=lambda at: (values[at + count - 1] - values[at], at))
    return values[begin], values[begin + count - 1]


def densest(values: Sequence[float], width: float) -> tuple[float, float]:
    """Where a span of this width begins that holds the most of the ordered values, and which part of them."""
    counts = [(bisect_right(values, value + width) - at, -at) for at, value in enumerate(values)]
    count, at = max(counts)
    return values[-at], count / len(values)
