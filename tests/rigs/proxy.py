"""A proxy between a node and its engine's socket, which delays, holds, cuts or answers the requests that a test names.

Streams pass through: hijacked ones (attach), endless ones (events) and chunked ones (pull).
"""

import contextlib
import json
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

_HOLD_AT_MOST = 120.0
_BUFFER = 1 << 16


@dataclass(eq=False)
class Rule:
    """What happens to requests whose `METHOD /path?query`, without the API's version, matches `pattern`."""

    pattern: str
    act: Callable[["Rule", "_Exchange"], None]
    times: int | None  # None: all of them
    met: int = 0
    finished: int = 0  # how many of those have been dealt with
    over: threading.Event = field(default_factory=threading.Event)  # lets go of what it holds


class Proxy:
    """`url` is for DOCKER_HOST. Rules are in force inside their `with` block; the first that matches is taken."""

    def __init__(self, engine_socket: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dky-proxy-"))
        self.socket = self.root / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.engine_socket = engine_socket
        self.seen: list[str] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.socket))
        self._server.listen(128)
        threading.Thread(target=self._accept, name="engine proxy", daemon=True).start()

    # --- what goes wrong ---

    def delays(self, pattern: str, seconds: float, *, times: int | None = None) -> "_Rules":
        """The engine hears of the request later, also when the client has given up by then."""

        def act(rule: Rule, exchange: "_Exchange") -> None:
            rule.over.wait(seconds)
            exchange.forward()

        return self._rule(pattern, act, times)

    def holds(self, pattern: str, *, times: int | None = None) -> "_Rules":
        """The engine never hears of the request, and the client never gets an answer."""
        return self._rule(pattern, _hold, times)

    def holds_answer(self, pattern: str, *, times: int | None = None) -> "_Rules":
        """The engine does as asked; the client never gets the answer."""

        def act(rule: Rule, exchange: "_Exchange") -> None:
            exchange.forward(answer=False)
            rule.over.wait(_HOLD_AT_MOST)

        return self._rule(pattern, act, times)

    def cuts(self, pattern: str, *, times: int | None = None) -> "_Rules":
        """The connection breaks before the engine hears of the request."""
        return self._rule(pattern, lambda _rule, _exchange: None, times)

    def cuts_answer(self, pattern: str, *, times: int | None = None) -> "_Rules":
        """The engine does as asked; the connection breaks before its answer."""
        return self._rule(pattern, lambda _rule, exchange: exchange.forward(answer=False), times)

    def answers(self, pattern: str, status: int, message: str, *, times: int | None = None) -> "_Rules":
        """The client gets this error; the engine hears nothing."""
        return self._rule(pattern, lambda _rule, exchange: exchange.refuse(status, message), times)

    def _rule(self, pattern: str, act: Callable[[Rule, "_Exchange"], None], times: int | None) -> "_Rules":
        return _Rules(self._rules, Rule(pattern, act, times))

    def requests(self, pattern: str) -> list[str]:
        """The requests so far that match."""
        return [line for line in list(self.seen) if re.search(pattern, line)]

    # --- its life ---

    def close(self) -> None:
        self._server.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection of a client: request after request on one connection to the engine."""
        with contextlib.suppress(OSError, ValueError), client, socket.socket(socket.AF_UNIX) as engine:
            engine.connect(str(self.engine_socket))
            ours, theirs = client.makefile("rb"), engine.makefile("rb")
            while head := _head(ours):
                exchange = _Exchange(client, engine, ours, theirs, head)
                line = _line(head)
                self.seen.append(line)
                rule = self._matching(line)
                if rule is None:
                    exchange.forward()
                else:
                    self._act(rule, exchange)
                if not exchange.may_go_on:
                    return

    def _act(self, rule: Rule, exchange: "_Exchange") -> None:
        try:
            rule.act(rule, exchange)
        finally:
            with self._lock:
                rule.finished += 1

    def _matching(self, line: str) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if re.search(rule.pattern, line) and (rule.times is None or rule.met < rule.times):
                    rule.met += 1
                    return rule
        return None


@dataclass
class _Rules:
    """The context in which a rule is in force; its end lets go of everything the rule holds."""

    rules: list[Rule]
    rule: Rule

    def __enter__(self) -> Rule:
        self.rules.append(self.rule)
        return self.rule

    def __exit__(self, *_: object) -> None:
        self.rules.remove(self.rule)
        self.rule.over.set()


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, client: socket.socket, engine: socket.socket, ours: BufferedReader, theirs: BufferedReader, head: bytes
    ) -> None:
        self.client, self.engine, self.ours, self.theirs, self.head = client, engine, ours, theirs, head
        self.may_go_on = False
        self.body = b"".join(_body(ours, head))

    def forward(self, *, answer: bool = True) -> None:
        """Ask the engine; give its answer to the client, if it is still there and to have it."""
        self.engine.sendall(self.head + self.body)
        head = _head(self.theirs)
        if not answer:
            return
        self.client.sendall(head)
        if _is_upgrade(self.head) or b" 101 " in head.split(b"\r\n", 1)[0]:
            self._join()
            return
        for part in _body(self.theirs, head, of_answer=True):
            self.client.sendall(part)
        self.may_go_on = True

    def refuse(self, status: int, message: str) -> None:
        body = json.dumps({"message": message}).encode()
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.client.sendall(head.encode() + body)
        self.may_go_on = True

    def _join(self) -> None:
        """A hijacked connection: bytes both ways until the engine's side has ended."""
        back = threading.Thread(target=_copy, args=(self.ours, self.engine), daemon=True)
        back.start()
        _copy(self.theirs, self.client)


def _hold(rule: Rule, _exchange: _Exchange) -> None:
    rule.over.wait(_HOLD_AT_MOST)


def _copy(source: BufferedReader, sink: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.read1(_BUFFER):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _head(stream: BufferedReader) -> bytes:
    lines = []
    while (line := stream.readline()) not in (b"", b"\r\n"):
        lines.append(line)
    return b"".join([*lines, b"\r\n"]) if lines else b""


def _line(head: bytes) -> str:
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    return f"{method} {re.sub(r'^/v[0-9.]+', '', target)}"


def _header(head: bytes, name: bytes) -> bytes:
    found = re.search(rb"(?im)^" + name + rb":\s*(.*?)\r?$", head)
    return found[1].lower() if found else b""


def _is_upgrade(head: bytes) -> bool:
    return b"upgrade" in _header(head, b"Connection")


def _body(stream: BufferedReader, head: bytes, *, of_answer: bool = False) -> Iterator[bytes]:
    """The body that follows a head, as it comes, in the form it has."""
    if b"chunked" in _header(head, b"Transfer-Encoding"):
        while True:
            size = stream.readline()
            data = stream.read(int(size, 16) + 2)
            yield size + data
            if not size or int(size, 16) == 0:
                return
    length = int(_header(head, b"Content-Length") or 0)
    if length and not (of_answer and re.match(rb"HTTP/1.1 (204|304) ", head)):
        yield stream.read(length)


@contextlib.contextmanager
def running_proxy(engine_socket: Path) -> Iterator[Proxy]:
    """A proxy for as long as the block runs."""
    proxy = Proxy(engine_socket)
    try:
        yield proxy
    finally:
        proxy.close()
