"""The engine's log frames, and how what was captured live is joined with what the engine kept. Pure.

A frame is 8 bytes (stream: 1 stdout or 2 stderr, three zeros, the payload's length, big endian), then the payload.
Bytes are counted, never decoded: where a stream is cut, what belongs where is decided by lengths alone.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

HEADER = 8
STDOUT, STDERR = 1, 2
STREAMS = (STDOUT, STDERR)
ENGINE_LINE = 16384  # the engine cuts longer lines into pieces of this size
ENGINE_BUFFERS = 2 << 20  # more than it may have delivered and not yet logged when it dies
MAX_FRAME = 1 << 20  # in the engine's own log; a larger one is no frame

RECOVERING = b"[output being recovered]\n"
NOT_RECORDED = b"[some bytes not recorded]\n"  # for good; how many, nobody is left to tell
_header = struct.Struct(">B3xI")
_raw_header = struct.Struct(">II")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")

Slice = tuple[int, int, int]  # stream, start and stop of payload within the data that was fed


class NotFrames(Exception):
    """Bytes where a frame was due: the source is not what it was taken for."""


def frame(stream: int, payload: bytes) -> bytes:
    return _header.pack(stream, len(payload)) + payload


class Deframer:
    """Finds the payloads in a stream of frames that arrives cut anywhere. Holds no payload itself."""

    def __init__(self) -> None:
        self.lengths = {STDOUT: 0, STDERR: 0}
        self.broken = False  # what came was no frame; nothing after it is read
        self._stream = STDOUT
        self._left = 0
        self._head = b""

    @property
    def length(self) -> int:
        """Payload bytes seen so far."""
        return self.lengths[STDOUT] + self.lengths[STDERR]

    def feed(self, data: bytes | bytearray | memoryview) -> list[Slice]:
        """Where in `data` payload lies, in order."""
        slices: list[Slice] = []
        at, end = 0, len(data)
        while at < end and not self.broken:
            if not self._left:
                at = self._take_header(data, at, end)
                continue
            stop = min(end, at + self._left)
            slices.append((self._stream, at, stop))
            self.lengths[self._stream] += stop - at
            self._left -= stop - at
            at = stop
        return slices

    def _take_header(self, data: bytes | bytearray | memoryview, at: int, end: int) -> int:
        """Read a header, or the part of one that is there. Returns where reading goes on."""
        if self._head or end - at < HEADER:
            take = min(HEADER - len(self._head), end - at)
            self._head += bytes(data[at : at + take])
            at += take
            if len(self._head) < HEADER:
                return at
            first, self._left = _raw_header.unpack(self._head)
            self._head = b""
        else:
            first, self._left = _raw_header.unpack_from(data, at)
            at += HEADER
        self._stream = first >> 24
        self.broken = self._stream not in STREAMS or bool(first & 0xFFFFFF)
        return at


def payload_of(data: bytes | memoryview, slices: Iterable[Slice]) -> bytes:
    """The payload bytes that `slices` point at, joined in order of arrival."""
    view = memoryview(data)
    return b"".join([view[start:stop] for _, start, stop in slices])


def whole_frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(stream, payload) of each frame of a source cut anywhere. Raises NotFrames; a cut-off last frame is left out."""
    held = b""
    for chunk in chunks:
        data, at = held + chunk, 0
        while len(data) - at >= HEADER:
            first, length = _raw_header.unpack_from(data, at)
            if first not in (STDOUT << 24, STDERR << 24) or length > MAX_FRAME:
                raise NotFrames(f"no frame header: {data[at : at + HEADER].hex()}")
            if len(data) - at - HEADER < length:
                break
            yield first >> 24, data[at + HEADER : at + HEADER + length]
            at += HEADER + length
        held = data[at:]


class Repair:
    """Gives back the newlines that the engine drops when its `local` log is read.

    Read with time stamps, each frame is one stored record. A record of a line longer than ENGINE_LINE lacks the
    newline that ended it: it is owed as soon as another record of its stream follows. For the last record of a
    stream only the record on disk can tell (`uncertain`).
    """

    def __init__(self) -> None:
        self.first_stamp = b""  # of the first record
        self._stamp = b""  # of the last record
        self._read = (b"", 0)  # the last stamp that was read, to the second, and what it says
        self._owed = {STDOUT: False, STDERR: False}
        self._in_long_line = {STDOUT: False, STDERR: False}

    def feed(self, stream: int, record: bytes) -> bytes:
        """The bytes that the job wrote, for one frame as read. Raises NotFrames when it has no time stamp."""
        stamp = _STAMP.match(record)
        if stamp is None:
            raise NotFrames(f"a record without its time stamp: {record[:200]!r}")
        self._stamp = stamp[0]
        self.first_stamp = self.first_stamp or stamp[0]
        text = record[stamp.end() :]
        before = b"\n" if self._owed[stream] else b""
        piece = len(text) == ENGINE_LINE and not text.endswith(b"\n")
        self._owed[stream] = not piece and not text.endswith(b"\n")
        self._in_long_line[stream] = piece or (self._owed[stream] and self._in_long_line[stream] and not before)
        return before + text

    @property
    def began(self) -> datetime | None:
        """When the first record was made, to the second below; None without any."""
        return _second_of(self.first_stamp) if self.first_stamp else None

    @property
    def second(self) -> int:
        """When the last record was made, in seconds since 1970."""
        if self._stamp[:19] != self._read[0]:
            self._read = (self._stamp[:19], int(_second_of(self._stamp).timestamp()))
        return self._read[1]

    @property
    def uncertain(self) -> frozenset[int]:
        """Streams of which the log ends in a piece that may or may not have ended its line."""
        return frozenset(s for s in STREAMS if self._owed[s] and self._in_long_line[s])


def _second_of(stamp: bytes) -> datetime:
    return datetime.fromisoformat((stamp[:19] + stamp[29:-1]).decode())


@dataclass(frozen=True)
class Join:
    """Which bytes [start, stop) of one stream of the engine's log stand between the first and the last live piece."""

    start: int
    stop: int
    lost: bool = False  # the log lacks bytes here that nobody has any more; how many is unknown


def join(first: int, last: int, log: int, *, same_start: int, same_end: bool) -> Join | None:
    """Join one stream by lengths: `first` and `last` are those of the live pieces, `log` that of the engine's log.

    `same_start` bytes of the first piece stand at the log's start too; `same_end` says whether the last piece stands
    at its end. None when the log can't be joined: then the live pieces are all there is. When the engine died, the
    log lacks what it had delivered and not yet logged (less than ENGINE_BUFFERS): the rest of it still serves.
    """
    stop = log - last
    if not same_end:
        return None
    if same_start == first and first <= stop:
        return Join(first, stop)
    if 0 < first - same_start < ENGINE_BUFFERS and same_start <= stop:
        return Join(same_start, stop, lost=True)
    return None


def common_prefix(one: Iterable[bytes], other: Iterable[bytes]) -> int:
    """How many first bytes two sources, each cut anywhere, have in common."""
    length, a, b = 0, b"", b""
    left, right = filter(None, one), filter(None, other)
    while True:
        a = a or next(left, b"")
        b = b or next(right, b"")
        size = min(len(a), len(b))
        if not size:
            return length
        if a[:size] != b[:size]:
            return length + next(i for i in range(size) if a[i] != b[i])
        length, a, b = length + size, a[size:], b[size:]


def on_own_line(mark: bytes, last_byte: bytes) -> bytes:
    """The mark as it goes after `last_byte` (empty at the start of a log)."""
    return mark if last_byte in (b"", b"\n") else b"\n" + mark


def limit_reached(count: int, *, exact: bool) -> bytes:
    """The last line of a log that was longer than a run may keep."""
    return b"[log limit reached: %s%d bytes not kept]\n" % (b"" if exact else b"at least ", count)
