"""The agent's line to the pump (`jobs.pump`): hands sockets over, keeps duplicates, and starts a pump where none lives.

To the rest of the agent it is what `jobs.drain.Drain` is.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import pump
from jobs.drain import Intake

log = logging.getLogger(__name__)

STARTING = 20.0  # seconds in which a pump must answer
_AGAIN = 0.05
_TOLD = ("held", "closed", "stuck")  # words that say all of a stream's state


class NoPump(OSError):
    """None answers, and none can be started."""


@dataclass(eq=False)
class PumpIntake(Intake):
    """One that the pump moves. `fds` are our duplicates: the socket, and the pipe's read and write end."""

    fds: list[int]


@dataclass
class Taken:
    """What a pump held when we came: its word on the run, see `pump.Held.state`, and our duplicates."""

    state: pump.Message
    fds: list[int]


@dataclass
class Found:
    """All that a pump held; `life` is the number of the engine's life and the connection that proves it."""

    runs: list[Taken] = field(default_factory=list)
    life: tuple[int, int] | None = None


class PumpLink(threading.Thread):
    """Calls `on_data(run_id)` when bytes have come and `on_end(run_id)` when a stream has ended; both must not wait."""

    def __init__(self, root: Path, on_data: Callable[[int], None], on_end: Callable[[int], None]) -> None:
        super().__init__(name="pump", daemon=True)
        self._root = root
        self._on_data, self._on_end = on_data, on_end
        self._lock = threading.RLock()  # of sending, and of the two below
        self._intakes: dict[int, PumpIntake] = {}
        self._life: tuple[int, int] | None = None
        self._sock: socket.socket | None = None
        self._stopping = False

    def connect(self) -> Found:
        """Find the pump, or start one; what it holds. Before `start`. Raises NoPump."""
        self._sock, found = self._reach()
        self._life = found.life
        return found

    def take(self, intake: PumpIntake) -> None:
        """The intake of something that `connect` found."""
        self._intakes[intake.run_id] = intake

    def add(self, intake: PumpIntake) -> None:
        """Have this socket read from now on."""
        with self._lock:
            self._intakes[intake.run_id] = intake
            self._hand_over(intake)

    def remove(self, intake: PumpIntake) -> None:
        """Stop reading a socket that did not end; `intake.closed` tells when."""
        self._send({"do": "remove", "run": intake.run_id})

    def forget(self, run_id: int) -> None:
        """The run's spool goes."""
        with self._lock:
            intake = self._intakes.pop(run_id, None)
            self._send({"do": "forget", "run": run_id})
        if intake:
            _close(intake)

    def keep_life(self, number: int, fd: int) -> None:
        """Have the connection kept that tells whether the engine has lived through; see `containers_logs.Lifetime`."""
        with self._lock:
            if self._life and self._life[0] == number:
                return
            if self._life:
                os.close(self._life[1])
            self._life = number, os.dup(fd)
            self._send({"do": "life", "number": number}, [self._life[1]])

    def stop(self) -> None:
        """End the thread. The pump goes on."""
        self._stopping = True
        with self._lock:
            if self._sock:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    # --- the thread ---

    def run(self) -> None:
        assert self._sock
        while not self._stopping:
            try:
                message, fds = pump.receive(self._sock)
                for fd in fds:
                    os.close(fd)
                self._hear(message)
            except (OSError, EOFError, ValueError) as error:
                if not self._stopping:
                    log.warning("the log pump is gone (%s): starting another", error or type(error).__name__)
                    self._revive()
        self._leave()

    def _hear(self, message: pump.Message) -> None:
        intake = self._intakes.get(int(message.get("run", 0)))
        if intake is None:
            return
        if message["is"] == "data":
            intake.spool.dropped = int(message["dropped"])
            if message.get("piece") == intake.piece.path.name:  # a pump of an older version does not say either
                intake.spool.kept = int(message["kept"])
            self._on_data(intake.run_id)
        elif message["is"] in _TOLD and message["piece"] == intake.piece.path.name:
            self._note(intake, message)

    def _note(self, intake: PumpIntake, state: pump.Message) -> None:
        """What the pump says of a run: that it is stuck, or goes on, or is closed."""
        if state["stuck"] != intake.stuck:
            log.error("the output of run %s waits: %s", intake.run_id, state["stuck"] or "no more")
        apply(intake, state)
        if intake.closed.is_set():
            _close(intake)
            self._on_end(intake.run_id)
        else:
            self._on_data(intake.run_id)

    def _revive(self) -> None:
        """Another pump, with our descriptors: it goes on where the last one was killed."""
        with self._lock:
            while not self._stopping:
                try:
                    self._sock, _ = self._reach()
                    break
                except OSError as error:
                    log.error("no log pump: %s", error)
                    time.sleep(1)
            if self._life:
                self._send({"do": "life", "number": self._life[0]}, [self._life[1]])
            for intake in list(self._intakes.values()):
                if not intake.closed.is_set():
                    self._hand_over(intake)

    def _hand_over(self, intake: PumpIntake) -> None:
        order = {"do": "add", "run": intake.run_id, "piece": intake.piece.path.name, "limit": intake.spool.limit,
                 "life": intake.piece.engine_life}  # fmt: skip
        self._send(order, intake.fds)

    def _send(self, message: pump.Message, fds: list[int] | None = None) -> None:
        """A pump that dies meanwhile loses nothing: the next one is handed all anew."""
        with self._lock, contextlib.suppress(OSError):
            if self._sock:
                pump.send(self._sock, message, fds or [])

    def _leave(self) -> None:
        with self._lock:
            if self._sock:
                self._sock.close()
            for intake in self._intakes.values():
                _close(intake)
            if self._life:
                os.close(self._life[1])

    # --- finding it ---

    def _reach(self) -> tuple[socket.socket, Found]:
        end = time.monotonic() + STARTING
        started = False
        while True:
            with contextlib.suppress(OSError, EOFError):
                return self._try()
            if not started:
                self._start_pump()
                started = True
            if time.monotonic() > end:
                raise NoPump(f"no log pump answers in {self._root}")
            time.sleep(_AGAIN)

    def _try(self) -> tuple[socket.socket, Found]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(STARTING)
            with pump.short_path(self._root / "pump.sock") as path:
                sock.connect(path)
            found = _listen(sock)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return sock, found

    def _start_pump(self) -> None:
        """It becomes nobody's child at once, in a session of its own."""
        with (self._root / "pump.log").open("ab") as words:
            subprocess.run(
                [sys.executable, "-I", "-S", pump.__file__, str(self._root)], check=False, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=words, stderr=words, cwd="/",
            )  # fmt: skip


def _listen(sock: socket.socket) -> Found:
    """All that a pump tells whoever connects."""
    found = Found()
    while True:
        message, fds = pump.receive(sock)
        if message["is"] == "ready":
            return found
        if message["is"] == "life":
            found.life = int(message["number"]), fds[0]
        elif message["is"] == "held":
            found.runs.append(Taken(message, fds))


def apply(intake: PumpIntake, state: dict[str, Any]) -> None:
    """Take over what a pump says of a run."""
    intake.stuck = state["stuck"]
    intake.spool.kept, intake.spool.dropped = int(state["kept"]), int(state["dropped"])
    intake.piece.delivered = {1: int(state["lengths"][0]), 2: int(state["lengths"][1])}
    intake.piece.saw_end, intake.piece.engine_life = bool(state["saw_end"]), int(state["life"])
    if state["closed"]:
        intake.closed.set()


def _close(intake: PumpIntake) -> None:
    fds, intake.fds = intake.fds, []
    for fd in fds:
        os.close(fd)
