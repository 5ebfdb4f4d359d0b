"""The time that GPUs idle before a large job starts on them, which shorter jobs may use. Pure."""

from bisect import insort
from math import inf

_MOST = 24  # gaps that are remembered: the first to end are forgotten


class Gaps:
    """Gaps of the GPUs of one kind. Times in seconds from now."""

    def __init__(self) -> None:
        self._gaps: list[tuple[float, list[float]]] = []  # (until when, from when each GPU idles, sorted)

    def add(self, times: list[float], until: float) -> None:
        """GPUs of one node that become free at these times all wait until then."""
        idle = [time for time in times if time < until]
        if idle:
            insort(self._gaps, (until, idle))
            del self._gaps[:-_MOST]

    def free(self, count: int, soonest: float, takes: float) -> float:
        """From when so many GPUs of one node idle for so long; inf: they don't."""
        return self._best(count, soonest, takes)[0]

    def take(self, count: int, soonest: float, takes: float) -> float:
        """Use the gap that `free` found."""
        at, place = self._best(count, soonest, takes)
        until, idle = self._gaps[place]
        left = sorted([*idle[count:], *[at + takes] * count])
        self._gaps[place] = until, [time for time in left if time < until]
        if not self._gaps[place][1]:
            del self._gaps[place]
        return at

    def _best(self, count: int, soonest: float, takes: float) -> tuple[float, int]:
        best = inf, -1
        for place, (until, idle) in enumerate(self._gaps):
            if len(idle) >= count:
                at = max(idle[count - 1], soonest)
                if at < best[0] and at + takes <= until:
                    best = at, place
        return best
