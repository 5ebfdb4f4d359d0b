"""What is printed now, to all who watch it here: new bytes are read once in a process, and framed once for all."""

import asyncio
import logging
from typing import Any

from django.db import DatabaseError

from jobs import logstore, tail
from jobs.logwindow import LogWindow, frame
from jobs.models import Run
from jobs.status import log_head
from portal import live
from portal.hub import Feed, Message, hub
from portal.shared import in_thread

log = logging.getLogger(__name__)

GROWN = "grown"  # the topic under which a relay wakes its watchers
KEPT = 512 * 1024  # bytes of a log's end that are in memory while anybody watches it
LOOK_EVERY = 5.0  # seconds: what the news of growing bytes don't say is looked up that often
AGAIN = 1.0  # seconds after a failure
_NEWS = {GROWN: Message()}


class Relay:
    """One run's log while it is watched: how far it reaches, and its newest bytes."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.head: dict[str, Any] | None = None  # as `status.log_head`; None before the first look
        self.watchers: set[Feed] = set()
        self._start = 0  # the offset of the first byte in memory
        self._data = bytearray()
        self._frames: dict[tuple[int, int], bytes] = {}
        self._feed = Feed()
        self._look_due = 0.0
        self._task = asyncio.create_task(self._run())

    def frame(self, window: LogWindow, most: int) -> bytes | None:
        """The next frame for a window, of at most so many bytes, which then count as sent; None: not in memory."""
        first = window.sent
        last = min(first + most, self._end)
        if not self._start <= first < last:
            return None
        if (first, last) not in self._frames:
            data = bytes(self._data[first - self._start : last - self._start])
            self._frames[first, last] = frame(self.run_id, window.generation, first, data)
        window.sent = last
        return self._frames[first, last]

    def look_again(self) -> None:
        """Ask the database soon, unless that has just been done: news may have been lost."""
        if asyncio.get_running_loop().time() > self._look_due - LOOK_EVERY + AGAIN:
            self._look_due = 0.0
            self._nudge()

    def _nudge(self) -> None:
        self._feed.put({live.log_topic(self.run_id): Message(gap=True)}, 0)

    def close(self) -> None:
        self._task.cancel()

    @property
    def _end(self) -> int:
        return self._start + len(self._data)

    async def _run(self) -> None:
        hub.listen(self._feed, {live.log_topic(self.run_id)})
        try:
            await self._try(Message(gap=True))
            while True:
                for message in (await self._feed.get()).values():
                    await self._try(message)
        finally:
            hub.leave(self._feed)

    async def _try(self, message: Message) -> None:
        try:
            await self._hear(message)
        except Exception as error:  # a log storage may raise whatever it likes
            known = isinstance(error, DatabaseError | OSError)
            log.warning("the log of run %s can't be read for now: %s", self.run_id, error, exc_info=not known)
            await asyncio.sleep(AGAIN)
            self._nudge()
        now = asyncio.get_running_loop().time()
        for watcher in self.watchers:
            watcher.put(_NEWS, now)

    async def _hear(self, message: Message) -> None:
        head = self.head
        if head is None or not self._only_grows(message, head):
            await self._look()
            return
        end = max(message["end"], head["end"])
        first = max(self._end, end - KEPT)
        data = await in_thread(tail.read, self.run_id, head["generation"], first, end)
        if len(data) < end - first:
            await self._look()  # it is in a segment already, or Redis is away
        else:
            self._take(first, data)
            self.head = {**head, "end": end}

    def _only_grows(self, message: Message, head: dict[str, Any]) -> bool:
        if "end" not in message or "complete" in message or head["complete"]:
            return False
        if asyncio.get_running_loop().time() >= self._look_due:
            return False
        return bool(message["generation"] == head["generation"])

    async def _look(self) -> None:
        """What the database says. Bytes come along when the log has gone on from what is in memory."""
        known = self.head and self.head["generation"]
        self._look_due = asyncio.get_running_loop().time() + LOOK_EVERY
        head, first, data = await in_thread(_looked_up, self.run_id, known, self._end)
        if head is None:
            return
        if head["generation"] != known:
            self._start, self._data = first, bytearray()
        self._take(first, data)
        self.head = head

    def _take(self, first: int, data: bytes) -> None:
        self._frames.clear()
        if first != self._end:
            self._start, self._data = first, bytearray()
        self._data += data
        if (surplus := len(self._data) - KEPT) > 0:
            del self._data[:surplus]
            self._start += surplus


def _looked_up(run_id: int, generation: int | None, known: int) -> tuple[dict[str, Any] | None, int, bytes]:
    """The log's head, and its bytes behind `known` with their offset; none of a generation that was not watched."""
    run = Run.objects.filter(pk=run_id).first()
    head = log_head(run)
    if run is None or head is None:
        return None, 0, b""
    end = head["end"]
    if generation != head["generation"] or end < known:
        return head, end, b""
    first = max(known, end - KEPT)
    return head, first, read_of(run_id, head["generation"], first, end)


def read_of(run_id: int, generation: int, start: int, end: int) -> bytes:
    """The bytes [start, end) of this generation; none when it has been replaced while we read."""
    run = Run.objects.get(pk=run_id)
    data = logstore.read(run, start, end) if end > start else b""
    still = Run.objects.filter(pk=run_id, log_generation=generation).exists()
    return data if still and run.log_generation == generation else b""


# --- the relays of this process ---

_relays: dict[int, Relay] = {}


def join(run_id: int, watcher: Feed) -> Relay:
    """The run's relay, which wakes this watcher from now on."""
    relay = _relays.get(run_id)
    if relay is None:
        relay = _relays[run_id] = Relay(run_id)
    relay.watchers.add(watcher)
    return relay


def leave(relay: Relay, watcher: Feed) -> None:
    relay.watchers.discard(watcher)
    if not relay.watchers:
        relay.close()
        if _relays.get(relay.run_id) is relay:
            del _relays[relay.run_id]
