"""Ends a run's log: mends the holes of the live capture from the engine's own log, and marks what nobody has any more.

A hole is open where the capture did not see the output: before the first piece when the container was attached late,
between two pieces, and after the last one unless the end of the stream was seen.
"""

import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from jobs import containers, containers_logs, logstore
from jobs.containers import EngineRefused
from jobs.endings import was_signalled
from jobs.logframes import (
    NOT_RECORDED,
    STREAMS,
    Deframer,
    Join,
    NotFrames,
    Repair,
    common_prefix,
    frame,
    join,
    limit_reached,
    on_own_line,
    payload_of,
    whole_frames,
)
from jobs.logmarks import UNKNOWN, Marks
from jobs.models import LogSegment
from jobs.segments import SegmentWriter
from jobs.ship import Shipment
from jobs.spool import ARRIVAL, WHOLE, Arrivals, Piece, Spool

log = logging.getLogger(__name__)

_BATCH = 1 << 16
_ENGINE_STARTS = timedelta(seconds=15)  # from an engine's beginning until it has taken up what runs
_CLOCK_SLACK = 2.0  # seconds between the engine's stamp of the first record and its coming here; never so long

# Why bytes are not recorded: `reason` in Run.log_holes.
GONE = "CONTAINER_GONE"
UNREADABLE = "ENGINE_LOG_UNREADABLE"
MISMATCH = "ENGINE_LOG_INCOMPLETE"
ENGINE_DIED = "ENGINE_DIED"
CAPPED = "ENGINE_LOG_CAPPED"
LAST_NEWLINE = "LAST_NEWLINE_UNKNOWN"

Hole = dict[str, Any]  # stream (None: either), offset of its mark in the log, reason


def end_log(shipment: Shipment, *, container_id: str, saw_end: bool) -> None:
    """Ship the rest of a log and call it complete, mended where the capture has holes.

    `saw_end`: the last piece goes to the end of the output. Raises EngineUnavailable, or what database and storage
    raise; then the shipment is of no more use and another must be made.
    """
    shipment.resume()
    spool = shipment.spool
    first = spool.pieces[0] if spool.pieces and spool.pieces[0].kind == WHOLE else None
    others = spool.pieces[1:]
    nothing_ran = not container_id and not spool.pieces and not shipment.out.stored
    seen = first and not spool.has_open_hole and (spool.is_full or (saw_end and not others))
    if shipment.reached and (seen or nothing_ran):
        _end_whole(shipment, exact=saw_end and not others)
    else:
        _Mending(shipment, container_id, first, saw_end=saw_end).run()
    shipment.drop_tail()


def _end_whole(shipment: Shipment, *, exact: bool) -> None:
    """The capture is all that the job printed, or all that may be kept of it."""
    shipment.ship_rest()
    dropped = shipment.spool.dropped
    if dropped:
        mark = limit_reached(dropped, exact=exact)
        shipment.out.write(on_own_line(mark, shipment.reader.last_byte))
    shipment.out.complete(dropped=dropped)


class _Mending:
    """Composes what follows the first piece, from the engine's log and the last piece."""

    def __init__(self, shipment: Shipment, container_id: str, first: Piece | None, *, saw_end: bool) -> None:
        self._shipment = shipment
        self._spool: Spool = shipment.spool
        self._first = first
        self._last = self._spool.pieces[-1] if saw_end and self._spool.pieces[-1] is not first else None
        self._first_lengths = first.measure().lengths if first else dict.fromkeys(STREAMS, 0)
        self._last_lengths = self._last.measure().lengths if self._last else dict.fromkeys(STREAMS, 0)
        self._delivered = self._last.delivered if self._last else self._last_lengths
        self._holes: list[Hole] = []
        self._doubtful: frozenset[int] = frozenset()
        self._why = GONE
        self._logged_until = 0  # when the engine made its last record, in seconds since 1970
        self._log = self._fetch(container_id) if container_id else None
        self._ended_unseen = bool(self._log) and not self._last and self._outlived_engine(container_id)

    def run(self) -> None:
        joins = self._joins()
        if not self._shipment.reached and self._length(joins) < self._shipment.out.stored:
            self._keep_stored()
            return
        head = sum(self._first_lengths.values())
        out, base = self._start(head)
        text = _Text(out, room=self._spool.limit - head, last_byte=self._shipment.reader.last_byte)
        if base is not None:
            text = _Text(out, room=self._spool.limit - base, last_byte=b"")
            text.put_all(self._first.marked(base) if self._first else iter(()))
        if joins:
            self._put_joined(text, joins)
        else:
            self._put_pieces(text)
        self._complete(text, max(text.dropped, 0 if joins else self._spool.dropped), base, exact=bool(joins))

    def _length(self, joins: dict[int, Join] | None) -> int:
        """How long a mended log would be; with nothing to mend it, 0."""
        between = sum(found.stop - found.start for found in joins.values()) if joins else 0
        return sum(self._first_lengths.values()) + between + sum(self._delivered.values()) if joins else 0

    def _keep_stored(self) -> None:
        """Spool and engine lost more with the host's power than log storage has: what is stored stands."""
        text = _Text(self._shipment.out, room=0, last_byte=b"\n")
        self._hole(text, None, self._why)
        self._complete(text, self._spool.dropped, None, exact=False)

    def _complete(self, text: "_Text", dropped: int, base: int | None, *, exact: bool) -> None:
        if dropped:
            text.mark(limit_reached(dropped, exact=exact))
        text.out.complete(dropped=dropped, holes=self._holes, base=base)
        for left in self._spool.directory.glob("repaired*"):
            left.unlink(missing_ok=True)

    def _start(self, head: int) -> tuple[SegmentWriter, int | None]:
        """Where to write: on in the same generation when nothing after the first piece was shown, else a new one.

        The second value is the offset from which the new generation replaces the old one.
        """
        if self._shipment.reached and not self._spool.has_open_hole:
            self._shipment.ship_rest()
            return self._shipment.out, None
        run_id, generation = self._spool.run_id, self._shipment.out.generation + 1
        LogSegment.objects.filter(run=run_id, generation=generation).delete()  # of a try that failed
        base = max((end for end in logstore.segment_ends(run_id, generation - 1) if end < head), default=0)
        return SegmentWriter(run_id, generation, base), base

    # --- with the engine's log ---

    def _fetch(self, container_id: str) -> Piece | None:
        """The engine's log, repaired, as a piece; None when there is none that can be read."""
        piece = Piece(self._spool.directory / "repaired")
        repair = Repair()
        try:
            _write_frames(piece, _repaired(container_id, repair))
        except (EngineRefused, NotFrames) as error:
            log.warning("the engine's log of run %s can't be read: %s", self._spool.run_id, error)
            self._why = GONE if isinstance(error, EngineRefused) and error.status == 404 else UNREADABLE
            return None
        self._logged_until = repair.second
        if self._was_capped(repair):
            self._why = CAPPED
            return None
        for stream in repair.uncertain:
            self._settle_last_newline(piece, container_id, stream)
        return piece

    def _outlived_engine(self, container_id: str) -> bool:
        """Whether the engine died under our stream, and was back at its work only after the container had ended, too.

        Then it never read what the container printed in between. One that goes down in order stops them first; one
        that has logged anything since it began anew was back in time.
        """
        if not self._spool.pieces or not self._spool.pieces[-1].is_cut:
            return False
        container, began = containers.inspect(container_id), containers.listening_since()
        if container is None or container.finished_at is None or began is None or was_signalled(container.exit_code):
            return False
        return self._logged_until < began.timestamp() and container.finished_at < began + _ENGINE_STARTS

    def _was_capped(self, repair: Repair) -> bool:
        """Whether the log begins after the first record was made: it reached its size, and the engine began it anew."""
        first = self._spool.first_record_at()
        if repair.began is None or first is None or not sum(self._first_lengths.values()):
            return False
        return repair.began.timestamp() > first + _CLOCK_SLACK

    def _settle_last_newline(self, log_piece: Piece, container_id: str, stream: int) -> None:
        """The reading dropped the last newline of this stream, if there was one: find out."""
        ended = containers_logs.last_record_ended_line(container_id, stream)
        if ended is None:
            ended = self._live_ends_with_newline(stream)
        if ended:
            with log_piece.path.open("ab") as file:
                file.write(frame(stream, b"\n"))
        elif ended is None:
            self._doubtful |= {stream}

    def _live_ends_with_newline(self, stream: int) -> bool | None:
        last = b""
        for part in self._last.stream(stream) if self._last else ():
            last = part or last
        return last.endswith(b"\n") if last else None

    def _joins(self) -> dict[int, Join] | None:
        """How each stream is joined; None when one of them can't be."""
        if self._log is None:
            return None
        lengths = self._log.measure().lengths
        joins = {stream: self._join(self._log, stream, lengths[stream]) for stream in STREAMS}
        if any(found is None for found in joins.values()):
            self._why = MISMATCH
            return None
        return {stream: found for stream, found in joins.items() if found}

    def _join(self, log_piece: Piece, stream: int, length: int) -> Join | None:
        first, last = self._first_lengths[stream], self._delivered[stream]
        same_start = common_prefix(self._first.stream(stream), log_piece.stream(stream)) if self._first else 0
        same_end = last <= length
        if self._last and same_end:
            there = _from(log_piece.stream(stream), length - last)
            same_end = common_prefix(self._last.stream(stream), there) == self._last_lengths[stream]
        found = join(first, last, length, same_start=same_start, same_end=same_end)
        if found is None:
            log.warning(
                "stream %s of run %s: the engine logged %s bytes, live pieces hold %s (of which %s agree) and %s (%s)",
                stream, self._spool.run_id, length, first, same_start, last, "agree" if same_end else "disagree",
            )  # fmt: skip
        return found

    def _put_joined(self, text: "_Text", joins: dict[int, Join]) -> None:
        assert self._log is not None
        for stream, found in joins.items():
            if found.lost:
                self._hole(text, stream, ENGINE_DIED)
        text.put_all(_between(self._log, joins))
        if self._last:
            text.put_all(self._last.marked())
            text.drop(sum(self._delivered.values()) - sum(self._last_lengths.values()))
        if self._ended_unseen:
            self._hole(text, None, ENGINE_DIED)
        for stream in self._doubtful:
            self._holes.append({"stream": stream, "offset": text.end, "reason": LAST_NEWLINE})

    # --- without it ---

    def _put_pieces(self, text: "_Text") -> None:
        """All there is are the live pieces; between them, and after them, something is missing."""
        late = self._spool.pieces[1:] if self._first else self._spool.pieces
        for piece in late:
            self._hole(text, None, self._why)
            text.put_all(piece.marked())
        if not self._last:
            self._hole(text, None, self._why)

    def _hole(self, text: "_Text", stream: int | None, reason: str) -> None:
        """Show and record that an unknown number of bytes is missing here."""
        offset = text.mark(NOT_RECORDED)
        self._holes.append({"stream": stream, "offset": offset, "reason": reason})


class _Text:
    """The way into segments for payload, which the run's limit bounds, and for marks, which it does not."""

    def __init__(self, out: SegmentWriter, *, room: int, last_byte: bytes) -> None:
        self.out = out
        self.room = room
        self.dropped = 0
        self._last_byte = last_byte

    @property
    def end(self) -> int:
        return self.out.end

    def put_all(self, parts: Iterator[tuple[bytes, Marks]]) -> None:
        for part, marks in parts:
            kept = part[: max(self.room, 0)]
            self.drop(len(part) - len(kept))
            self.room -= len(kept)
            if kept:
                self.out.marks.take(marks.between(0, len(kept)), self.out.end)
                self._write(kept)

    def drop(self, count: int) -> None:
        self.dropped += count

    def mark(self, text: bytes) -> int:
        """Write a mark on a line of its own. Returns its offset."""
        text_there = on_own_line(text, self._last_byte)
        self.out.marks.note(self.out.end, UNKNOWN, UNKNOWN)
        self._write(text_there)
        return self.out.end - len(text)

    def _write(self, data: bytes) -> None:
        if data:
            self.out.write(data)
            self._last_byte = data[-1:]


def _repaired(container_id: str, repair: Repair) -> Iterator[tuple[int, bytes, int]]:
    """(stream, bytes, second) of each record."""
    for stream, record in whole_frames(containers_logs.read_log(container_id)):
        yield stream, repair.feed(stream, record), repair.second


def _write_frames(piece: Piece, records: Iterator[tuple[int, bytes, int]]) -> None:
    """Write records as frames, those of one stream and one second in a row as one frame up to _BATCH bytes."""
    held, owner, second = bytearray(), 0, -1
    with piece.path.open("wb") as file, piece.times.open("wb") as times:
        for stream, data, at in records:
            if stream != owner or at != second or len(held) >= _BATCH:
                file.write(frame(owner, bytes(held)) if held else b"")
                held.clear()
            if at != second:
                times.write(ARRIVAL.pack(file.tell(), at))
            owner, second = stream, at
            held += data
        file.write(frame(owner, bytes(held)) if held else b"")


def _from(parts: Iterator[bytes], start: int) -> Iterator[bytes]:
    """A source without its first `start` bytes."""
    for part in parts:
        yield part[start:]
        start = max(start - len(part), 0)


def _between(log_piece: Piece, joins: dict[int, Join]) -> Iterator[tuple[bytes, Marks]]:
    """What the engine's log holds between the first and the last piece, in its order, with marks of each part."""
    at = dict.fromkeys(STREAMS, 0)
    deframer, place = Deframer(), 0
    with contextlib.closing(Arrivals(log_piece.times)) as arrivals:
        for data in log_piece.chunks():
            for stream, start, stop in deframer.feed(data):
                found, here = joins[stream], start - at[stream]
                at[stream] += stop - start
                low, high = max(start, here + found.start), min(stop, here + found.stop)
                if low < high:
                    marks = Marks(times=[(0, arrivals.at(place + start))], streams=[(0, stream)])
                    yield payload_of(data, [(stream, low, high)]), marks
            place += len(data)
