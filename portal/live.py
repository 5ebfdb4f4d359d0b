"""The one door for news to browsers: a process publishes on Redis, each web process has one subscription.

Messages are small and may all be lost; the truth is in the database and in log storage. Subscribers get
the newest message per topic, so that a slow browser loses news, never memory.

Topics: `jobs` (some job changed: {"job": id}), `job:<id>`, `log:<run id>` ({"generation": g, "end": bytes}),
`gpus:<node>` (a node's readings), `user:<id>` (log-out or deactivation: re-check now). Under HUB every
subscriber hears that news stopped or began to come: {"live": bool}; nobody publishes it.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger(__name__)

JOBS = "jobs"
HUB = "hub"
Message = dict[str, Any]


def job_topic(job_id: int) -> str:
    return f"job:{job_id}"


def log_topic(run_id: int) -> str:
    return f"log:{run_id}"


def gpus_topic(node_name: str) -> str:
    return f"gpus:{node_name}"


def user_topic(user_id: int) -> str:
    return f"user:{user_id}"


def _prefix() -> str:
    return f"dockyard.{settings.INSTALLATION}.live."


@cache
def connection() -> redis.Redis:
    """This process's Redis client: bytes in, bytes out, bounded waits."""
    once = Retry(NoBackoff(), 1)  # the library's own patience would hold up whoever has news to tell
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=2, retry=once)


@cache
def _brief_connection() -> redis.Redis:
    """A client that gives up soon. A connection that a restarted Redis has closed is made anew, once."""
    anew = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    patience = settings.REDIS_PATIENCE
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=patience, socket_connect_timeout=patience, retry=anew
    )


_rest = {"until": 0.0}  # of this process


@contextlib.contextmanager
def briefly() -> Iterator[redis.Redis]:
    """Redis for those whom somebody waits for: it answers within REDIS_PATIENCE or raises a RedisError.

    After a failure nobody in this process asks for REDIS_REST seconds: the block is left with an error at once.
    """
    if time.monotonic() < _rest["until"]:
        raise redis.ConnectionError("Redis failed a moment ago")
    try:
        yield _brief_connection()
    except (redis.ConnectionError, redis.TimeoutError):
        _rest["until"] = time.monotonic() + settings.REDIS_REST
        raise


def publish(topic: str, message: Message) -> None:
    """Send news to whoever watches `topic`. Never raises: news may be lost, work may not."""
    try:
        with briefly() as redis_now:
            redis_now.publish(_prefix() + topic, json.dumps(message, separators=(",", ":")))
    except redis.RedisError as error:
        log.warning("news on %s lost: %s", topic, error)


class Feed:
    """One subscriber's pending news: the newest message per topic, and whether Redis can be heard at all."""

    def __init__(self, topics: set[str]) -> None:
        self.topics = topics
        self.pending: dict[str, Message] = {}
        self._wake = asyncio.Event()

    def put(self, topic: str, message: Message) -> None:
        self.pending[topic] = message
        self._wake.set()

    async def get(self) -> dict[str, Message]:
        """Wait for news; return the newest of each topic that has any."""
        await self._wake.wait()
        self._wake.clear()
        news, self.pending = self.pending, {}
        return news


class Hub:
    """The single subscription of a web process, and its fan-out in memory."""

    def __init__(self) -> None:
        self._feeds: dict[str, set[Feed]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.lost = False  # whether news are known not to come

    @contextlib.asynccontextmanager
    async def subscribe(self, *topics: str) -> AsyncIterator[Feed]:
        """News of these topics for as long as the block runs. A topic may end in `*`."""
        feed = Feed(set(topics))
        for topic in topics:
            self._feeds.setdefault(topic, set()).add(feed)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            yield feed
        finally:
            for topic in topics:
                self._feeds[topic].discard(feed)
                if not self._feeds[topic]:
                    del self._feeds[topic]

    async def _read(self) -> None:
        """Read the subscription for ever; reconnect with back-off."""
        delay = 0.1
        while not _is_cancelled():
            client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=settings.NEWS_SILENCE)
            try:
                async with client.pubsub() as subscription:
                    await subscription.psubscribe(_prefix() + "*")
                    async for item in _items(subscription):
                        if item["type"] == "pmessage":
                            self._deliver(item["channel"].decode()[len(_prefix()) :], item["data"])
                        elif item["type"] == "psubscribe":
                            delay = 0.1
                            self._after_gap()
            except (redis.RedisError, OSError) as error:
                log.warning("live subscription lost, again in %.1f s: %s", delay, error)
                self._say(lost=True)
            finally:
                await client.aclose()
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5)

    def _after_gap(self) -> None:
        """News may have been missed: wake every feed, so that all look again."""
        self._say(lost=False)
        for topic, feeds in self._feeds.items():
            for feed in feeds:
                feed.put(topic.rstrip("*"), {"gap": True})

    def _say(self, *, lost: bool) -> None:
        """Tell every feed when news stop or begin again to come."""
        if lost != self.lost:
            self.lost = lost
            for feed in set().union(*self._feeds.values()):
                feed.put(HUB, {"live": not lost})

    def _deliver(self, topic: str, data: bytes) -> None:
        kind = topic.partition(":")[0]
        feeds = self._feeds.get(topic, set()) | self._feeds.get(f"{kind}:*", set())
        if feeds:
            message = json.loads(data)
            for feed in feeds:
                feed.put(topic, message)


async def _items(subscription: Any) -> AsyncIterator[dict[str, Any]]:
    """What the subscription hears; redis.TimeoutError once Redis has answered nothing for NEWS_SILENCE seconds."""
    heard = pinged = time.monotonic()
    while not _is_cancelled():
        item = await subscription.get_message(timeout=settings.NEWS_PING)
        now = time.monotonic()
        if item is not None:
            heard = now
            yield item
        elif now - heard > settings.NEWS_SILENCE:
            raise redis.TimeoutError("Redis answers no ping")
        if now - pinged >= settings.NEWS_PING:
            pinged = now
            await subscription.ping()


def _is_cancelled() -> bool:
    """Whether this task was told to end; the library turns a cancellation that meets its own time-out into that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


hub = Hub()
