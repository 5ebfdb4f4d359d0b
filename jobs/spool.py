"""What was captured of a run's output on this host, before it goes to log storage.

One directory a run: `container` (its id), a file for each attach, in order (`0-whole` when it was attached before
the container started, else `0-late`, `1-late`, …; `1-over` after the limit), holding the engine's frames as they
came, beside each a `.times` of its number (when its bytes came, to the second) and, where the engine died, a `.cut`,
`recorded` (made when the engine made its first record), and `dropped` (how many payload bytes past the run's limit
were not kept). What stands between two pieces is not known here.
"""

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from jobs.logframes import ENGINE_LINE, RECOVERING, Deframer, Slice, on_own_line, payload_of
from jobs.logmarks import UNKNOWN, Marks

WHOLE, LATE, OVER = "whole", "late", "over"  # kinds of pieces
_CHUNK = 1 << 18
_NOTE_PERIOD = 1.0  # seconds between two notes of how much was dropped
_ARRIVAL_PERIOD = 1.0  # seconds between two notes of when output came
ARRIVAL = struct.Struct(">Qd")  # the length of the piece before what came, seconds since 1970


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Spool:
    """A run's pieces. Made by `create` or found by `find`; the drain writes it, others only read."""

    def __init__(self, directory: Path, container_id: str, limit: int) -> None:
        self.directory = directory
        self.run_id = int(directory.name)
        self.container_id = container_id
        self.limit = limit  # payload bytes that may be kept
        self.pieces = [Piece(path) for path in sorted(directory.glob("*-*"), key=_number)]
        self.next_number = _number(self.pieces[-1].path) + 1 if self.pieces else 0
        self.kept = sum(piece.measure().length for piece in self.pieces)
        self.dropped = self._noted()
        self._noted_at = 0.0
        self.has_record = self.first_record_at() is not None

    @classmethod
    def create(cls, root: Path, run_id: int, container_id: str, limit: int, *, first: int = 0) -> "Spool":
        """A new, durable spool; an older one of the same run is thrown away. `first` is the number of its first piece:
        that of none before, where a pump may still speak of those.
        """
        directory = root / str(run_id)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        with (directory / "container").open("w") as file:
            file.write(container_id)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
        sync_directory(root)
        spool = cls(directory, container_id, limit)
        spool.next_number = first
        return spool

    @classmethod
    def find(cls, root: Path, run_id: int, limit: int) -> "Spool | None":
        """The spool that an earlier life of the agent left; None when there is none."""
        directory = root / str(run_id)
        try:
            return cls(directory, (directory / "container").read_text(), limit)
        except FileNotFoundError:
            return None

    def add_piece(self, *, whole: bool) -> "Piece":
        """A new, empty piece. Only when nobody writes to the one before any more."""
        kind = WHOLE if whole else OVER if self.is_full else LATE
        piece = Piece(self.directory / f"{self.next_number}-{kind}")
        self.next_number += 1
        piece.path.touch()
        self.pieces.append(piece)
        return piece

    @property
    def has_open_hole(self) -> bool:
        """Whether a live piece stands after bytes that are missing, so that a mark is shown."""
        return any(piece.kind == LATE for piece in self.pieces)

    @property
    def is_full(self) -> bool:
        return self.kept >= self.limit

    def note_first_record(self) -> None:
        """Keep the time: it tells a log that begins there from one of which the engine threw the beginning away."""
        with contextlib.suppress(OSError):
            (self.directory / "recorded").touch(exist_ok=False)

    def first_record_at(self) -> float | None:
        """When the engine had its first record at the latest, in seconds of the epoch: at the end of the first line,
        or of what it cuts a longer one to. None while no piece has seen that.
        """
        try:
            return (self.directory / "recorded").stat().st_mtime
        except FileNotFoundError:
            return None

    def drop(self, count: int) -> None:
        """Count payload bytes past the limit, and note the count now and then."""
        self.dropped += count
        if time.monotonic() - self._noted_at >= _NOTE_PERIOD:
            self.note_dropped()

    def note_dropped(self) -> None:
        self._noted_at = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk; the count is still in memory
            (self.directory / "dropped").write_text(str(self.dropped))

    def _noted(self) -> int:
        try:
            return int((self.directory / "dropped").read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0

    @staticmethod
    def discard_at(root: Path, run_id: int) -> None:
        shutil.rmtree(root / str(run_id), ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


class Piece:
    """What one attach delivered. The last three are known only in the life of the agent that attached."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = path.name.partition("-")[2]
        self.times = path.with_name(f"{path.name.partition('-')[0]}.times")
        self._cut = self.times.with_suffix(".cut")
        self.engine_life = 0
        self.saw_end = False  # the engine closed the stream
        self.delivered: dict[int, int] = {}  # payload bytes a stream, also those past the limit

    @property
    def is_cut(self) -> bool:
        """Whether the engine went away as its stream ended: the container may have gone on unheard."""
        return self._cut.exists()

    def note_cut(self) -> None:
        with contextlib.suppress(OSError):
            self._cut.touch()

    def measure(self) -> Deframer:
        """The lengths of its streams, by reading it."""
        deframer = Deframer()
        for data in self.chunks():
            deframer.feed(data)
        return deframer

    def marked(self, start: int = 0) -> Iterator[tuple[bytes, Marks]]:
        """The payload of both streams in order of arrival, from its byte `start` on: parts, with their own marks."""
        deframer, arrivals = Deframer(), Arrivals(self.times)
        with contextlib.closing(arrivals):
            for data in self.chunks():
                slices, marks = deframer.feed(data), Marks()
                arrivals.note(marks, -start, len(data), slices)
                part = payload_of(data, slices)[start:]
                yield part, marks.between(0, len(part))
                start = max(start - sum(stop - begin for _, begin, stop in slices), 0)

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                yield data

    def stream(self, stream: int) -> Iterator[bytes]:
        """The payload of one stream."""
        deframer = Deframer()
        for data in self.chunks():
            yield payload_of(data, [part for part in deframer.feed(data) if part[0] == stream])


class PieceWriter:
    """Appends frames to a piece, keeping the run's limit. One at a time, in the drain or in the pump."""

    def __init__(self, spool: Spool, piece: Piece) -> None:
        self._spool = spool
        self._fd = os.open(piece.path, os.O_WRONLY)  # splicing takes no O_APPEND
        os.lseek(self._fd, 0, os.SEEK_END)
        self._times = os.open(piece.times, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._timed_at = 0.0
        self._deframer = piece.measure() if self._size else Deframer()  # of an earlier writer, killed half-way
        piece.delivered = self.lengths = self._deframer.lengths  # payload bytes a stream, those not kept too
        self._unwritten = b""

    def write(self, data: memoryview) -> None:
        """Append what the limit allows and count the rest. Raises OSError when the disk is full: then `retry`."""
        self._put(data[: self.admit(data)])

    def admit(self, data: bytes | memoryview) -> int:
        """Count what came; how many of its first bytes are to be written."""
        slices = self._deframer.feed(data)
        if self._deframer.broken:
            return 0  # no frames: the piece stays as it was, never seen to end properly
        self._note_time()
        length = sum(stop - start for _, start, stop in slices)
        if not self._spool.has_record and self._makes_record(data, slices):
            self._spool.note_first_record()
        room = self._spool.limit - self._spool.kept
        if length <= room:
            self._spool.kept += length
            return len(data)
        self._spool.kept += room
        self._spool.drop(length - room)
        return _position(slices, room) if room else 0

    def splice(self, pipe: int, count: int) -> int:
        """Move at most `count` admitted bytes from a pipe, none of them through this process. Raises OSError."""
        moved = os.splice(pipe, self._fd, count)
        self._size += moved
        return moved

    def _note_time(self) -> None:
        """What is written next has come now."""
        now = time.monotonic()
        if now - self._timed_at >= _ARRIVAL_PERIOD or not self._timed_at:
            self._timed_at = now
            with contextlib.suppress(OSError):  # a full disk: that time is not known, then
                os.write(self._times, ARRIVAL.pack(self._size, time.time()))

    def _makes_record(self, data: bytes | memoryview, slices: list[Slice]) -> bool:
        longest = max(self._deframer.lengths.values())
        self._spool.has_record = longest >= ENGINE_LINE or b"\n" in payload_of(data, slices)
        return self._spool.has_record

    def retry(self) -> None:
        """Write what could not be written. Raises OSError while it still can't."""
        self._put(memoryview(self._unwritten))

    def _put(self, data: memoryview) -> None:
        self._unwritten = b""
        while data:
            try:
                written = os.write(self._fd, data)
                self._size += written
                data = data[written:]
            except OSError:
                self._unwritten = bytes(data)
                raise

    def close(self) -> None:
        if self._spool.dropped:
            self._spool.note_dropped()
        os.close(self._fd)
        os.close(self._times)


def _position(slices: list[Slice], length: int) -> int:
    """Where in the data the first `length` payload bytes end."""
    for _, start, stop in slices:
        if length <= stop - start:
            return start + length
        length -= stop - start
    return slices[-1][2]


class MergedReader:
    """Reads a spool as people see it while it grows: payload in order of arrival, a mark at each hole."""

    def __init__(self, spool: Spool) -> None:
        self.position = 0
        self._spool = spool
        self._index = -1
        self._file: BinaryIO | None = None
        self._deframer = Deframer()
        self._mark = b""
        self._arrivals: Arrivals | None = None
        self.marks = Marks()  # of what was read; whoever reads forgets them
        self.last_byte = b""

    def read(self, limit: int) -> bytes:
        """The next bytes, at most `limit`; fewer only when there are no more yet."""
        parts: list[bytes] = []
        end = self.position + limit
        while self.position < end:
            part = self._next(end - self.position)
            if part is None:
                break
            if part:
                parts.append(part)
                self.position += len(part)
                self.last_byte = part[-1:]
        return b"".join(parts)

    def skip_to(self, offset: int) -> bool:
        """Go forward to an offset. False when the spool ends before it."""
        while self.position < offset:
            if not self.read(min(offset - self.position, 1 << 20)):
                return False
        return True

    def _next(self, room: int) -> bytes | None:
        """Some more bytes, perhaps none of them payload; None at the end of what is there."""
        if self._mark:
            part, self._mark = self._mark[:room], self._mark[room:]
            self.marks.note(self.position, UNKNOWN, UNKNOWN)
            return part
        has_next = self._index + 1 < len(self._spool.pieces)  # looked at first: the drain may still be writing
        data = self._file.read(min(room, _CHUNK)) if self._file else b""
        if data:
            slices = self._deframer.feed(data)
            if self._arrivals:
                self._arrivals.note(self.marks, self.position, len(data), slices)
            return payload_of(data, slices)
        if not has_next:
            return None
        self._open_next()
        return b""

    def _open_next(self) -> None:
        self.close()
        self._index += 1
        piece = self._spool.pieces[self._index]
        self._file = piece.path.open("rb", buffering=0)
        self._deframer = Deframer()
        self._arrivals = Arrivals(piece.times)
        if piece.kind == LATE:
            self._mark = on_own_line(RECOVERING, self.last_byte)

    def close(self) -> None:
        for file in (self._file, self._arrivals):
            if file:
                file.close()
        self._file = self._arrivals = None


class Arrivals:
    """When the bytes of a piece came, read along with it."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = path.open("rb", buffering=0)
        self._at = 0  # in the piece
        self._time = UNKNOWN
        self._next = self._read()

    def _read(self) -> tuple[int, int] | None:
        """The next note as (from where in the piece, second); None when there is none yet."""
        record = self._file.read(ARRIVAL.size) if self._file else b""
        if len(record) < ARRIVAL.size:
            return None
        start, time_of = ARRIVAL.unpack(record)
        return start, int(time_of)

    def note(self, marks: Marks, position: int, length: int, slices: list[Slice]) -> None:
        """Mark the payload, which begins at offset `position`, of the `length` bytes of the piece that come next."""
        self._next = self._next or self._read()
        for stream, start, stop in slices:
            self._pass(self._at + start)
            if stream != marks.stream or self._time != marks.time:
                marks.note(position, self._time, stream)
            while self._next and self._next[0] < self._at + stop:
                inside = self._next[0] - self._at - start
                self._pass(self._next[0])
                marks.note(position + inside, self._time, stream)
            position += stop - start
        self._at += length

    def at(self, place: int) -> int:
        """The second in which what is at a place of the piece came; asked in ascending order."""
        self._next = self._next or self._read()
        self._pass(place)
        return self._time

    def _pass(self, place: int) -> None:
        """Come to a place in the piece."""
        while self._next and self._next[0] <= place:
            self._time = self._next[1]
            self._next = self._read()

    def close(self) -> None:
        if self._file:
            self._file.close()
