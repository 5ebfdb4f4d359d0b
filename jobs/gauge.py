"""How far a run says that it is, and what it measures: read from its output as it is shipped, written to its row.

The cost is bounded: of a flood only the end of each second's output is read.
"""

import logging
import re
import time
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from jobs.metrics import MetricsFinder
from jobs.models import Run, RunMetrics
from jobs.progress import Progress, ProgressFinder
from portal import live

log = logging.getLogger(__name__)

BYTES_A_SECOND = 64 * 1024  # of a run's output are looked at
LONGEST_LINE = 2048  # a longer one is no word about progress
LISTS_PERIOD = 10.0  # seconds between two words to the lists of jobs, of this whole node
_ENDS = re.compile(rb"[\r\n]+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
_lists = {"told": 0.0}


class Gauge:
    """One run's. Used by the ship thread, and at the end by who finishes the run."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self._progress = ProgressFinder()
        self._metrics = MetricsFinder()
        self._rest = b""  # the beginning of a line
        self._skipping = False  # within a line of which the beginning was not read
        self._budget = float(BYTES_A_SECOND)
        self._filled_at = time.monotonic()
        self._job_id: int | None = None
        self._written: dict[str, Any] | None = None
        self._written_at = self._metrics_at = 0.0
        self._metrics_written = 0
        self._told = False  # something new since the last write

    def resume(self) -> None:
        """Take up what an earlier life of the agent wrote. Raises what the database raises."""
        run = Run.objects.select_related("metrics").get(pk=self.run_id)
        self._job_id, self._written = run.job_id, run.output_progress
        if hasattr(run, "metrics"):
            self._metrics.restore(run.metrics.series)

    def take(self, data: bytes) -> None:
        """The next bytes of the output, or the end of them when there are too many."""
        room = self._room()
        if len(data) > room:
            data, self._rest, self._skipping = data[len(data) - room :], b"", True
        self._budget -= len(data)
        *lines, rest = _ENDS.split(self._rest + data)
        self._rest = rest[:LONGEST_LINE]
        at = time.time()
        for line in lines[1:] if self._skipping and lines else lines:
            if line and len(line) <= LONGEST_LINE:
                self._read(line, at)
        self._skipping = self._skipping and not lines

    def _room(self) -> int:
        now = time.monotonic()
        self._budget = min(self._budget + (now - self._filled_at) * BYTES_A_SECOND, BYTES_A_SECOND)
        self._filled_at = now
        return int(self._budget)

    def _read(self, raw: bytes, at: float) -> None:
        line = _ESCAPES.sub("", raw.decode("utf-8", "replace")).strip("\x00 \t")
        self._told = self._progress.feed(line, at) or self._told
        self._metrics.feed(line, at)

    @property
    def wait(self) -> float | None:
        """In how many seconds there is something to write; None: nothing."""
        now = time.monotonic()
        due = [self._written_at + settings.PROGRESS_PERIOD] if self._told else []
        if self._metrics.changes != self._metrics_written:
            due.append(self._metrics_at + settings.METRICS_PERIOD)
        return max(min(due) - now, 0) if due else None

    def write(self, *, last: bool = False) -> None:
        """Write what is new, no more often than the settings say, or now for the last time. Never raises."""
        try:
            now = time.monotonic()
            if self._told and (last or now >= self._written_at + settings.PROGRESS_PERIOD):
                self._write_progress(now)
            if self._metrics.changes != self._metrics_written and (
                last or now >= self._metrics_at + settings.METRICS_PERIOD
            ):
                self._write_metrics(now)
        except DatabaseError as error:
            log.warning("the progress of run %s can't be written for now: %s", self.run_id, error)

    def _write_progress(self, now: float) -> None:
        self._told, self._written_at = False, now
        found = self._progress.progress()
        row = _row(found) if found else None
        if row == self._written:
            return
        Run.objects.filter(pk=self.run_id).update(output_progress=row)
        self._written = row
        self._announce(now)

    def _write_metrics(self, now: float) -> None:
        self._metrics_written, self._metrics_at = self._metrics.changes, now
        series = self._metrics.as_json()
        if series:
            RunMetrics.objects.update_or_create(run_id=self.run_id, defaults={"series": series})

    def _announce(self, now: float) -> None:
        """To the job's own page each time, to the lists seldom: every list would be made anew."""
        if self._job_id is None:
            return
        live.publish(live.job_topic(self._job_id), {"job": self._job_id})
        if now >= _lists["told"] + LISTS_PERIOD:
            _lists["told"] = now
            live.publish(live.JOBS, {"job": self._job_id})


def _row(found: Progress) -> dict[str, Any]:
    """As `Run.output_progress` keeps it."""
    return {
        "fraction": round(found.fraction, 4), "label": found.label, "done": found.done, "total": found.total,
        "left": None if found.left is None else round(found.left, 1), "at": round(found.at, 1),
    }  # fmt: skip
