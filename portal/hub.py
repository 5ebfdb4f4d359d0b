"""The one subscription of a web process, and its fan-out in memory to whoever listens.

News of a topic reach all its listeners at once and, where APART says so, no more often than that: the newest of each
topic, so that a slow listener loses news, never memory. Under HUB every listener hears that news stopped or began
to come, {"live": bool}; after any time without them each of its topics says {"gap": True}: look again.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import redis
import redis.asyncio
from django.conf import settings

from portal import live

log = logging.getLogger(__name__)

HUB = "hub"
APART = {"jobs": 1.0, "job": 0.25, "gpus": 0.25}  # seconds between two deliveries, by the topic's kind
ALL_HEARD = ("jobs", "job:*", "gpus:*", "user:*")  # by every process; what is printed, only while it is watched here


class Message(dict[str, Any]):
    """One piece of news. `said` is for what listeners make of it: made once, sent to many."""

    __slots__ = ("said",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.said: dict[Any, str] = {}


class Feed:
    """One listener's pending news: the newest message of each topic. `told_at`: when the last came, by the clock."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.told_at = 0.0
        self._pending: dict[str, Message] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, news: Mapping[str, Message], at: float) -> None:
        self.told_at = max(self.told_at, at)
        self._pending.update(news)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> dict[str, Message]:
        """Wait for news; return the newest of each topic that has any."""
        while not self._pending:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        news, self._pending = self._pending, {}
        return news


class _Line:
    """The listeners of one topic or pattern, and what they will hear next."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.feeds: set[Feed] = set()
        self._apart = APART.get(topic.partition(":")[0], 0.0)
        self._news: dict[str, Message] = {}
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, topic: str, message: Message) -> None:
        self._news[topic] = message
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait = self._not_before - loop.time()
            if wait <= 0:
                self._tell()
            else:
                self._timer = loop.call_later(wait, self._tell)

    def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        self._timer, self._not_before = None, now + self._apart
        news, self._news = self._news, {}
        for feed in self.feeds:
            feed.put(news, now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Hub:
    """The subscription, and who listens to what. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._reader: asyncio.Task[None] | None = None
        self._subscription: Any = None
        self._heard: set[str] = set()  # topics beside ALL_HEARD that Redis was asked for
        self._asking: asyncio.Task[None] | None = None
        self.lost = False  # whether news are known not to come

    def listen(self, feed: Feed, topics: Iterable[str]) -> None:
        """Give the feed the news of these topics from now on, and of no others. A topic may end in `*`.

        Of a topic that nobody has listened to here, news may come a moment later only; then `gap` is told first.
        """
        wanted = frozenset(topics)
        for topic in wanted - feed.topics:
            self._lines.setdefault(topic, _Line(topic)).feeds.add(feed)
        for topic in feed.topics - wanted:
            self._leave(topic, feed)
        feed.topics = wanted
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        self._ask()

    def leave(self, feed: Feed) -> None:
        """Let the feed hear nothing more."""
        for topic in feed.topics:
            self._leave(topic, feed)
        feed.topics = frozenset()
        self._ask()

    def _leave(self, topic: str, feed: Feed) -> None:
        line = self._lines[topic]
        line.feeds.discard(feed)
        if not line.feeds:
            line.close()
            del self._lines[topic]

    # --- Redis ---

    async def _read(self) -> None:
        """Read the subscription for ever; reconnect with back-off."""
        delay = 0.1
        while not _is_cancelled():
            client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=settings.NEWS_SILENCE)
            try:
                async with client.pubsub() as subscription:
                    await subscription.psubscribe(*(live.channel(topic) for topic in ALL_HEARD))
                    self._subscription, self._heard = subscription, set()
                    self._ask()
                    async for item in _items(subscription):
                        if item["type"] == "psubscribe":
                            delay = 0.1
                        self._take(item)
            except (redis.RedisError, OSError) as error:
                log.warning("live subscription lost, again in %.1f s: %s", delay, error)
                self._say(lost=True)
            finally:
                self._subscription = None
                await client.aclose()
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5)

    def _ask(self) -> None:
        """Let Redis be asked for what is listened to by now, and no longer for what is not."""
        idle = self._asking is None or self._asking.done()
        if idle and self._subscription is not None and self._wanted() != self._heard:
            self._asking = asyncio.create_task(self._ask_now())

    def _wanted(self) -> set[str]:
        return {topic for topic in self._lines if topic not in ALL_HEARD and f"{_kind(topic)}:*" not in ALL_HEARD}

    async def _ask_now(self) -> None:
        try:
            while (subscription := self._subscription) is not None and (wanted := self._wanted()) != self._heard:
                fresh, stale = wanted - self._heard, self._heard - wanted
                self._heard = wanted
                if fresh:
                    await subscription.subscribe(*map(live.channel, fresh))
                if stale:
                    await subscription.unsubscribe(*map(live.channel, stale))
        except (redis.RedisError, OSError) as error:
            log.info("Redis can't be asked for more news: %s", error)  # the reader notices, and begins anew

    def _take(self, item: dict[str, Any]) -> None:
        kind = item["type"]
        topic = live.topic_of(item["channel"])
        if kind in ("pmessage", "message"):
            self._deliver(topic, item["data"])
        elif kind == "psubscribe":
            self._say(lost=False)
            self._gap(self._lines if topic == ALL_HEARD[-1] else ())
        elif kind == "subscribe":
            self._gap([topic])

    def _deliver(self, topic: str, data: bytes) -> None:
        lines = [line for name in (topic, f"{_kind(topic)}:*") if (line := self._lines.get(name))]
        if lines:
            message = Message(json.loads(data))
            for line in lines:
                line.put(topic, message)

    # --- what the listeners hear of the hub itself ---

    def _gap(self, topics: Iterable[str]) -> None:
        """News may have been missed: wake every feed, so that all look again."""
        for topic in topics:
            if line := self._lines.get(topic):
                line.put(topic.rstrip("*"), Message(gap=True))

    def _say(self, *, lost: bool) -> None:
        """Tell every feed when news stop or begin again to come."""
        if lost != self.lost:
            self.lost = lost
            now = asyncio.get_running_loop().time()
            for feed in set().union(*(line.feeds for line in self._lines.values())):
                feed.put({HUB: Message(live=not lost)}, now)


async def _items(subscription: Any) -> AsyncIterator[dict[str, Any]]:
    """What the subscription hears; redis.TimeoutError once Redis has answered nothing for NEWS_SILENCE seconds."""
    heard = pinged = time.monotonic()
    while not _is_cancelled():
        item = await subscription.get_message(timeout=settings.NEWS_PING)
        now = time.monotonic()
        if item is not None:
            heard = now
            if item["type"] != "pong":
                yield item
        elif now - heard > settings.NEWS_SILENCE:
            raise redis.TimeoutError("Redis answers no ping")
        if now - pinged >= settings.NEWS_PING:
            pinged = now
            await subscription.ping()


def _kind(topic: str) -> str:
    return topic.partition(":")[0]


def _is_cancelled() -> bool:
    """Whether this task was told to end; the library turns a cancellation that meets its own time-out into that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


hub = Hub()
