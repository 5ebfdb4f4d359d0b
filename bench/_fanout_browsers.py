"""The browsers of the fan-out: each counts the samples it gets, and how late they are."""

import asyncio
import contextlib
import time
from array import array
from typing import Any

from bench._browsers import Browser, cpu_seconds, open_all, run, tell, told

_MARK = b'"at":'
_GRACE = 5.0  # seconds that the last samples may take


async def main(asked: dict[str, Any]) -> None:
    late = array("d")
    done = asyncio.Event()
    bytes_of = {"text": 0}

    def on_frame(browser: Browser, _opcode: int, payload: memoryview) -> None:
        now = time.time()
        found = bytes(payload)
        start = found.find(_MARK) + len(_MARK)
        word = found[start : start + 20].split(b",", 1)[0]
        at = float(word) if start >= len(_MARK) and word != b"null" else 0.0
        if at <= browser.data.get("at", since["at"]):  # told again, or older than what is counted
            return
        browser.data["at"] = at
        browser.data["count"] = browser.data.get("count", 0) + 1
        bytes_of["text"] = len(found)
        late.append(now - at)
        if len(late) == len(asked["paths"]) * asked["samples"]:
            done.set()

    since = {"at": float("inf")}
    browsers = await open_all(asked["port"], asked["paths"], asked["cookies"], on_frame)
    tell({"open": len(browsers)})
    since["at"] = (await told())["since"]
    before = cpu_seconds()
    await told()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), _GRACE)
    tell({
        "delivered": len(late), "fewest": min(browser.data.get("count", 0) for browser in browsers),
        "closed": sum(browser.closed for browser in browsers), "late": [round(value * 1000, 2) for value in late],
        "cpu_seconds": cpu_seconds() - before, "bytes": bytes_of["text"],
    })  # fmt: skip


if __name__ == "__main__":
    run(main)
