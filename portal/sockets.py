"""What every WebSocket of the product has in common: who may open it, and how news becomes messages."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http.request import validate_host
from django.utils import timezone, translation
from django.utils.http import is_same_domain

from portal.hub import HUB, Feed, Message, hub
from portal.keeper import GONE, SIGNED_OUT, keeper, refusals
from portal.middleware import ZONE_COOKIE
from portal.shared import in_thread
from portal.zones import zone_named

__all__ = [
    "CLIENT",
    "GONE",
    "SIGNED_OUT",
    "Left",
    "LiveSocket",
    "OriginChecked",
    "SessionUser",
    "dumps",
    "in_thread",
    "same_origin",
]

log = logging.getLogger(__name__)

CLIENT = "client"  # the topic under which a client's own messages wake its socket
_PING, _LOOK = "ping", "look"  # those under which the keeper does
_NOTHING = Message()
OPENED = 0.25  # seconds: sockets that open together may share what they are told first
CONTENT = 5.0  # seconds: as old may be what is looked at again only to make sure


class SessionUser:
    """The session of a browser and whose it is, in `scope`: as Channels' own, but not in the way of each message."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        session, user = await in_thread(_session_and_user, _cookie(scope, settings.SESSION_COOKIE_NAME))
        return await self.inner({**scope, "session": session, "user": user}, receive, send)


def _session_and_user(key: str) -> tuple[SessionStore, Any]:
    session = SessionStore(key or None)
    asks: Any = SimpleNamespace(session=session)
    return session, get_user(asks)


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
    try:
        origin = urlsplit(_header(scope, b"origin"))
    except ValueError:  # a bracket that is never closed
        return False
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


class Left(Exception):
    """The client is gone."""


class LiveSocket(AsyncWebsocketConsumer):
    """A socket that turns news into messages, for as long as its user may see what it shows.

    A subclass says which `topics` it hears, looks at everything anew in `look` (at the start, after a gap in
    the news and every SOCKET_RECHECK seconds), and answers news in `on_news`; when its topics change, it calls
    `tune`. No method may block. `asked_at` is the moment, by the loop's clock, since which what it is about to look
    at may have changed.
    """

    channel_layer_alias = "none"  # the hub has the news: no subscription of each socket's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ping_due = self.check_due = 0.0  # the keeper's
        self.asked_at = 0.0
        self.feed = Feed()
        self._task: asyncio.Task[None] | None = None
        self._refusal: int | None = None

    # --- for subclasses ---

    def topics(self) -> set[str]:
        raise NotImplementedError

    @classmethod
    def unseen(cls, sockets: Collection[Any], users: Mapping[int, Any]) -> Iterable[Any]:
        """Those of the sockets, all of this class, whose user may not (or no longer) see their object. May block."""
        return ()

    async def look(self) -> None:
        pass

    async def on_news(self, news: dict[str, Message]) -> None:
        await self.look()

    async def on_message(self, message: dict[str, Any]) -> None:
        """A JSON object from the client."""

    async def say(self, message: dict[str, Any]) -> None:
        """Send JSON; waits while the client does not read."""
        await self.send_text(dumps(message))

    async def send_text(self, text: str) -> None:
        """Send JSON that has been made already, perhaps for others too."""
        await self._send({"type": "websocket.send", "text": text})

    async def send_bytes(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def _send(self, message: Any) -> None:
        try:
            await self.base_send(message)
        except OSError as error:  # as ASGI has it
            raise Left from error

    def wake(self) -> None:
        """Let `on_news` run soon, with the topic CLIENT."""
        self._put(CLIENT)

    def tune(self) -> None:
        """Hear the news of `topics()` from now on."""
        hub.listen(self.feed, self.topics())

    @property
    def user(self) -> Any:
        return self.scope["user"]

    @property
    def session_key(self) -> str | None:
        session: Any = self.scope["session"]
        key: str | None = session.session_key
        return key

    @property
    def authorization(self) -> str | None:
        """The header that a program came with; None for a browser, which has a session."""
        scope: Any = self.scope
        header: str | None = scope.get("token_authorization")
        return header

    @cached_property
    def language(self) -> str:
        return _language(self.scope)

    @cached_property
    def zone(self) -> ZoneInfo | None:
        return _zone(self.scope)

    def in_language(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with the reader's language and zone active, for `in_thread`."""
        language, zone = self.language, self.zone

        def run(*args: Any) -> Any:
            with translation.override(language), timezone.override(zone):
                return function(*args)

        return run

    # --- for the keeper ---

    def ping_now(self) -> None:
        self._put(_PING)

    def look_again(self, at: float) -> None:
        self._put(_LOOK, at)

    def refuse(self, code: int) -> None:
        """Close, whatever is being done or sent."""
        self._refusal = code
        if self._task is not None:
            self._task.cancel()

    # --- its life ---

    async def connect(self) -> None:
        if not self.user.is_authenticated or await in_thread(refusals, [self]):
            await self.close()  # before accept: the same refusal for a stranger and for a missing object
            return
        await self.accept()
        self._task = asyncio.create_task(self._serve())
        keeper.add(self)

    async def disconnect(self, code: int) -> None:
        keeper.discard(self)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As Channels does, without the hop into a thread to tidy the connections that only `in_thread` uses."""
        await getattr(self, get_handler_name(message))(message)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            message = json.loads(text_data or "")
        except (ValueError, RecursionError):  # the latter for what is nested without end
            return
        if isinstance(message, dict):
            await self.on_message(message)

    async def _serve(self) -> None:
        try:
            await self._pump()
        except asyncio.CancelledError:
            if self._refusal is None:
                raise
            await self.close(code=self._refusal)
        except Left:
            pass
        except Exception:
            log.exception("socket of user %s failed", self.user.pk)
            await self.close(code=1011)
        finally:
            hub.leave(self.feed)

    async def _pump(self) -> None:
        self.tune()
        if hub.lost or keeper.silent:
            await self._ping()
        self.asked_at = asyncio.get_running_loop().time() - OPENED
        await self.look()
        while True:
            news = await self.feed.get()
            self.asked_at = self.feed.told_at
            await self._handle(news)

    async def _handle(self, news: dict[str, Message]) -> None:
        if news.pop(HUB, None) is not None or news.pop(_PING, None) is not None:
            await self._ping()
        looks = news.pop(_LOOK, None) is not None
        missed = [topic for topic, message in news.items() if "gap" in message]
        if looks and not news:
            self.asked_at -= CONTENT
        if looks or missed:
            await self.look()
        for topic in missed:
            del news[topic]
        if news:
            await self.on_news(news)

    async def _ping(self) -> None:
        """The server's time, whether it hears news at all, and of which hosts nothing was heard for a while."""
        await self.say({"ping": time.time(), "live": not hub.lost, "silent": keeper.silent})

    def _put(self, topic: str, at: float | None = None) -> None:
        self.feed.put({topic: _NOTHING}, asyncio.get_running_loop().time() if at is None else at)


def dumps(value: Any) -> str:
    """JSON as it is sent to browsers."""
    return json.dumps(value, separators=(",", ":"))


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
