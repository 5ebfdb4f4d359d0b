"""When a TCP line that has fallen silent is given up, though nobody refuses: of Redis as of PostgreSQL. Pure."""

from dataclasses import dataclass
from typing import Self

_PROBES = 3  # unanswered ones in a row end a connection that is otherwise idle


@dataclass(frozen=True)
class Keepalive:
    """What TCP is told: seconds until the first probe and between two, how many, and how long sent bytes may wait."""

    idle: int
    interval: int
    probes: int
    timeout_ms: int

    @classmethod
    def of(cls, seconds: float) -> Self:
        """A line of which nothing comes for so long is dead."""
        idle, interval = max(round(seconds / 2), 1), max(round(seconds / 2 / _PROBES), 1)
        return cls(idle, interval, _PROBES, round(seconds * 1000))
