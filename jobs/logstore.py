"""The bytes of runs' logs: segments in `STORAGES["logs"]`, raw or packed (`jobs.packing`), the newest in the tail.

Offsets count bytes of one generation of a run's log; `Run.log_generation` says which one stands. Log text is never
in the database. Segments are written on the run's node and read everywhere.
"""

import contextlib
import gzip
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import transaction
from django.db.models import F

from jobs import logmarks, packing, tail
from jobs.models import LogSegment, Run

READ_CHUNK = 1 << 20
EXPIRED = "EXPIRED"  # a hole that is the whole log: LOG_DAYS are over, or its owner has more than LOG_USER_BYTES
_TRIES = 3  # a segment may take the place of tail bytes between two looks
_PAUSES = (0.1, 0.4, 1.5)  # seconds; a node that has come back lays its tail out anew


class _Whole(ContentFile):  # type: ignore[type-arg]  # it takes none when it runs
    """Handed to the storage in one piece."""

    DEFAULT_CHUNK_SIZE = 1 << 30


def _storage() -> Storage:
    return storages["logs"]


def size(run: Run) -> int:
    """How many bytes of the run's log can be read now, of the generation that `run` says."""
    if run.log_complete:
        return run.log_bytes
    return max(stored_end(run.pk, run.log_generation), tail.end(run.pk, run.log_generation) or 0)


def stored_end(run_id: int, generation: int) -> int:
    """Where the segments of a run's generation end; 0 without any."""
    last = LogSegment.objects.filter(run=run_id, generation=generation).defer("marks").order_by("-offset").first()
    return last.offset + last.length if last else 0


def read(run: Run, start: int, end: int) -> bytes:
    """The bytes [start, end) of the log; fewer, from `start` on, when there are no more, or for now."""
    parts: list[bytes] = []
    for look in range(_TRIES):
        before = start
        for part in _stored(run, start, end):
            parts.append(part)
            start += len(part)
        if start < end and not run.log_complete:
            parts.append(tail.read(run.pk, run.log_generation, start, end))
            start += len(parts[-1])
        if start >= end or (look and start == before):
            break  # a first look may find nothing in either place: the segment was cut, or packed, between the two
    return b"".join(parts)


@dataclass(frozen=True)
class Window:
    """Some bytes of a log from `start` on, and how many there are in all, so far."""

    start: int
    size: int
    data: bytes


def window(run: Run, start: int, end: int | None, most: int) -> Window:
    """The bytes [start, end) of the log, at most `most`; a negative start counts from the end of what there is."""
    there = size(run)
    first = max(there + start, 0) if start < 0 else min(start, there)
    last = min(there if end is None else end, there, first + most)
    return Window(first, there, read(run, first, last) if last > first else b"")


def stream(run: Run, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes [start, end) of the log, or all as it is at the first step, in pieces of at most READ_CHUNK bytes."""
    at, end = start, size(run) if end is None else end
    while at < end:
        data = _promised(run, at, min(at + READ_CHUNK, end))
        if not data:
            return
        yield data
        at += len(data)


def _promised(run: Run, start: int, end: int) -> bytes:
    """As `read`, of bytes that were counted already: where none is there, they are looked for again before long.

    Also in a newer generation, if the log was mended meanwhile, which changes `run`.
    """
    for pause in _PAUSES:
        if data := read(run, start, end):
            return data
        time.sleep(pause)
        try:
            run.refresh_from_db(fields=("log_generation", "log_complete", "log_bytes"))
        except Run.DoesNotExist:  # deleted meanwhile: nobody has its bytes
            return b""
    return read(run, start, end)


def stream_packed(run: Run, start: int, end: int) -> Iterator[bytes]:
    """The same as a gzip file: what rests packed goes out as it is, the rest is packed quickly."""
    at = start
    while at < end:
        segment = _segment_at(run, at)
        stop = min(end, segment.offset + segment.length) if segment else end
        if segment and segment.packed and segment.offset == at and stop - at == segment.length:
            with _storage().open(segment.name) as file:
                yield file.read()
            at = stop
            continue
        data = _promised(run, at, min(at + READ_CHUNK, stop))
        if not data:
            return
        yield gzip.compress(data, 1, mtime=0)
        at += len(data)


def marks_of(segment: LogSegment) -> logmarks.Marks:
    """When its bytes came, and by which stream."""
    if segment.marks is None:
        return logmarks.unknown(segment.offset)
    return logmarks.unpack(bytes(segment.marks), segment.offset)


def _segment_at(run: Run, offset: int) -> LogSegment | None:
    """The segment that holds this byte."""
    before = LogSegment.objects.filter(run=run.pk, generation=run.log_generation, offset__lte=offset)
    last = before.defer("marks").order_by("-offset").first()
    return last if last and offset < last.offset + last.length else None


def _stored(run: Run, start: int, end: int) -> Iterator[bytes]:
    """What the segments hold of [start, end), without a gap from `start` on."""
    segments = LogSegment.objects.filter(run=run.pk, generation=run.log_generation, offset__lt=end).defer("marks")
    for segment in segments.filter(offset__gt=start - F("length")).order_by("offset"):
        if segment.offset > start:
            return
        try:
            data = _read_segment(segment, start - segment.offset, min(end - segment.offset, segment.length))
        except FileNotFoundError:
            return  # packed, or replaced by a newer generation, meanwhile
        yield data
        start += len(data)


def _read_segment(segment: LogSegment, start: int, stop: int) -> bytes:
    """Raw bytes of a segment, counted from its own beginning."""
    with _storage().open(segment.name) as file:
        if not segment.packed:
            file.seek(start)
            return bytes(file.read(stop - start))
        offset, length, skip = packing.place(segment.packed, start, stop)
        file.seek(offset)
        return packing.unpack(file.read(length), skip, stop - start)


def raw_bytes(run_id: int, generation: int, offset: int, length: int) -> bytes | None:
    """So many raw bytes of a generation, however they rest now; None when they are not all there any more."""
    data = b"".join(_stored(Run(pk=run_id, log_generation=generation), offset, offset + length))
    return data if len(data) == length else None


# --- for the node ---


def save(run_id: int, generation: int, offset: int, data: bytes | bytearray) -> LogSegment:
    """Put a segment into storage, durably. Its row, which makes it part of the log, is the caller's to save.

    The name follows from its place, so that a try that failed before the row leaves nothing behind for good.
    """
    name = f"{run_id // 1000:06d}/{run_id}/{generation}-{offset:014d}"
    storage = _storage()
    storage.delete(name)
    name = storage.save(name, _Whole(bytes(data)))
    _sync(storage, name)
    return LogSegment(run_id=run_id, generation=generation, offset=offset, length=len(data), name=name)


def pack(segments: Sequence[LogSegment]) -> None:
    """Let raw segments that follow one another rest packed, as one. Whoever reads them meanwhile finds all their bytes.

    Killed half-way, it leaves files that the next try, or nobody, reads.
    """
    raw = b"".join(_read_segment(segment, 0, segment.length) for segment in segments)
    data, sizes = packing.pack(raw)
    first, storage = segments[0], _storage()
    if len(segments) == 1 and not sizes:
        LogSegment.objects.filter(pk=first.pk, name=first.name, packed__isnull=True).update(packed=[])
        return
    name = first.name + (".gz" if sizes else ".whole")
    storage.delete(name)
    name = storage.save(name, _Whole(data))
    _sync(storage, name)
    kept = _replace(segments, name, sizes)
    delete_files([segment.name for segment in segments] if kept else [name])


def pass_over_missing(segments: Sequence[LogSegment]) -> list[str]:
    """Count those whose files are gone as packed, so that nobody tries again, and name the files."""
    missing = [segment for segment in segments if not _storage().exists(segment.name)]
    for segment in missing:
        LogSegment.objects.filter(pk=segment.pk, name=segment.name, packed__isnull=True).update(packed=[])
    return [segment.name for segment in missing]


def _replace(segments: Sequence[LogSegment], name: str, sizes: list[int]) -> bool:
    """Make one row of those of `segments`. False when they are not what they were."""
    first, others = segments[0], [segment.pk for segment in segments[1:]]
    counts = [segment.lines for segment in segments if segment.lines is not None]
    with transaction.atomic():
        rows = LogSegment.objects.select_for_update().filter(pk__in=[first.pk, *others], packed__isnull=True)
        if len(rows) < len(segments):
            return False
        rows.filter(pk__in=others).delete()
        rows.filter(pk=first.pk).update(
            name=name, packed=sizes, length=sum(segment.length for segment in segments),
            lines=sum(counts) if len(counts) == len(segments) else None, marks=_joined_marks(segments),
        )  # fmt: skip
    return True


def _joined_marks(segments: Sequence[LogSegment]) -> bytes | None:
    if all(segment.marks is None for segment in segments):
        return None
    marks = logmarks.Marks()
    for segment in segments:
        marks.extend(marks_of(segment))
    return logmarks.pack(marks, segments[0].offset)


def _sync(storage: Storage, name: str) -> None:
    """Durable before the row says so. A storage without paths is durable when it has answered."""
    try:
        path = Path(storage.path(name))
    except NotImplementedError:
        return
    for place in (path, path.parent, path.parent.parent):
        fd = os.open(place, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def delete_files(names: Iterable[str]) -> None:
    """Forget files whose rows are gone. One that can't be deleted is only waste."""
    for name in names:
        with contextlib.suppress(Exception):  # a log storage may raise whatever it likes
            _storage().delete(name)


def forget(segments: Iterable[LogSegment]) -> None:
    """Delete segments of logs that are kept no longer, files first; what is left of such a log reads as empty.

    Killed half-way, it leaves rows by which the rest is found again.
    """
    by_key = {segment.pk: segment for segment in segments}
    hole = {"stream": None, "offset": 0, "reason": EXPIRED}
    Run.objects.filter(segments__in=by_key).update(log_bytes=0, log_complete=True, log_holes=[hole])
    delete_files(segment.name for segment in by_key.values())
    LogSegment.objects.filter(pk__in=by_key).delete()


def is_expired(run: Run) -> bool:
    """Whether the log was there and is kept no longer."""
    return any(hole["reason"] == EXPIRED for hole in run.log_holes)


def segment_ends(run_id: int, generation: int) -> list[int]:
    """The offset behind each segment of a generation, in order."""
    rows = LogSegment.objects.filter(run=run_id, generation=generation).order_by("offset")
    return [offset + length for offset, length in rows.values_list("offset", "length")]
