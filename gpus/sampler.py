"""The parent's side of the NVML process: asks it for readings, and notices when it is silent or dead.

It needs no thread of its own and belongs to one thread: the kernel ends the child with the thread that made it.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpus.readings import HostReading, Status, decode

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parent.parent
# All in periods:
_SILENT = 3  # without an answer for so long the library hangs
_FIRST = 30  # the first answer may take so long: without a persistence daemon the driver starts slowly
_BACKOFF = (1, 2, 5, 15, 60)  # between restarts that bring no answer


class Sampler:
    """At most one child process. Status `hung` or `error` from the moment it fails until it answers again."""

    def __init__(self, node: str, period: float) -> None:
        self.node = node
        self.period = period
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._asked_at: float | None = None
        self._answered = False  # this child, ever
        self._failures = 0  # since the last answer
        self._not_before = 0.0
        self._trouble: tuple[Status, str] | None = None

    def read(self) -> HostReading | None:
        """One reading. Takes a period at most; None while a fresh answer is still awaited and nothing is wrong yet."""
        if not self._is_running() and not self._start():
            return self._troubled()
        self._ask()
        line = self._line(time.monotonic() + self.period)
        reading = self._parsed(line) if line else None
        if reading is not None:
            self._asked_at, self._trouble, self._answered, self._failures = None, None, True, 0
            return reading if self._is_fresh(reading) else None
        self._look_after()
        return self._troubled()

    def close(self) -> None:
        """End the child. Waits for it a moment only: a process that hangs in the driver can't be ended."""
        self._kill()
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=1)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child is not None else None

    def _is_running(self) -> bool:
        return self._child is not None and self._child.stdin is not None and not self._child.stdin.closed

    def _start(self) -> bool:
        """A new child, unless it is too early or the old one is still there: children never pile up."""
        if time.monotonic() < self._not_before or (self._child is not None and self._child.poll() is None):
            return False
        command = [sys.executable, "-m", "gpus.sampler_child", self.node, str(os.getpid())]
        try:
            self._child = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            self._fail("error", str(error))
            return False
        self._buffer, self._asked_at, self._answered = b"", None, False
        return True

    def _ask(self) -> None:
        """Ask once per answer: a child that is slow is not asked again."""
        if self._asked_at is None and self._child is not None and self._child.stdin is not None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(OSError):  # its end is noticed by its silent output
                os.write(self._child.stdin.fileno(), b"s")

    def _line(self, until: float) -> bytes:
        """The next whole line of the child's output, or nothing by `until` or at its end."""
        assert self._child is not None
        assert self._child.stdout is not None
        out = self._child.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([out], [], [], max(until - time.monotonic(), 0))
            data = os.read(out, 1 << 20) if ready else b""
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _parsed(self, line: bytes) -> HostReading | None:
        try:
            return decode(line)
        except ValueError:
            log.warning("the GPU telemetry process wrote what is no reading: %.200r", line)
            self._fail("error", "unreadable answer")
            return None

    def _is_fresh(self, reading: HostReading) -> bool:
        """False when the reader was busy elsewhere while the answer lay in the pipe."""
        return abs(time.time() - reading.at) < _SILENT * self.period

    def _look_after(self) -> None:
        """No answer within this period: has the child ended, or been silent for too long?"""
        if not self._is_running() or self._child is None or self._asked_at is None:
            return
        limit = self.period * (_SILENT if self._answered else _FIRST)
        if self._ended(self._child):
            self._fail("error", _ending(self._child.returncode))
        elif time.monotonic() - self._asked_at >= limit:
            self._fail("hung", f"no answer for {limit:g} s")

    def _ended(self, child: subprocess.Popen[bytes]) -> bool:
        """Whether the child is gone; one that only closed its output is given a moment to go."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=0.01) is not None
        return False

    def _fail(self, status: Status, message: str) -> None:
        self._kill()
        if self._trouble != (status, message):
            log.warning("GPU telemetry: %s (%s)", status, message)
        self._trouble = (status, message)
        wait = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)] * self.period
        self._failures += 1
        self._not_before = time.monotonic() + wait

    def _kill(self) -> None:
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _troubled(self) -> HostReading | None:
        if self._trouble is None:
            return None
        status, message = self._trouble
        return HostReading(node=self.node, at=time.time(), status=status, message=message)


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the telemetry process was ended by {signal.Signals(-code).name}"
    return f"the telemetry process ended with status {code}"
