"""Staying with a job until it has ended: its state while it waits, its log while it runs, its exit status.

The log comes over the WebSocket; where that is not to be had, by ranges over HTTP. Both go on at the same offset,
so that a lost connection loses and repeats nothing.
"""

import json
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from jobs import units
from portal.cli.client import Client, Unreachable
from portal.cli.display import Waiting
from portal.cli.failure import Failure
from portal.cli.logs import read_range, write_out
from portal.cli.quantities import read
from portal.cli.text import ACCEPT_LANGUAGE, _

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT", "LOST"})
STATUS_OF_STATE = {"SUCCEEDED": 0, "TIMED_OUT": 124, "LOST": 125, "CANCELLED": 130}
POLL_PERIOD = 1.0
RECONNECT_DELAYS = (0.5, 1.0, 2.0, 5.0)
SILENCE = 30.0  # the server pings more often
LOG_PATIENCE = 60.0  # for the rest of the log of an ended job, when its host does not deliver
FRAME = struct.Struct(">QHQ")  # run id, generation, offset; the bytes follow


def exit_status(job: dict[str, Any]) -> int:
    """The status to end with: the container's own, or what stands for its end. See `dockyard --help`."""
    if job["state"] == "FAILED":
        code = job.get("exit_code") or 0
        return code if 0 < code < 256 else 1
    return STATUS_OF_STATE[job["state"]]


class Patience:
    """How long a server may not answer before we give up: some seconds since it was last heard of."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heard = time.monotonic()

    @classmethod
    def of(cls, text: str) -> "Patience":
        """As long as "10m" says. Raises Failure."""
        return cls(read("--patience", units.parse_duration, text))

    def heard(self) -> None:
        self._heard = time.monotonic()

    def check(self, server: Client, job: int) -> None:
        """Raise Failure once it is over."""
        if time.monotonic() - self._heard > self.seconds:
            raise Failure(
                _("%(url)s has not answered for %(time)s: giving up. The job itself is not touched by this.")
                % {"url": server.config.url, "time": units.format_duration(self.seconds)},
                _("Once it answers: dockyard logs -f %d") % job,
            )


def wait(server: Client, job: int, patience: Patience) -> int:
    """Wait for the end, showing what the job waits for; return its exit status. Raises Failure."""
    with Waiting(job) as display:
        while True:
            found = _status(server, job, display, patience)
            if found and found["state"] in ENDED:
                break
            time.sleep(POLL_PERIOD)
    display.ended(found)
    return exit_status(found)


def _status(server: Client, job: int, display: Waiting, patience: Patience) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = server.get(f"/api/jobs/{job}")
    except Unreachable as failure:
        patience.check(server, job)
        display.say(failure.sentence + " " + _("Trying again…"))
        return None
    patience.heard()
    display.show(found)
    return found


def follow(server: Client, job: int, *, patience: Patience, tail: int | None = None) -> int:
    """Print the log as it grows until the job has ended; return its exit status. Ctrl-C leaves the job alone.

    Raises Failure when the server is gone for longer than `patience`.
    """
    with Waiting(job, shared=sys.stdout.isatty()) as display:
        try:
            ended = Follower(server, job, display, patience).to_the_end(-tail if tail else 0)
        except KeyboardInterrupt:
            display.close()
            sys.stderr.write("\n" + _("Job #%(id)d goes on. To stop it: dockyard cancel %(id)d") % {"id": job} + "\n")
            return 130
    display.ended(ended)
    return exit_status(ended)


@dataclass
class Position:
    """How much of which run's log has been printed, and how much of it was heard of."""

    run: int = 0
    generation: int = 0
    offset: int = 0
    size: int = 0
    complete: bool = False


class Follower:
    def __init__(self, server: Client, job: int, display: Waiting, patience: Patience) -> None:
        self.server = server
        self.job = job
        self.display = display
        self.patience = patience
        self.at = Position()
        self.status: dict[str, Any] = {}
        self.ended_at: float | None = None

    def to_the_end(self, start: int) -> dict[str, Any]:
        """Live over the socket; by ranges before, between and instead. Returns the status of the ended job."""
        failures = 0
        while True:
            start = self._catch_up(start)
            if self._is_done():
                return self.status
            heard = self._listen()
            if self._is_done():
                return self.status
            failures = 0 if heard else failures + 1
            time.sleep(RECONNECT_DELAYS[min(failures, len(RECONNECT_DELAYS) - 1)])

    def _is_done(self) -> bool:
        if self.status.get("state") not in ENDED:
            self.ended_at = None
            return False
        self.ended_at = self.ended_at or time.monotonic()
        if not self.at.run or (self.at.complete and self.at.offset >= self.at.size):
            return True
        return time.monotonic() - self.ended_at > LOG_PATIENCE

    # --- by ranges ---

    def _catch_up(self, start: int) -> int:
        """Print all there is now. Returns the start to go on with: 0, or the same as long as there is no run."""
        status = _status(self.server, self.job, self.display, self.patience)
        if status is None:
            return start
        self.status = status  # taken before the log: what ended then has all its bytes now or marks them later
        try:
            while self._one_range(start):
                start = 0
        except Unreachable:
            return 0 if self.at.run else start
        return 0 if self.at.run else start

    def _one_range(self, start: int) -> bool:
        """One piece; whether there is more."""
        data, facts = read_range(self.server, self.job, None, self.at.offset if self.at.run else start)
        if not facts.run_id:
            return False
        first = 0 if self.at.run else facts.start
        if self._moved(facts.run_id, facts.generation, facts.size, first=first) and facts.start != self.at.offset:
            return True
        self.at.size, self.at.complete = facts.size, facts.complete
        self._print(facts.start, data)
        return bool(data) and self.at.offset < self.at.size

    # --- by the socket ---

    def _listen(self) -> bool:
        """Follow live until the job is done or the connection is lost. False when there was no connection at all."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        url = "ws" + self.server.config.url.removeprefix("http") + f"/ws/jobs/{self.job}/"
        proxy: Literal[True] | None = None if self.server.config.is_local else True
        headers = {"Authorization": f"Bearer {self.server.config.token}", "Accept-Language": ACCEPT_LANGUAGE}
        heard = False
        try:
            with connect(url, additional_headers=headers, compression=None, max_size=None, proxy=proxy) as socket:
                self._ask(socket)
                while not self._is_done():
                    self._take(socket, socket.recv(timeout=SILENCE))
                    heard = True
                    self.patience.heard()
        except (WebSocketException, OSError, struct.error):  # TimeoutError too: a ping was due
            pass
        return heard

    def _ask(self, socket: Any) -> None:
        if self.at.run:
            place = {"run": self.at.run, "generation": self.at.generation, "offset": self.at.offset}
            socket.send(json.dumps({"follow": place}))

    def _take(self, socket: Any, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self._take_bytes(socket, message)
            return
        news = json.loads(message)
        if "ping" in news:
            socket.send('{"pong":1}')
        if "log" in news:
            self._take_size(socket, news["log"])
        if "job" in news:
            self._take_status(socket, news["job"])

    def _take_status(self, socket: Any, status: dict[str, Any]) -> None:
        self.status = status
        self.display.show(status)
        run = run_of(status)
        if run and run != self.at.run:
            self._moved(run, 0, 0)
            self._ask(socket)

    def _take_size(self, socket: Any, log: dict[str, Any]) -> None:
        if self._moved(log["run"], log["generation"], log["end"]):
            self._ask(socket)
        if log["run"] == self.at.run:
            self.at.size, self.at.complete = log["end"], log["complete"]

    def _take_bytes(self, socket: Any, frame: bytes) -> None:
        run, generation, offset = FRAME.unpack_from(frame)
        if self._moved(run, generation, self.at.size) or offset > self.at.offset:
            self._ask(socket)
        elif (run, generation) == (self.at.run, self.at.generation):
            self._print(offset, frame[FRAME.size :])
            socket.send(json.dumps({"ack": self.at.offset}))

    # --- both ---

    def _moved(self, run: int, generation: int, size: int, *, first: int = 0) -> bool:
        """Whether this is news of a later run, or of the same log with a hole mended; then the position is set anew."""
        at = self.at
        if run > at.run:
            if at.run:
                self.display.note(_("The job starts anew; what follows is its next run."))
            self.at = Position(run, generation, first, size)
            return True
        if run == at.run and generation > at.generation:
            self.display.note(_("A gap in the log was mended; dockyard logs %d prints it whole.") % self.job)
            self.at = Position(run, generation, max(size - (at.size - at.offset), 0), size)
            return True
        return False

    def _print(self, offset: int, data: bytes) -> None:
        new = data[self.at.offset - offset :] if offset < self.at.offset else data
        if new:
            self.display.give_way()
            write_out(new)
            self.at.offset += len(new)


def run_of(status: dict[str, Any]) -> int:
    """The id of the run that a status speaks of; 0 when the job has none."""
    run = status.get("run") or {}
    return int(run.get("id") or 0)
