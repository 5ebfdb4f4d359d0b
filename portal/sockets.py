"""What every WebSocket of the product has in common: who may open it, how long, and how news becomes messages."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, get_user_model
from django.http.request import validate_host
from django.utils import timezone, translation
from django.utils.crypto import constant_time_compare
from django.utils.http import is_same_domain

from portal import live
from portal.middleware import ZONE_COOKIE
from portal.tokens import user_for_authorization
from portal.zones import zone_named

log = logging.getLogger(__name__)

SIGNED_OUT = 4401  # log-out, deactivation, password changed elsewhere: no use in trying again
GONE = 4404  # the object is gone or no longer this user's to see
NEWS_APART = 0.1  # seconds: news is coalesced to ten a second
CLIENT = "client"  # the topic under which a client's own messages wake its socket


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run what blocks (database, Redis, log storage) in the pool, not in the one thread that all others share."""
    return await database_sync_to_async(function, thread_sensitive=False)(*args)


class OriginChecked:
    """Refuses sockets that another site's page opens: the rule of Django's CSRF check, for the handshake."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        if scope["type"] == "websocket" and not same_origin(scope):
            await receive()
            await send({"type": "websocket.close", "code": 4403})
            return None
        return await self.inner(scope, receive, send)


def same_origin(scope: dict[str, Any]) -> bool:
    """Whether Origin is the host that was asked, one of ours, or a trusted origin. None at all is refused."""
    origin = urlsplit(_header(scope, b"origin"))
    if origin.scheme not in ("http", "https") or not origin.hostname:
        return False
    if any(_trusted(origin.scheme, origin.netloc, pattern) for pattern in settings.CSRF_TRUSTED_ORIGINS):
        return True
    return origin.netloc == _header(scope, b"host") and validate_host(origin.hostname, _allowed_hosts())


def _trusted(scheme: str, netloc: str, pattern: str) -> bool:
    wanted = urlsplit(pattern)
    return scheme == wanted.scheme and is_same_domain(netloc, wanted.netloc.lstrip("*"))


def _allowed_hosts() -> list[str]:
    hosts = [host.strip("[]") if host.startswith("[") else host for host in settings.ALLOWED_HOSTS]
    return hosts or (["localhost", "127.0.0.1", "::1"] if settings.DEBUG else [])


class LiveSocket(AsyncWebsocketConsumer):
    """A socket that turns news into messages, for as long as its user may see what it shows.

    A subclass says which `topics` it hears, looks at everything anew in `look` (at the start, after a gap in
    the news and every SOCKET_RECHECK seconds), and answers news in `on_news`. Both return whether the topics
    are still the same; a socket whose topics changed subscribes again and looks again. No method may block.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feed: live.Feed | None = None
        self._task: asyncio.Task[None] | None = None
        self._ping_due = self._check_due = 0.0

    # --- for subclasses ---

    async def topics(self) -> set[str]:
        raise NotImplementedError

    async def may_see(self) -> bool:
        """Whether the user may (still) see the object of this socket."""
        return True

    async def look(self) -> bool:
        return True

    async def on_news(self, news: dict[str, live.Message]) -> bool:
        return await self.look()

    async def on_message(self, message: dict[str, Any]) -> None:
        """A JSON object from the client."""

    async def say(self, message: dict[str, Any]) -> None:
        """Send JSON; waits while the client does not read."""
        await self.send(text_data=json.dumps(message, separators=(",", ":")))

    def wake(self) -> None:
        """Let `on_news` run soon, with the topic CLIENT."""
        if self._feed is not None:
            self._feed.put(CLIENT, {})

    @property
    def user(self) -> Any:
        return self.scope["user"]

    def in_language(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with the reader's language and zone active, for `in_thread`."""

        def run(*args: Any) -> Any:
            with translation.override(_language(self.scope)), timezone.override(_zone(self.scope)):
                return function(*args)

        return run

    # --- its life ---

    async def connect(self) -> None:
        if not await self._signed_in() or not await self.may_see():
            await self.close()  # before accept: the same refusal for a stranger and for a missing object
            return
        await self.accept()
        self._task = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            message = json.loads(text_data or "")
        except ValueError:
            return
        if isinstance(message, dict):
            await self.on_message(message)

    async def _serve(self) -> None:
        try:
            await self._pump()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("socket of user %s failed", self.user.pk)
            await self.close(code=1011)

    async def _pump(self) -> None:
        self._ping_due = time.monotonic() + settings.SOCKET_PING
        while True:
            topics = await self.topics() | {live.user_topic(self.user.pk)}
            async with live.hub.subscribe(*topics) as feed:
                self._feed = feed
                if live.hub.lost:
                    await self._ping(now=True)
                self._check_due = time.monotonic() + settings.SOCKET_RECHECK
                same = await self.look()
                while same:
                    news = await self._next(feed)
                    refusal = await self._refusal(news)
                    if refusal:
                        await self.close(code=refusal)
                        return
                    await self._ping()
                    same = await self._handle(news)

    async def _next(self, feed: live.Feed) -> dict[str, live.Message]:
        """The next news; empty when a ping or a check is due before any comes."""
        wait = max(0.0, min(self._ping_due, self._check_due) - time.monotonic())
        try:
            return await asyncio.wait_for(feed.get(), wait)
        except TimeoutError:
            return {}

    async def _refusal(self, news: dict[str, live.Message]) -> int | None:
        """The code to close with, when a check was due and failed."""
        due = time.monotonic() >= self._check_due
        if not due and live.user_topic(self.user.pk) not in news:
            return None
        if due:
            self._check_due = time.monotonic() + settings.SOCKET_RECHECK
            news["check"] = {}
        sees = await self.may_see()
        if not await self._signed_in():  # asked last: who is signed out sees nothing either
            return SIGNED_OUT
        return None if sees else GONE

    async def _handle(self, news: dict[str, live.Message]) -> bool:
        news.pop(live.user_topic(self.user.pk), None)
        if news.pop(live.HUB, None) is not None:
            await self._ping(now=True)
        if not news:
            return True
        if "check" in news or any("gap" in message for message in news.values()):
            return await self.look()
        same = await self.on_news(news)
        if set(news) != {CLIENT}:
            await asyncio.sleep(NEWS_APART)
        return same

    async def _ping(self, *, now: bool = False) -> None:
        """When one is due, or `now`: the server's time, and whether it hears news at all."""
        if now or time.monotonic() >= self._ping_due:
            self._ping_due = time.monotonic() + settings.SOCKET_PING
            await self.say({"ping": time.time(), "live": not live.hub.lost})

    async def _signed_in(self) -> bool:
        if not self.user.is_authenticated:
            return False
        if (header := self.scope.get("token_authorization")) is not None:
            return bool(await in_thread(user_for_authorization, header))
        return bool(await in_thread(_session_holds, self.user.pk, self.scope["session"].session_key))


def _session_holds(user_id: int, session_key: str | None) -> bool:
    """Whether the session still exists, is this user's, and its user is active with the same password."""
    from importlib import import_module

    store = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    if user is None or not session_key:
        return False
    return constant_time_compare(store.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())


def _header(scope: Any, name: bytes) -> str:
    return str(dict(scope["headers"]).get(name, b"").decode("latin-1"))


def _cookie(scope: Any, name: str) -> str:
    found = SimpleCookie(_header(scope, b"cookie")).get(name)
    return found.value if found else ""


def _language(scope: Any) -> str:
    """The reader's language as pages choose it: this browser's choice, the person's, what the browser prefers.

    A program gets what it asks for, as from the API: its own words around ours must not be of another language.
    """
    candidates = [_cookie(scope, settings.LANGUAGE_COOKIE_NAME)]
    if "token_authorization" not in scope:
        candidates.append(getattr(scope["user"], "language", ""))
    candidates += [part.partition(";")[0].strip() for part in _header(scope, b"accept-language").split(",")]
    for code in candidates:
        with contextlib.suppress(LookupError):
            return translation.get_supported_language_variant(code)
    return str(settings.LANGUAGE_CODE)


def _zone(scope: Any) -> ZoneInfo | None:
    """The browser's zone, as pages know it; None: the installation's."""
    return zone_named(_cookie(scope, ZONE_COOKIE))
