"""From the spool to everybody: segments into log storage, the newest bytes into the tail, news to browsers.

The spool is the truth on the way. Database, storage or Redis may fail at any step: the step is tried again, from
memory of at most one segment a run, and nothing is read on before.
"""

import logging
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection

from jobs import logmarks, logstore, tail
from jobs.gauge import Gauge
from jobs.models import Run
from jobs.segments import SegmentWriter
from jobs.spool import MergedReader, Spool
from portal import live, logs

log = logging.getLogger(__name__)

EXPECTED = (DatabaseError, OSError)
NEWS_PERIOD = 0.1  # seconds between two announcements of a run
_RETRY = 1.0  # seconds after a failure
_SEGMENTS_A_TURN = 2  # then other runs have theirs
_DROPPED_PERIOD = 5.0  # seconds between two notes of how much is not kept


class Shipment:
    """One run's way from its spool: what the reader has read is in segments, or pending in `out`, and in the tail.

    `lock` is held for each step: by the ship thread, and from the end on by who finishes the run.
    """

    def __init__(self, run_id: int, spool: Spool) -> None:
        self.run_id = run_id
        self.spool = spool
        self.lock = threading.Lock()
        self.reader = MergedReader(spool)
        self.out = SegmentWriter(run_id, 0)
        self.gauge = Gauge(run_id)
        self.reached = True  # False: the spool ends before the segments do; it lost bytes with the host's power
        self._resumed = False
        self._pending_since = 0.0
        self._pushed = 0  # all before this offset is in segments or in the tail
        self._entries = 0  # of the tail, since the last segment
        self._announced = 0
        self._dropped = 0
        self._dropped_at = 0.0
        self._level_at = time.monotonic()  # when all that was captured was shipped, at the latest
        self._is_level = False  # nothing was captured since

    @property
    def behind(self) -> tuple[int, float]:
        """How many captured bytes nobody can read yet, and for how many seconds there have been some."""
        count = max(self.spool.kept - self._pushed, 0)
        return count, time.monotonic() - self._level_at if count else 0.0

    def note_output(self) -> None:
        """Something was captured: it waits since now, however long ago the last output was."""
        if self._is_level:
            self._level_at, self._is_level = time.monotonic(), False

    def resume(self) -> None:
        """Go on behind the last segment of an earlier life; what was in the tail is put there anew."""
        if self._resumed:
            return
        generation = Run.objects.values_list("log_generation", flat=True).get(pk=self.run_id)
        stored = logstore.stored_end(self.run_id, generation)
        self.out = SegmentWriter(self.run_id, generation, stored)
        self.out.marks = self.reader.marks
        self.reached = self.reader.skip_to(stored)
        self.reader.marks.forget_before(stored)
        self._pushed = self._announced = stored
        self.gauge.resume()
        self.drop_tail()
        self._resumed = True

    def step(self) -> float | None:
        """Ship what is there. Returns in how many seconds to come again without being called; None: not at all.

        Raises whatever database and storage raise; what was read stays pending, and the next step tries it again.
        """
        self.resume()
        try:
            more = self._ship_segments()
            if self.out.pending and time.monotonic() >= self._pending_since + settings.LOG_SEGMENT_PERIOD:
                self._cut()
            self._note_dropped()
        finally:
            self._push()
            self._announce()
            self.gauge.write()
        if more:
            return 0
        if self._pushed < self.out.end:
            return _RETRY
        self._level_at, self._is_level = time.monotonic(), True
        waits = [] if self.gauge.wait is None else [self.gauge.wait]
        if self.out.pending:
            waits.append(self._pending_since + settings.LOG_SEGMENT_PERIOD - time.monotonic())
        return max(min(waits), NEWS_PERIOD) if waits else None

    def ship_rest(self) -> None:
        """Read the spool to its end, storing full segments. Nobody writes to it any more."""
        self.resume()
        while self._fill():
            self._cut()
        self.gauge.write(last=True)

    def _ship_segments(self) -> bool:
        """Read on and store each full segment. Returns whether there may be more to read."""
        for _ in range(_SEGMENTS_A_TURN):
            if not self._fill():
                return False
            self._cut()
        return True

    def _fill(self) -> bool:
        """Read until a segment is full, and on to that of a flood while there is more. Returns whether it is full."""
        while self.out.flood_room > 0:
            asked = self.out.room if self.out.room > 0 else min(self.out.flood_room, settings.LOG_SEGMENT_BYTES)
            data = self.reader.read(asked)
            if data and not self.out.pending:
                self._pending_since = time.monotonic()
            self.out.pending += data
            self.gauge.take(data)
            if len(data) < asked:
                break
        return self.out.room <= 0

    def _cut(self) -> None:
        """Make a segment of what is pending; the tail need not hold it any more."""
        self.out.cut()
        if self._entries:
            self._quietly(lambda: tail.trim(self.run_id, self.out.generation, self.out.stored))
        self._entries = 0
        self._pushed = self.out.stored

    def _push(self) -> None:
        """Put what is pending and new into the tail. When the tail has lost its beginning, a segment replaces it."""
        self._pushed = max(self._pushed, self.out.stored)  # a cut may store some of what is pending, and fail then
        fresh = self.out.pending[self._pushed - self.out.stored :]
        if not fresh:
            return
        try:
            marks = logmarks.pack(self.out.marks.between(self._pushed, self.out.end), self._pushed)
            tail.push(self.run_id, self.out.generation, self.out.end, fresh, marks, entries=self._entries + 1)
        except tail.OutOfStep as error:
            log.info("the tail of run %s has lost its beginning: %s", self.run_id, error)
            self.drop_tail()
            self._pushed, self._entries, self._pending_since = self.out.stored, 0, 0.0  # due for a segment
        except tail.Lost as error:
            log.info("the tail of run %s can't be written: %s", self.run_id, error)
        else:
            self._pushed = self.out.end
            self._entries += 1

    def _announce(self) -> None:
        if self._pushed != self._announced and not tail.is_resting():
            self._announced = self._pushed
            live.publish(live.log_topic(self.run_id), {"generation": self.out.generation, "end": self._pushed})

    def _note_dropped(self) -> None:
        dropped, now = self.spool.dropped, time.monotonic()
        if dropped != self._dropped and now >= self._dropped_at + _DROPPED_PERIOD:
            Run.objects.filter(pk=self.run_id).update(log_dropped_bytes=dropped)
            self._dropped, self._dropped_at = dropped, now

    def drop_tail(self) -> None:
        self._quietly(lambda: tail.drop(self.run_id, self.out.generation))

    @staticmethod
    def _quietly(act: Callable[[], None]) -> None:
        try:
            act()
        except tail.Lost as error:
            log.info("the tail can't be tidied: %s", error)

    def close(self) -> None:
        self.reader.close()


class Shipper(threading.Thread):
    """Steps every shipment that has something to ship: at once, then at most once in NEWS_PERIOD."""

    def __init__(self) -> None:
        super().__init__(name="ship", daemon=True)
        self._shipments: dict[int, Shipment] = {}
        self._dirty: set[int] = set()
        self._due: dict[int, float] = {}
        self._stepped: dict[int, float] = {}
        self._wake = threading.Event()
        self._stopping = False

    def add(self, shipment: Shipment) -> None:
        self._shipments[shipment.run_id] = shipment
        self.touch(shipment.run_id)

    def remove(self, run_id: int) -> None:
        self._shipments.pop(run_id, None)
        self._stepped.pop(run_id, None)

    def touch(self, run_id: int) -> None:
        """There are new bytes. Called by the drain: waits for nothing."""
        if run_id not in self._dirty:
            if shipment := self._shipments.get(run_id):
                shipment.note_output()
            self._dirty.add(run_id)
            self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._seconds_to_next())
            self._wake.clear()
            self._note_dirty()
            now = time.monotonic()
            for run_id in [run_id for run_id, due in self._due.items() if due <= now]:
                del self._due[run_id]
                self._step(run_id)
        connection.close()

    def _seconds_to_next(self) -> float | None:
        return max(min(self._due.values()) - time.monotonic(), 0) if self._due else None

    def _note_dirty(self) -> None:
        while self._dirty:
            run_id = self._dirty.pop()
            self._come_again(run_id, self._stepped.get(run_id, 0) + NEWS_PERIOD)

    def _come_again(self, run_id: int, at: float) -> None:
        self._due[run_id] = min(at, self._due.get(run_id, at))

    def _step(self, run_id: int) -> None:
        with logs.about(run=run_id):
            self._step_of(run_id)

    def _step_of(self, run_id: int) -> None:
        shipment = self._shipments.get(run_id)
        if shipment is None:
            return
        now = self._stepped[run_id] = time.monotonic()
        if not shipment.lock.acquire(blocking=False):
            return  # whoever finishes the run ships the rest
        try:
            close_old_connections()
            wait = shipment.step()
        except Exception as error:  # a log storage may raise whatever it likes; the thread must go on
            log.warning("run %s can't be shipped for now: %s", run_id, error, exc_info=not isinstance(error, EXPECTED))
            connection.close()
            wait = _RETRY
        finally:
            shipment.lock.release()
        if wait is not None:
            self._come_again(run_id, now + wait)
