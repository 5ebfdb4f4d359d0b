"""When the bytes of a log came, and by which stream: marks that are kept beside each segment. Pure.

A mark is (offset, value): the value holds from that byte on, until the next mark. Times are whole seconds since 1970,
right to the second; streams are those of `logframes`. UNKNOWN stands for either where nobody knows.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

UNKNOWN = 0
MOST = 4000  # switches of stream that are kept of one segment; a program that switches more often is not told apart

Mark = tuple[int, int]


@dataclass
class Marks:
    """Marks in order. `note` adds; nothing is said twice."""

    times: list[Mark] = field(default_factory=list)
    streams: list[Mark] = field(default_factory=list)
    time: int = UNKNOWN  # what holds for the bytes to come
    stream: int = UNKNOWN

    def note(self, offset: int, time: int, stream: int) -> None:
        """From `offset` on."""
        if time != self.time:
            self.time = time
            self.times.append((offset, time))
        if stream != self.stream:
            self.stream = stream
            self._switch(offset, stream)

    def _switch(self, offset: int, stream: int) -> None:
        if len(self.streams) < MOST:
            self.streams.append((offset, stream))
        elif self.streams[-1][1] != UNKNOWN:
            self.streams.append((offset, UNKNOWN))

    def between(self, start: int, end: int) -> "Marks":
        """Those of [start, end); the first ones say what held at `start`."""
        return Marks(times=_between(self.times, start, end), streams=_between(self.streams, start, end))

    def forget_before(self, offset: int) -> None:
        """Keep what holds from `offset` on, which is no further than what was noted."""
        self.times = _between(self.times, offset, 1 << 62) if self.times else []
        if len(self.streams) >= MOST:
            self.streams = [(offset, UNKNOWN if self.streams[-1][0] > offset else self.stream)]
        self.streams = _between(self.streams, offset, 1 << 62) if self.streams else []

    def take(self, other: "Marks", at: int) -> None:
        """Note what another says of bytes that stand at offset `at` here, and there at 0."""
        for offset, time in other.times:
            self.note(at + offset, time, self.stream)
        for offset, stream in other.streams:
            self.note(at + offset, self.time, stream)

    def extend(self, other: "Marks") -> None:
        """Go on with the marks of the bytes behind ours."""
        self.times += other.times
        self.streams += other.streams


def unknown(start: int) -> Marks:
    """Of bytes about which nothing was recorded."""
    return Marks(times=[(start, UNKNOWN)], streams=[(start, UNKNOWN)])


def _between(marks: list[Mark], start: int, end: int) -> list[Mark]:
    inside = [mark for mark in marks if start < mark[0] < end]
    before = [mark for mark in marks if mark[0] <= start]
    return [(start, before[-1][1] if before else UNKNOWN), *inside]


def pack(marks: Marks, start: int) -> bytes:
    """The marks of a segment that begins at `start`, small."""
    said = [_steps(start, marks.times), _steps(start, marks.streams)]
    return zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 6)


def unpack(data: bytes, start: int) -> Marks:
    """The other way round."""
    times, streams = json.loads(zlib.decompress(data))
    return Marks(times=_sums(start, times), streams=_sums(start, streams))


def _steps(start: int, marks: Iterable[Mark]) -> list[list[int]]:
    """Differences from mark to mark, which pack well."""
    return [[here[0] - last[0], here[1] - last[1]] for last, here in pairwise([(start, 0), *marks])]


def _sums(start: int, steps: list[list[int]]) -> list[Mark]:
    found = accumulate(steps, lambda last, step: (last[0] + step[0], last[1] + step[1]), initial=(start, 0))
    return list(found)[1:]
