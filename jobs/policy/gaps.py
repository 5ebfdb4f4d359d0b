"""The time that GPUs idle before a large job starts on them, which shorter jobs may use. Pure."""

from bisect import insort
from math import inf

_MOST = 12  # gaps that are remembered: the first to end are forgotten


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

    def free(self, count: int, soonest: float, takes: float) -> tuple[float, int]:
        """From when so many GPUs of one node idle for so long, and in which gap; inf: they don't."""
        best = inf, -1
        if not self._gaps or soonest + takes > self._gaps[-1][0]:
            return best
        for place, (until, idle) in enumerate(self._gaps):
            if len(idle) >= count:
                at = idle[count - 1]
                if at < soonest:
                    at = soonest
                if at < best[0] and at + takes <= until:
                    best = at, place
        return best

    def take(self, count: int, place: int, end: float) -> None:
        """Use the gap that `free` found, until then."""
        until, idle = self._gaps[place]
        left = [time for time in sorted([*idle[count:], *[end] * count]) if time < until]
        if left:
            self._gaps[place] = until, left
        else:
            del self._gaps[place]
