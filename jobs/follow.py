"""Follows the output of every container on this node: the agent's side, and how other processes ask it to.

A start goes: the task creates the container and calls `request_attach`; the agent attaches and answers; only then
the task starts it. Without an answer it starts anyway, and the agent fills the hole at the end (`jobs.mend`).
"""

import contextlib
import fcntl
import json
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection

from jobs import containers_logs
from jobs.containers import EngineRefused, EngineUnavailable
from jobs.drain import Drain, Intake, SocketIntake
from jobs.mend import end_log
from jobs.models import Run
from jobs.pump import make_pipe, short_path
from jobs.pumplink import Found, PumpIntake, PumpLink, Taken, apply
from jobs.ship import Shipment, Shipper
from jobs.spool import Spool
from jobs.states import RunState

log = logging.getLogger(__name__)

LIVE = ("created", "running", "paused", "restarting")
_NOBODY_THERE = 0.05  # seconds until an agent that does not listen is asked once more
_LOOK_AGAIN = 1.0  # seconds after a stream's end, or after the engine did not answer
_END_SOON = 0.25  # seconds in which the stream of an ended container ends as a rule
_REQUEST_LIMIT = 4096
_REQUEST_THREADS = 8
_STRIPES = 16


# --- the side of the task that starts a container ---


def request_attach(run_id: int, container_id: str, timeout: float) -> bool:
    """Ask this node's agent to attach to a container that is not started yet. False: not within `timeout` seconds.

    An agent that is just being started is waited for: without it the output would be seen at the end alone.
    """
    request = json.dumps({"run": run_id, "container": container_id}).encode() + b"\n"
    until = time.monotonic() + timeout
    while True:
        try:
            return _asked(request, max(until - time.monotonic(), 0.01))
        except (ConnectionRefusedError, FileNotFoundError) as error:
            if time.monotonic() + _NOBODY_THERE >= until:
                log.warning("the agent did not attach to run %s: %s", run_id, error)
                return False
            time.sleep(_NOBODY_THERE)
        except OSError as error:
            log.warning("the agent did not attach to run %s: %s", run_id, error)
            return False


def _asked(request: bytes, timeout: float) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, short_path(_socket_path()) as path:
        sock.settimeout(timeout)
        sock.connect(path)
        sock.sendall(request)
        return sock.recv(16) == b"attached\n"


def _socket_path() -> Path:
    return Path(settings.SPOOL_DIR) / "agent.sock"


# --- the agent's side ---


class AnotherAgent(Exception):
    """Another agent of this node has the spool."""


@dataclass(eq=False)
class _Line:
    """One run that is followed. `lock` is held while it is attached or finished."""

    run_id: int
    spool: Spool
    shipment: Shipment
    intake: Intake | None = None
    finishing: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_attached(self) -> bool:
        return self.intake is not None and not self.intake.closed.is_set()


class Follower:
    """All of the agent that has to do with logs. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._root = Path(settings.SPOOL_DIR)
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()  # of `_lines`; held for moments only
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]  # a run's line is begun once
        self._ship = Shipper()
        self._drain = Drain(self._ship.touch, self._ended)
        self._pump = PumpLink(self._root, self._ship.touch, self._ended)
        self._life = containers_logs.Lifetime()
        self._door = _Door(self)
        self._held: int | None = None

    def start(self) -> None:
        """Take the spool, and listen. Raises AnotherAgent."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._held = os.open(self._root / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AnotherAgent(f"another agent works in {self._root}") from error
        try:
            self.forget_ended()
        except DatabaseError as error:
            log.warning("old spools stay for now: %s", error)
        found = self._pump.connect()
        self._drain.start()
        self._ship.start()
        self._door.start()
        self._take_up(found)
        self._pump.start()

    def _take_up(self, found: Found) -> None:
        """Go on with what the pump has held since an earlier life of the agent."""
        if found.life:
            self._life.take_up(found.life[0], os.dup(found.life[1]))
        for taken in found.runs:
            if not self._take_up_run(taken):
                for fd in taken.fds:
                    os.close(fd)
                self._pump.forget(taken.state["run"])

    def _take_up_run(self, taken: Taken) -> bool:
        """False when its spool is no more, or not what it was."""
        run_id = int(taken.state["run"])
        spool = Spool.find(self._root, run_id, settings.LOG_LIMIT_BYTES)
        piece = spool.pieces[-1] if spool and spool.pieces else None
        if spool is None or piece is None or piece.path.name != taken.state["piece"]:
            return False
        intake = PumpIntake(run_id, spool, piece, taken.fds)
        apply(intake, taken.state)
        line = self._lines[run_id] = _Line(run_id, spool, Shipment(run_id, spool), intake)
        self._pump.take(intake)
        self._ship.add(line.shipment)
        if intake.closed.is_set():
            self._door.look(run_id, _LOOK_AGAIN)
        return True

    def stop(self) -> None:
        """Let go of everything. Containers go on, and the pump with them; the next agent takes them up."""
        self._door.stop()
        self._pump.stop()
        self._drain.stop()
        self._ship.stop()
        for thread in (self._door, self._pump, self._drain, self._ship):
            thread.join(10)
        if self._held is not None:
            os.close(self._held)

    def attach(self, run_id: int, container_id: str) -> None:
        """Capture a container's output from now on; once attached, asking again changes nothing.

        Raises EngineRefused, EngineUnavailable, or OSError when the spool can't be written.
        """
        line = self._line(run_id, container_id)
        with line.lock:
            if not line.is_attached and not line.finishing:
                self._join(line)
        self._ship.touch(run_id)

    def adopt(self, run_id: int, container_id: str) -> None:
        """Take over a run of an earlier life of the agent: go on capturing, if its container lives.

        Raises as `attach` does.
        """
        if containers_logs.status(container_id) in LIVE:
            self.attach(run_id, container_id)

    def finish(self, run_id: int, container_id: str, timeout: float) -> None:
        """The container has ended: complete the log in storage and say so in the run's row.

        Waits up to `timeout` seconds for the end of the stream; what does not come is read from the engine's log.
        Does nothing for a complete log. `container_id` is empty when none was ever made. Raises EngineUnavailable, or
        whatever database and storage raise; call again then.
        """
        if Run.objects.filter(pk=run_id, log_complete=True).exists():
            return
        line = self._line(run_id, container_id)
        line.finishing = True
        self._ship.remove(run_id)
        with line.lock:
            if Run.objects.filter(pk=run_id, log_complete=True).exists():
                return
            saw_end = self._wait_for_end(line, timeout)
            self._end(line, saw_end)

    def discard(self, run_id: int) -> None:
        """The log is complete and the container removed: forget the spool."""
        with self._lock:
            line = self._lines.pop(run_id, None)
        self._ship.remove(run_id)
        if line:
            self._detach(line)
            line.shipment.close()
        self._pump.forget(run_id)
        Spool.discard_at(self._root, run_id)

    def forget_ended(self) -> None:
        """Forget the spools of runs whose end is done but for this: of starts that were given up once attached to."""
        spooled = [int(path.name) for path in self._root.iterdir() if path.name.isdigit()]
        done = Run.objects.filter(pk__in=spooled, log_complete=True, state=RunState.ENDED)
        for run_id in done.values_list("pk", flat=True):
            self.discard(run_id)

    def active_runs(self) -> set[int]:
        """The runs whose output is being captured now."""
        with self._lock:
            return {line.run_id for line in self._lines.values() if line.is_attached}

    def problems(self) -> dict[int, str]:
        """Runs whose output can't be written at the moment, so that their containers may stand still; and why."""
        with self._lock:
            intakes = [line.intake for line in self._lines.values() if line.intake]
        return {intake.run_id: intake.stuck for intake in intakes if intake.stuck}

    def behind(self) -> tuple[int, float]:
        """Of all runs: captured bytes that nobody can read yet, and the longest time in seconds that there are some."""
        with self._lock:
            shipments = [line.shipment for line in self._lines.values()]
        found = [shipment.behind for shipment in shipments]
        return sum(count for count, _ in found), max((seconds for _, seconds in found), default=0.0)

    # --- lines ---

    def _line(self, run_id: int, container_id: str) -> _Line:
        """The run's line, taken up from disk or begun. That of an older container of the run is thrown away."""
        with self._stripes[run_id % len(self._stripes)]:
            with self._lock:
                line = self._lines.get(run_id)
            if line and (line.spool.container_id in (container_id, "") or not container_id):
                line.spool.container_id = container_id or line.spool.container_id
                return line
            if line:
                self._detach(line)
            line = self._begin(run_id, container_id)
            with self._lock:
                self._lines[run_id] = line
        self._ship.add(line.shipment)
        return line

    def _begin(self, run_id: int, container_id: str) -> _Line:
        spool = Spool.find(self._root, run_id, settings.LOG_LIMIT_BYTES)
        if spool is None or (container_id and spool.container_id != container_id):
            first = spool.next_number if spool else 0
            spool = Spool.create(self._root, run_id, container_id, settings.LOG_LIMIT_BYTES, first=first)
        return _Line(run_id, spool, Shipment(run_id, spool))

    def _detach(self, line: _Line) -> None:
        if isinstance(line.intake, SocketIntake) and line.is_attached:
            self._drain.remove(line.intake)
            line.intake.closed.wait(5)
        elif isinstance(line.intake, PumpIntake) and line.is_attached:
            self._pump.remove(line.intake)
            line.intake.closed.wait(5)

    def _join(self, line: _Line) -> None:
        """Attach; whether the container was started before decides whether there may be a hole."""
        life = self._life.current()
        sock = containers_logs.attach(line.spool.container_id)
        try:
            before_start = containers_logs.status(line.spool.container_id) == "created"
            if before_start and line.spool.pieces:
                self._begin_anew(line)
            piece = line.spool.add_piece(whole=before_start)
        except BaseException:
            sock.close()
            raise
        piece.engine_life = life
        if isinstance(sock, ssl.SSLSocket):  # its bytes come out of a library, not out of the kernel
            intake = line.intake = SocketIntake(line.run_id, line.spool, piece, sock)
            self._drain.add(intake)
            return
        if (fd := self._life.descriptor) is not None:
            self._pump.keep_life(life, fd)
        line.intake = PumpIntake(line.run_id, line.spool, piece, [sock.detach(), *make_pipe()])
        self._pump.add(line.intake)

    def _begin_anew(self, line: _Line) -> None:
        """An earlier life of the agent attached, but nothing can have been printed yet."""
        first, container = line.spool.next_number, line.spool.container_id
        line.spool = Spool.create(self._root, line.run_id, container, line.spool.limit, first=first)
        line.shipment = Shipment(line.run_id, line.spool)
        self._ship.add(line.shipment)

    def _ended(self, run_id: int) -> None:
        """A stream has ended; called by the drain. Soon look whether the container has, too."""
        self._ship.touch(run_id)
        self._door.look(run_id, _LOOK_AGAIN)

    def _look(self, run_id: int) -> None:
        """A stream that ends while its container runs means that the engine was restarted: attach again."""
        with self._lock:
            line = self._lines.get(run_id)
        if line is None or line.finishing or line.is_attached:
            return
        try:
            self.adopt(run_id, line.spool.container_id)
        except (EngineUnavailable, OSError):
            self._door.look(run_id, _LOOK_AGAIN)
        except EngineRefused as error:
            log.warning("run %s can't be attached again: %s", run_id, error)

    # --- the end ---

    def _wait_for_end(self, line: _Line, timeout: float) -> bool:
        """Wait until the stream has ended. Returns whether the last piece surely goes to the end of the output."""
        if line.intake is None:
            return False
        never_ran = False
        if not line.intake.closed.wait(min(_END_SOON, timeout)):
            never_ran = self._status(line) == "created"
            if never_ran or not line.intake.closed.wait(max(timeout - _END_SOON, 0)):
                self._detach(line)
        piece = line.intake.piece
        return (piece.saw_end or never_ran) and self._same_life(piece.engine_life)

    def _same_life(self, life: int) -> bool:
        try:
            return self._life.current() == life
        except EngineUnavailable:
            return False

    @staticmethod
    def _status(line: _Line) -> str | None:
        try:
            return containers_logs.status(line.spool.container_id)
        except (EngineUnavailable, EngineRefused):
            return None

    def _end(self, line: _Line, saw_end: bool) -> None:
        with line.shipment.lock:
            try:
                end_log(line.shipment, container_id=line.spool.container_id, saw_end=saw_end)
            except BaseException:
                line.shipment.close()
                line.shipment = Shipment(line.run_id, line.spool)
                raise


class _Door(threading.Thread):
    """Takes requests to attach, and looks after streams that ended; each in a thread of the pool."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(name="follow", daemon=True)
        self._follower = follower
        self._pool = ThreadPoolExecutor(_REQUEST_THREADS, thread_name_prefix="attach")
        self._server = socket.socket(socket.AF_UNIX)
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._looks: dict[int, float] = {}
        self._stopping = False

    def start(self) -> None:
        path = _socket_path()
        path.unlink(missing_ok=True)
        with short_path(path) as short:
            self._server.bind(short)
        os.chmod(path, 0o600)
        self._server.listen(64)
        super().start()

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def look(self, run_id: int, seconds: float) -> None:
        """Look at a run after some seconds. Waits for nothing."""
        self._looks[run_id] = time.monotonic() + seconds
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full of wakes already, or stopped
            self._wake_in.send(b".")

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake_out, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in selector.select(self._seconds_to_next()):
                    if key.fileobj is self._server:
                        self._pool.submit(self._answer, self._server.accept()[0])
                    else:
                        self._wake_out.recv(4096)
                self._look_due()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for sock in (self._server, self._wake_in, self._wake_out):
            sock.close()

    def _seconds_to_next(self) -> float | None:
        due = list(self._looks.values())
        return max(min(due) - time.monotonic(), 0) if due else None

    def _look_due(self) -> None:
        now = time.monotonic()
        for run_id, due in list(self._looks.items()):
            if due <= now:
                del self._looks[run_id]
                self._pool.submit(self._guarded_look, run_id)

    def _guarded_look(self, run_id: int) -> None:
        try:
            self._follower._look(run_id)
        except Exception:  # a pool would swallow it
            log.exception("looking after the output of run %s failed", run_id)
        finally:
            connection.close()

    def _answer(self, sock: socket.socket) -> None:
        """One request: {"run": id, "container": id}, answered when the engine has attached us."""
        with sock:
            sock.settimeout(5)
            try:
                request = json.loads(sock.makefile("rb").readline(_REQUEST_LIMIT))
                self._follower.attach(int(request["run"]), str(request["container"]))
                sock.sendall(b"attached\n")
            except (EngineRefused, EngineUnavailable, OSError, ValueError, KeyError) as error:
                log.warning("a request to attach failed: %s", error)
            except Exception:  # a pool would swallow it
                log.exception("a request to attach failed")
