"""The process that moves every container's output into its spool and outlives the agent.

One a node: `python -I -S pump.py SPOOL_DIR`. It splices attach socket → pipe → file: no byte is in user space alone,
so that whoever is killed, each byte stays in one of the three. The agent attaches, hands the descriptors over by
`pump.sock` and keeps duplicates: the agent killed, the pump goes on and hands them to the next agent; the pump killed,
the agent starts another.

Messages are JSON, one a packet. Agent → pump: `add` {run, piece, limit, life} with [socket, pipe's read and write end];
`remove` {run}; `forget` {run}; `life` {number} with the connection that proves that the engine is the same.
An order, a word or a key that the other side does not know is passed over: the two may be of different versions.
Pump → agent: at first `held` for each run, with its descriptors unless it is closed, `life`, then `ready`; later `data`
{run, piece, kept, dropped}, `closed`, `stuck`. `held`, `closed` and `stuck` say all that `Held.state` does.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # started alone, without the paths of any installation
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.spool import PieceWriter, Spool

PIPE = 1 << 20  # bytes
MESSAGE = 1 << 16
NEWS = 0.02  # seconds between two words about a run's data
RETRY = 1.0  # seconds until a full disk is tried again
ALONE = 5.0  # seconds without an agent, and with nothing in hand, after which it ends
FORLORN = 60.0  # the same with streams in hand that have all ended: how, the next agent finds out without it
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_tee = ctypes.CDLL(None, use_errno=True).tee
_tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
_tee.restype = ctypes.c_ssize_t

Message = dict[str, Any]


def send(sock: socket.socket, message: Message, fds: list[int]) -> None:
    """One packet. Raises OSError, BlockingIOError among them."""
    socket.send_fds(sock, [json.dumps(message).encode()], fds)


def receive(sock: socket.socket) -> tuple[Message, list[int]]:
    """One packet and the descriptors that came with it. Raises EOFError at the end, or OSError."""
    data, fds, _, _ = socket.recv_fds(sock, MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    message: Message = json.loads(data)
    return message, fds


def make_pipe() -> tuple[int, int]:
    """A pipe as wide as this process may have it."""
    ends = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE)
    return ends


class Held:
    """One attach socket, its pipe, and the piece that they fill. `fds` are the socket and the pipe's two ends."""

    def __init__(self, root: Path, order: Message, fds: list[int]) -> None:
        self.run, self.piece = int(order["run"]), str(order["piece"])
        self.life, self.limit = int(order["life"]), int(order["limit"])
        self.fds = fds
        for fd in fds:
            os.set_blocking(fd, False)
        self._spool = Spool(root / str(self.run), "", self.limit)
        self._piece = next(piece for piece in self._spool.pieces if piece.path.name == self.piece)
        self._writer = PieceWriter(self._spool, self._piece)
        self._blind = self._spool.is_full  # taken over past the limit: where frames begin, nobody knows
        self._keep = self._drop = 0  # bytes of the pipe that are counted already
        self.stuck = ""
        self.ended = self.closed = False
        self._saw_end = False

    def state(self) -> Message:
        return {
            "run": self.run, "piece": self.piece, "life": self.life, "limit": self.limit, "closed": self.closed,
            "saw_end": self._saw_end and not self._blind, "stuck": self.stuck, "kept": self._spool.kept,
            "dropped": self._spool.dropped, "lengths": [self._writer.lengths[1], self._writer.lengths[2]],
        }  # fmt: skip

    def counts(self) -> Message:
        return {"run": self.run, "piece": self.piece, "kept": self._spool.kept, "dropped": self._spool.dropped}

    def move(self, probe: tuple[int, int]) -> bool:
        """Socket → pipe → file, once. Whether anything came; at the socket's end `ended` is set.

        Raises OSError when the file can't be written; then all is still in the pipe.
        """
        self._empty(probe)
        try:
            count = os.splice(self.fds[0], self.fds[2], PIPE, flags=_NONBLOCK)
        except BlockingIOError:
            return False
        except OSError:  # the line broke: the end was not seen
            self.ended = True
            return False
        if not count:
            self.ended = self._saw_end = True
        return self._empty(probe) > 0

    def _empty(self, probe: tuple[int, int]) -> int:
        """Pipe → file, as far as the limit allows, the rest counted and thrown away. Returns how many bytes."""
        moved = 0
        while self._keep or self._drop or self._look(probe):
            while self._keep:
                count = self._writer.splice(self.fds[1], self._keep)
                self._keep -= count
                moved += count
            while self._drop:
                count = len(os.read(self.fds[1], min(self._drop, PIPE)))
                self._drop -= count
                moved += count
        return moved

    def _look(self, probe: tuple[int, int]) -> bool:
        """Count what is in the pipe, without taking it out: its copy is read. False when it is empty."""
        count = _tee(self.fds[1], probe[1], PIPE, _NONBLOCK)
        if count <= 0:
            return False
        data = b""
        while len(data) < count:
            data += os.read(probe[0], count - len(data))
        if self._blind:
            self._spool.drop(count)
        else:
            self._keep = self._writer.admit(data)
        self._drop = count - self._keep
        return True

    def note_cut(self) -> None:
        """The engine went with the stream."""
        self._piece.note_cut()

    def close(self) -> None:
        self.closed = True
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self._writer.close()


class Pump:
    """The loop. One agent at a time is connected; the newest counts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._selector = selectors.DefaultSelector()
        self._probe = make_pipe()
        self._held: dict[int, Held] = {}
        self._stuck: set[int] = set()
        self._life: tuple[int, int] | None = None  # number, descriptor
        self._agent: socket.socket | None = None
        self._left_at = time.monotonic()  # when the last agent went
        self._outbox: deque[tuple[Message, list[int]]] = deque()
        self._told_at: dict[int, float] = {}
        self._untold: set[int] = set()
        self._ended: deque[tuple[float, Held]] = deque()  # streams that have just ended, and when
        self._server = self._listen()

    def _listen(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (self._root / "pump.sock").unlink(missing_ok=True)
        with short_path(self._root / "pump.sock") as path:
            server.bind(path)
        os.chmod(self._root / "pump.sock", 0o600)
        server.listen(4)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, self._greet)
        return server

    def run(self) -> None:
        """Until there is nothing to do, and nobody to do it for."""
        while not self._is_done():
            for key, _ in self._selector.select(self._patience()):
                if isinstance(key.data, Held):
                    self._move(key.data)
                else:
                    key.data()
            for run in list(self._stuck):
                self._move(self._held[run])
            self._note_cut()
            self._tell_untold()
            self._flush()

    def _patience(self) -> float:
        return NEWS if self._untold or self._ended else RETRY

    def _is_done(self) -> bool:
        alone = time.monotonic() - self._left_at if self._agent is None else 0
        if alone < ALONE or not all(held.closed for held in self._held.values()):
            return False
        return not self._held or alone >= FORLORN or not self._root.exists()

    # --- output ---

    def _move(self, held: Held) -> None:
        if held.closed:
            return
        was_stuck = held.stuck
        try:
            came = held.move(self._probe)
            held.stuck = ""
        except OSError as error:
            came, held.stuck = False, error.strerror or str(error)
        if bool(held.stuck) != bool(was_stuck):
            self._wait_or_go_on(held)
        if came:
            self._untold.add(held.run)
        if held.ended and not held.stuck:
            self._close(held)

    def _wait_or_go_on(self, held: Held) -> None:
        """Read no more from a socket until what came from it can be written."""
        if held.stuck:
            self._selector.unregister(held.fds[0])
            self._stuck.add(held.run)
        else:
            self._stuck.discard(held.run)
            self._selector.register(held.fds[0], selectors.EVENT_READ, held)
            self._untold.add(held.run)
        self._say({"is": "stuck", **held.state()})

    def _close(self, held: Held) -> None:
        if held.closed:
            return
        if held.run in self._stuck:
            self._stuck.discard(held.run)
        else:
            self._selector.unregister(held.fds[0])
        held.close()
        if held.ended:
            self._ended.append((time.monotonic(), held))
        self._say({"is": "closed", **held.state()})

    def _note_cut(self) -> None:
        """Of streams that ended a moment ago: whether the engine did, all of whose connections end at once."""
        while self._ended and self._ended[0][0] + NEWS <= time.monotonic():
            _at, held = self._ended.popleft()
            if self._life and _has_ended(self._life[1]):
                held.note_cut()

    # --- the agent ---

    def _greet(self) -> None:
        """Tell an agent all that is in hand; it takes the place of the one before."""
        self._lose_agent()
        self._agent = self._server.accept()[0]
        self._agent.setblocking(False)
        self._selector.register(self._agent, selectors.EVENT_READ, self._obey)
        for held in self._held.values():
            self._say({"is": "held", **held.state()}, held.fds)
        if self._life:
            self._say({"is": "life", "number": self._life[0]}, [self._life[1]])
        self._say({"is": "ready"})
        self._flush()  # before any of these descriptors is closed

    def _lose_agent(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent)
            self._agent.close()
            self._agent = None
        self._outbox.clear()
        self._left_at = time.monotonic()

    def _obey(self) -> None:
        assert self._agent
        try:
            order, fds = receive(self._agent)
        except BlockingIOError:
            return
        except (OSError, EOFError, ValueError):
            self._lose_agent()
            return
        verb = str(order.get("do"))
        if verb == "add":
            self._add(order, fds)
        elif verb == "life":
            self._keep_life(int(order["number"]), fds[0])
        elif fds:  # an order of a newer version: what came with it is its agent's too
            for fd in fds:
                os.close(fd)
        elif verb == "remove" and int(order["run"]) in self._held:
            self._close(self._held[int(order["run"])])
        elif verb == "forget" and int(order["run"]) in self._held:
            self._close(self._held[int(order["run"])])
            del self._held[int(order["run"])]

    def _add(self, order: Message, fds: list[int]) -> None:
        older = self._held.pop(int(order["run"]), None)
        if older:
            self._close(older)
        try:
            held = Held(self._root, order, fds)
        except (OSError, StopIteration):  # its spool is gone
            for fd in fds:
                os.close(fd)
            return
        self._held[held.run] = held
        self._selector.register(held.fds[0], selectors.EVENT_READ, held)
        self._move(held)  # of an earlier pump there may be something in the pipe

    def _keep_life(self, number: int, fd: int) -> None:
        if self._life:
            os.close(self._life[1])
        self._life = number, fd

    def _say(self, message: Message, fds: list[int] | None = None) -> None:
        """Queue a word that must not be lost; an agent that comes later is told all at once."""
        if self._agent is not None:
            self._outbox.append((message, fds or []))

    def _tell_untold(self) -> None:
        now = time.monotonic()
        for run in [run for run in self._untold if now >= self._told_at.get(run, 0) + NEWS]:
            self._untold.discard(run)
            self._told_at[run] = now
            if run in self._held:
                self._say({"is": "data", **self._held[run].counts()})

    def _flush(self) -> None:
        while self._outbox and self._agent is not None:
            message, fds = self._outbox[0]
            try:
                send(self._agent, message, fds)
            except BlockingIOError:
                return  # it does not listen now; at the next turn
            except OSError:
                self._lose_agent()
                return
            self._outbox.popleft()


def _has_ended(fd: int) -> bool:
    """Whether who is at the other end of a connection has closed it, or is gone."""
    with contextlib.closing(socket.socket(fileno=os.dup(fd))) as sock:
        try:
            return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for the path that fits in a socket address, however deep its directory lies."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def end(root: Path) -> None:
    """End the pump of a spool, if there is one: for who leaves nothing behind on a host."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((root / "pump.pid").read_text())
        if b"pump.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def main(root: Path) -> None:
    """Be nobody's child, wait for an older pump's death, and work."""
    if os.fork():
        os._exit(0)
    lock = os.open(root / "pump.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (root / "pump.pid.new").write_text(str(os.getpid()))
    (root / "pump.pid.new").replace(root / "pump.pid")
    Pump(root).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
