"""Where in a log a line or a time is, and what is known of a stretch of it: from what is kept beside the segments."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import F, Max, QuerySet, Sum

from jobs import logmarks, logstore, tail
from jobs.logmarks import UNKNOWN, Mark, Marks
from jobs.models import LogSegment, Run

CHUNK = 1 << 20


@dataclass(frozen=True)
class Notes:
    """What is known of [start, end): the newlines before it, and its marks (None: unknown)."""

    start: int
    end: int
    line: int
    times: list[tuple[int, int | None]]
    streams: list[tuple[int, int | None]]


def notes(run: Run, start: int, end: int) -> Notes:
    """Of the bytes [start, end), as far as they are there."""
    end = max(start, min(end, logstore.size(run)))
    marks = Marks()
    for part in _marks(run, start, end):
        marks.extend(part)
    return Notes(start, end, line_of(run, start), _told(marks.times), _told(marks.streams))


def _told(marks: list[Mark]) -> list[tuple[int, int | None]]:
    """Without those that say again what holds already."""
    found: list[tuple[int, int | None]] = []
    for offset, value in marks:
        if not found or found[-1][1] != (value or None):
            found.append((offset, value or None))
    return found


def _marks(run: Run, start: int, end: int) -> Iterator[Marks]:
    """The marks of [start, end), by segment and then those of the tail."""
    at = start
    for segment in _segments(run).filter(offset__lt=end, offset__gt=start - F("length")):
        stop = min(segment.offset + segment.length, end)
        yield logstore.marks_of(segment).between(max(segment.offset, start), stop)
        at = stop
    for first, last, packed in tail.marks(run.pk, run.log_generation, at, end) if at < end else ():
        known = logmarks.unpack(packed, first) if packed else logmarks.unknown(first)
        yield known.between(max(first, at), min(last, end))


def _segments(run: Run) -> QuerySet[LogSegment]:
    return LogSegment.objects.filter(run=run.pk, generation=run.log_generation).order_by("offset")


# --- lines ---


def line_of(run: Run, offset: int) -> int:
    """How many newlines are before an offset."""
    whole = _segments(run).filter(offset__lte=offset - F("length"))
    _count_lines(run, whole.filter(lines=None))
    found = whole.aggregate(lines=Sum("lines"), end=Max(F("offset") + F("length")))
    return (found["lines"] or 0) + _newlines(run, found["end"] or 0, offset)


def offset_of_line(run: Run, line: int) -> int | None:
    """Where the line with so many newlines before it begins; None when the log has no such line."""
    if line <= 0:
        return 0
    _count_lines(run, _segments(run).filter(lines=None))
    before, at = 0, 0
    for offset, length, counted in _segments(run).values_list("offset", "length", "lines"):
        at, lines = offset, counted or 0
        if before + lines >= line:
            return _behind_newline(run, at, offset + length, line - before)
        before, at = before + lines, offset + length
    return _behind_newline(run, at, logstore.size(run), line - before)


def _count_lines(run: Run, segments: QuerySet[LogSegment]) -> None:
    """Those of an older version are counted when they are first asked for."""
    for pk, offset, length in segments.values_list("pk", "offset", "length"):
        LogSegment.objects.filter(pk=pk).update(lines=_newlines(run, offset, offset + length))


def _newlines(run: Run, start: int, end: int) -> int:
    return sum(data.count(b"\n") for _, data in _pieces(run, start, end))


def _pieces(run: Run, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What can be read of [start, end), with offsets."""
    while start < end and (data := logstore.read(run, start, min(start + CHUNK, end))):
        yield start, data
        start += len(data)


def _behind_newline(run: Run, start: int, end: int, number: int) -> int | None:
    """The offset behind the newline of this number, from 1, in [start, end)."""
    for at, data in _pieces(run, start, end):
        there = data.count(b"\n")
        if there >= number:
            return at + _nth(data, number) + 1
        number -= there
    return None


def _nth(data: bytes, number: int) -> int:
    """Where the newline of this number, from 1, is."""
    at = -1
    for _ in range(number):
        at = data.index(b"\n", at + 1)
    return at


# --- times ---


def offset_of_time(run: Run, second: float) -> int | None:
    """Where what came at a time, or else next after it, begins; None when no times were recorded from there on.

    A segment is stored after its last byte came: those stored before that time need not be looked at.
    """
    stored = datetime.fromtimestamp(second, UTC)
    for segment in _segments(run).filter(created_at__gte=stored).iterator():
        times = logstore.marks_of(segment).times
        if all(time == UNKNOWN for _, time in times):
            continue
        found = _first_at(times, second)
        if found is not None:
            return found
    return _in_tail(run, second)


def _first_at(times: list[Mark], second: float) -> int | None:
    place = bisect.bisect_left(times, int(second), key=lambda mark: mark[1])
    return times[place][0] if place < len(times) else None


def _in_tail(run: Run, second: float) -> int | None:
    """What is later than all segments: in the tail, or behind its end."""
    times = [mark for mark in notes(run, logstore.stored_end(run.pk, run.log_generation), 1 << 62).times if mark[1]]
    found = _first_at([(offset, time or UNKNOWN) for offset, time in times], second)
    if found is not None:
        return found
    has_times = bool(times) or _segments(run).filter(marks__isnull=False).exists()
    return logstore.size(run) if has_times else None
