"""Many browsers' sockets in one cheap process: frames are split and counted, their content is not decoded."""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import uvloop

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_AT_ONCE = 50  # handshakes on their way at a time


class Browser(asyncio.Protocol):
    """One WebSocket as a browser has it: cookie and Origin, pongs for pings of the protocol and of the product.

    `on_frame(browser, opcode, payload)` gets each message whole; the payload is good during the call only.
    """

    def __init__(self, path: str, host: str, cookie: str, on_frame: "OnFrame") -> None:
        self.path, self.host, self.cookie, self.on_frame = path, host, cookie, on_frame
        self.loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.closed = False
        self.data: dict[str, Any] = {}  # whatever the measurement remembers of it
        self.transport: Any = None
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write((
            f"GET {self.path} HTTP/1.1\r\nHost: {self.host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            f"Origin: http://{self.host}\r\nCookie: {self.cookie}\r\n\r\n"
        ).encode())  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(f"refused: {bytes(self._buffer[:200])!r} {exc}"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self.opened.done() and not self._shake():
            return
        at = 0
        while (end := self._frame_at(at)) is not None:
            at = end
        del buffer[:at]

    def _shake(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or not self._buffer.startswith(b"HTTP/1.1 101"):
            return False
        del self._buffer[: end + 4]
        self.opened.set_result(None)
        return True

    def _frame_at(self, at: int) -> int | None:
        """Handle the frame that begins there; where it ends, or None when it is not all there yet."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        size, start = buffer[at + 1], at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(buffer[at + 2 : start], "big")
        if len(buffer) < start + size:
            return None
        opcode = buffer[at] & 15
        with memoryview(buffer) as whole, whole[start : start + size] as payload:
            if opcode == PING:
                self.send(bytes(payload), PONG)
            elif opcode == TEXT and payload[:7] == b'{"ping"':
                self.send(b'{"pong":1}')
            else:
                self.on_frame(self, opcode, payload)
        return start + size

    def send(self, payload: bytes, opcode: int = TEXT) -> None:
        """A frame masked with zeros, which leave it as it is; of less than 126 bytes."""
        self.transport.write(bytes((0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload)


OnFrame = Callable[[Browser, int, memoryview], None]


async def open_all(port: int, paths: list[str], cookies: list[str], on_frame: OnFrame) -> list[Browser]:
    """A browser for each path, with its cookie."""
    loop = asyncio.get_running_loop()
    host = f"127.0.0.1:{port}"
    found: list[Browser] = []
    for start in range(0, len(paths), _AT_ONCE):
        fresh = [
            Browser(path, host, cookie, on_frame)
            for path, cookie in zip(paths[start : start + _AT_ONCE], cookies[start : start + _AT_ONCE], strict=True)
        ]
        for browser in fresh:
            await loop.create_connection(lambda browser=browser: browser, "127.0.0.1", port)
        await asyncio.gather(*(browser.opened for browser in fresh))
        found += fresh
    return found


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def tell(message: dict[str, Any]) -> None:
    """A line for the benchmark that started this process."""
    print(json.dumps(message), flush=True)


async def told() -> dict[str, Any]:
    """The next line from it."""
    line = await asyncio.to_thread(sys.stdin.readline)
    found: dict[str, Any] = json.loads(line) if line else {}
    return found


def run(main: Callable[[dict[str, Any]], Any]) -> None:
    """Run `main(what was told first)` with this process on the CPU that it names."""
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    if asked.get("cpu") is not None:
        os.sched_setaffinity(0, {asked["cpu"]})
    uvloop.run(main(asked))
