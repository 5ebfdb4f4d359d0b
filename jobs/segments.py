"""Writes the segments of a run's log, and calls it complete in the end."""

import logging
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import transaction

from jobs import logmarks, logstore
from jobs.models import LogSegment, Run
from portal import live

FLOOD = 4  # so many times LOG_SEGMENT_BYTES make one segment when they are there at once: few files, few syncs

log = logging.getLogger(__name__)


class SegmentWriter:
    """Collects bytes and makes a segment of every LOG_SEGMENT_BYTES, or a larger one of a flood.

    Offsets are those of one generation.

    Segments of a generation above `Run.log_generation` are nobody's to read until `complete` makes it the run's.
    """

    def __init__(self, run_id: int, generation: int, stored: int = 0) -> None:
        self.run_id = run_id
        self.generation = generation
        self.stored = stored  # all before this offset is in segments
        self.pending = bytearray()
        self.marks = logmarks.Marks()  # of what is pending; whoever writes notes them first
        self._in_doubt = False  # the last try failed: its row may be there all the same

    @property
    def end(self) -> int:
        return self.stored + len(self.pending)

    @property
    def room(self) -> int:
        """How many bytes the segment in the making still takes."""
        return int(settings.LOG_SEGMENT_BYTES) - len(self.pending)

    @property
    def flood_room(self) -> int:
        """The same for a flood."""
        return FLOOD * int(settings.LOG_SEGMENT_BYTES) - len(self.pending)

    def write(self, data: bytes) -> None:
        """Add any number of bytes, storing each segment that is full."""
        while data:
            part, data = data[: self.room], data[self.room :]
            self.pending += part
            if self.room <= 0:
                self.cut()

    def cut(self) -> None:
        """Store what is pending as a segment. When it fails, it is still pending."""
        self._pass_over_stored()
        if self.pending:
            self._in_doubt = True
            segment = self._segment()
            segment.save(force_insert=True)
            self._pass(segment)

    def _pass_over_stored(self) -> None:
        """Take what a failed try stored as stored: only the database's answer to it was lost.

        Before its file is written anew, which is part of the log then. More may be pending by now, never less.
        """
        if not self._in_doubt:
            return
        rows = LogSegment.objects.filter(run=self.run_id, generation=self.generation, offset=self.stored)
        if stored := rows.filter(length__lte=len(self.pending)).first():
            self._pass(stored)

    def _segment(self) -> LogSegment:
        """What is pending, in storage; its row is not saved yet."""
        segment = logstore.save(self.run_id, self.generation, self.stored, self.pending)
        segment.lines = self.pending.count(b"\n")
        if self.marks.times or self.marks.streams:
            segment.marks = logmarks.pack(self.marks.between(self.stored, self.end), self.stored)
        return segment

    def _pass(self, segment: LogSegment) -> None:
        self.stored += segment.length
        del self.pending[: segment.length]
        self._in_doubt = False
        self.marks.forget_before(self.stored)

    def complete(self, *, dropped: int, holes: Iterable[dict[str, Any]] = (), base: int | None = None) -> None:
        """Store what is pending and call the log complete, with all the facts about it, in one transaction.

        With `base`, this generation takes over the older one's segments before that offset and replaces the rest.
        """
        self._pass_over_stored()
        last = self._segment() if self.pending else None
        replaced: list[str] = []
        with transaction.atomic():
            if last:
                last.save(force_insert=True)
            if base is not None:
                replaced = self._take_over(base)
            Run.objects.filter(pk=self.run_id).update(
                log_generation=self.generation, log_bytes=self.end, log_complete=True, log_dropped_bytes=dropped,
                log_holes=list(holes),
            )  # fmt: skip
        if last:
            self._pass(last)
        logstore.delete_files(replaced)
        news = {"generation": self.generation, "end": self.stored, "complete": True}
        live.publish(live.log_topic(self.run_id), news)

    def _take_over(self, base: int) -> list[str]:
        """Make the older generation's segments before `base` ours; drop its others and return their files."""
        older = LogSegment.objects.filter(run=self.run_id, generation__lt=self.generation)
        older.filter(offset__lt=base).update(generation=self.generation)
        names = list(older.values_list("name", flat=True))
        older.delete()
        return names
