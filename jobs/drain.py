"""The thread that reads output that comes over TLS into its spool; all other is moved by `jobs.pump`.

A container whose output nobody reads stands still. So this knows no database, no Redis and no engine call, and
shares no lock with code that does. With a full disk it keeps what it has and its descriptors, and goes on later.
"""

import contextlib
import logging
import os
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jobs.spool import Piece, PieceWriter, Spool

log = logging.getLogger(__name__)

_BUFFER = 1 << 18  # more than a record of TLS, so that none is left half-read
_RETRY = 1.0  # seconds until a full disk is tried again


@dataclass(eq=False)
class Intake:
    """One attach and the piece that it fills. `closed` is set when no more will be written."""

    run_id: int
    spool: Spool
    piece: Piece
    stuck: str = field(default="", kw_only=True)  # why nothing can be written at the moment
    closed: threading.Event = field(default_factory=threading.Event, kw_only=True)


@dataclass(eq=False)
class SocketIntake(Intake):
    """One that the drain reads."""

    sock: socket.socket
    writer: PieceWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = PieceWriter(self.spool, self.piece)


class Drain(threading.Thread):
    """Calls `on_data(run_id)` after each write and `on_end(run_id)` when a stream has ended; both must not wait."""

    def __init__(self, on_data: Callable[[int], None], on_end: Callable[[int], None]) -> None:
        super().__init__(name="drain", daemon=True)
        self._on_data, self._on_end = on_data, on_end
        self._selector = selectors.DefaultSelector()
        self._orders: deque[tuple[str, SocketIntake | None]] = deque()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._stuck: set[SocketIntake] = set()
        self._buffer = memoryview(bytearray(_BUFFER))

    def add(self, intake: SocketIntake) -> None:
        """Read this socket from now on."""
        intake.sock.setblocking(False)
        self._order("add", intake)

    def remove(self, intake: SocketIntake) -> None:
        """Stop reading a socket that did not end; `intake.closed` tells when."""
        self._order("remove", intake)

    def stop(self) -> None:
        """End the thread, closing every socket."""
        self._order("stop", None)

    def _order(self, verb: str, intake: SocketIntake | None) -> None:
        self._orders.append((verb, intake))
        with contextlib.suppress(OSError):  # full of wakes already, or stopped
            os.write(self._wake_in, b".")

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(_RETRY if self._stuck else None):
                if key.data is not None:
                    self._read(key.data)
                else:
                    os.read(self._wake_out, 4096)
            if not self._obey():
                return
            for intake in list(self._stuck):
                self._retry(intake)

    def _obey(self) -> bool:
        """Carry out the orders that came. False when it is to stop."""
        while self._orders:
            verb, intake = self._orders.popleft()
            if intake is None:
                self._close_all()
                return False
            if verb == "add":
                self._selector.register(intake.sock, selectors.EVENT_READ, intake)
                self._read(intake)  # TLS may hold output that came with the answer to the attach, and tells no selector
            elif not intake.closed.is_set():
                self._close(intake)
        return True

    def _read(self, intake: SocketIntake) -> None:
        """Move one buffer from the socket to the spool."""
        try:
            count = intake.sock.recv_into(self._buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            log.warning("the output of run %s broke off: %s", intake.run_id, error)
            self._end(intake)
            return
        if not count:
            intake.piece.saw_end = True
            self._end(intake)
            return
        try:
            intake.writer.write(self._buffer[:count])
        except OSError as error:
            self._hold(intake, error)
        self._on_data(intake.run_id)

    def _end(self, intake: SocketIntake) -> None:
        self._close(intake)
        self._on_end(intake.run_id)

    def _hold(self, intake: SocketIntake, error: OSError) -> None:
        """Read no more from a socket until what came from it can be written."""
        intake.stuck = error.strerror or str(error)
        log.error("the output of run %s can't be written and waits: %s", intake.run_id, intake.stuck)
        self._selector.unregister(intake.sock)
        self._stuck.add(intake)

    def _retry(self, intake: SocketIntake) -> None:
        try:
            intake.writer.retry()
        except OSError as error:
            intake.stuck = error.strerror or str(error)
            return
        log.info("the output of run %s is written again", intake.run_id)
        intake.stuck = ""
        self._stuck.discard(intake)
        self._selector.register(intake.sock, selectors.EVENT_READ, intake)
        self._on_data(intake.run_id)

    def _close(self, intake: SocketIntake) -> None:
        if intake in self._stuck:
            self._stuck.discard(intake)
        else:
            self._selector.unregister(intake.sock)
        intake.sock.close()
        intake.writer.close()
        intake.closed.set()

    def _close_all(self) -> None:
        intakes = [key.data for key in self._selector.get_map().values() if key.data is not None]
        for intake in [*intakes, *self._stuck]:
            self._close(intake)
        self._selector.close()
        os.close(self._wake_out)
        os.close(self._wake_in)
