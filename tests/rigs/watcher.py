"""A browser that watches a job's log over its socket, and goes on where it was whenever the line is cut."""

import asyncio
import contextlib
import hashlib
import json
import struct
import threading
from typing import Any

import websockets
from websockets.asyncio.client import connect

_HEADER = struct.Struct(">QHQ")


class Watcher(threading.Thread):
    """Reads a run's log to its end, each byte once and in order; `join` it, then look."""

    def __init__(self, url: str, cookie: str, job: int, run: int) -> None:
        super().__init__(name="watcher", daemon=True)
        self.address = f"{url.replace('http', 'ws', 1)}/ws/jobs/{job}/"
        self.headers = {"Cookie": cookie, "Origin": url}
        self.run_id = run
        self.next = 0  # the offset of the byte to come
        self.hash = hashlib.sha256()
        self.trouble: list[str] = []  # gaps and doubles
        self.connections = 0
        self.states: list[str] = []
        self._end: int | None = None

    def run(self) -> None:
        asyncio.run(self._watch())

    @property
    def is_done(self) -> bool:
        return self._end == self.next

    async def _watch(self) -> None:
        while not self.is_done:
            with contextlib.suppress(OSError, websockets.WebSocketException):
                async with connect(self.address, additional_headers=self.headers) as socket:
                    self.connections += 1
                    follow = {"run": self.run_id, "generation": 0, "offset": self.next}
                    await socket.send(json.dumps({"follow": follow}))
                    await self._read(socket)
            await asyncio.sleep(0.1)

    async def _read(self, socket: Any) -> None:
        async for message in socket:
            if isinstance(message, bytes):
                self._piece(message)
                await socket.send(json.dumps({"ack": self.next}))
            else:
                self._hear(json.loads(message))
            if self.is_done:
                return

    def _piece(self, message: bytes) -> None:
        _run, _generation, offset = _HEADER.unpack_from(message)
        data = message[_HEADER.size :]
        if offset != self.next:
            self.trouble.append(f"{offset} came, {self.next} was due")
        self.hash.update(data)
        self.next = offset + len(data)

    def _hear(self, message: dict[str, Any]) -> None:
        if "job" in message:
            self.states.append(message["job"]["state"])
        if message.get("log", {}).get("complete"):
            self._end = message["log"]["end"]
