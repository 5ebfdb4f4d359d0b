"""Browsers on one job's page: each follows the log to its end, hashes it, and says how late each stamp came.

A stamp is a line that begins with `@` and the machine's uptime in seconds, as the job read it when it printed.
Some browsers stall: they stop reading after their first piece, and go on when they are told.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from array import array
from typing import Any

from bench._browsers import BINARY, Browser, cpu_seconds, open_all, run, tell, told

_HEADER, _STAMP = 18, 24  # bytes


class Watching:
    """What all these browsers see of the log."""

    def __init__(self, follow: dict[str, int]) -> None:
        self.follow = follow
        self.late = array("d")
        self.since = float("inf")
        self.wrong = 0  # pieces that did not go on where the one before ended
        self.end: int | None = None
        self.news = asyncio.Event()

    def on_frame(self, browser: Browser, opcode: int, payload: memoryview) -> None:
        self.news.set()
        if opcode == BINARY:
            self._piece(browser, payload)
        elif payload[:7] == b'{"log":':
            head = json.loads(bytes(payload))["log"]
            if head["complete"]:
                self.end = head["end"]

    def _piece(self, browser: Browser, payload: memoryview) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if int.from_bytes(payload[10:_HEADER], "big") != browser.data["next"]:
            self.wrong += 1
        data = bytes(payload[_HEADER:])
        browser.data["hash"].update(data)
        browser.data["next"] += len(data)
        if browser.data["stalls"]:
            browser.data["stalls"] = False
            browser.transport.pause_reading()
            return
        browser.send(b'{"ack":%d}' % browser.data["next"])
        if browser.data["times"]:
            self._stamps(browser, data, now)

    def _stamps(self, browser: Browser, data: bytes, now: float) -> None:
        data = browser.data["rest"] + data
        at = 0
        while 0 <= (at := data.find(b"@", at)) <= len(data) - _STAMP:
            up = float(data[at + 1 : at + _STAMP].split(b" ", 1)[0])
            at += _STAMP
            if up >= self.since:
                self.late.append(now - up)
        browser.data["rest"] = data[at:] if at >= 0 else b""

    def start(self, browser: Browser, *, stalls: bool) -> None:
        browser.data |= {"next": 0, "hash": hashlib.sha256(), "rest": b"", "stalls": stalls, "times": not stalls}
        browser.send(json.dumps({"follow": self.follow}, separators=(",", ":")).encode())


async def main(asked: dict[str, Any]) -> None:
    watching = Watching(asked["follow"])
    readers = await open_all(asked["port"], asked["paths"], asked["cookies"], watching.on_frame)
    for browser in readers:
        watching.start(browser, stalls=False)
    tell({"open": len(readers)})
    watching.since = (await told())["since"]
    before = cpu_seconds()
    stalled = await _stall(asked, watching)
    await told()
    for browser in stalled:
        browser.send(b'{"ack":%d}' % browser.data["next"])
        browser.transport.resume_reading()
    await _all_read(readers + stalled, watching, asked["patience"])
    late = [round(value * 1000, 2) for value in watching.late]
    everyone = readers + stalled
    tell({
        "late": late, "wrong": watching.wrong, "end": watching.end, "cpu_seconds": cpu_seconds() - before,
        "closed": sum(browser.closed for browser in everyone),
        "hashes": [[browser.data["next"], browser.data["hash"].hexdigest()] for browser in everyone],
    })  # fmt: skip


async def _stall(asked: dict[str, Any], watching: Watching) -> list[Browser]:
    """Open those that stop reading, when told to."""
    count = (await told())["stalled"]
    stalled = await open_all(asked["port"], asked["paths"][:count], asked["cookies"][:count], watching.on_frame)
    for browser in stalled:
        watching.start(browser, stalls=True)
    return stalled


async def _all_read(browsers: list[Browser], watching: Watching, patience: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            for browser in browsers:
                while not browser.closed and browser.data["next"] != watching.end:
                    watching.news.clear()
                    await watching.news.wait()


if __name__ == "__main__":
    run(main)
