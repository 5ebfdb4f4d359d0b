"""Looks after all open sockets of a web process: pings them, and finds out in bulk who may still see what."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from portal.hub import Feed, hub
from portal.shared import in_thread
from portal.tokens import user_for_authorization

if TYPE_CHECKING:
    from portal.sockets import LiveSocket

log = logging.getLogger(__name__)

SIGNED_OUT = 4401  # log-out, deactivation, password changed elsewhere: no use in trying again
GONE = 4404  # the object is gone or no longer this user's to see
_USERS = "user:*"
_HOSTS_EVERY = 2.0  # seconds between two looks for silent hosts


class Keeper:
    """The open sockets of one event loop. It has a task of its own while there are any."""

    def __init__(self) -> None:
        self._sockets: set[LiveSocket] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = itertools.count()
        self._hosts_due = 0.0
        self.find_silent: Callable[[], list[str]] = list  # may block
        self.silent: list[str] = []  # hosts that were not heard of: every page is told

    def add(self, socket: "LiveSocket") -> None:
        """Ping the socket and check its right to be open, from now on, until `discard`."""
        now = time.monotonic()
        spread = 0.5 + next(self._opened) % 16 / 32  # pages that opened together are not all looked after together
        socket.ping_due, socket.check_due = now + spread * settings.SOCKET_PING, now + spread * settings.SOCKET_RECHECK
        self._sockets.add(socket)
        if not self._tasks or any(task.done() for task in self._tasks):
            self._tasks = [asyncio.create_task(self._look_after()), asyncio.create_task(self._hear())]

    def discard(self, socket: "LiveSocket") -> None:
        self._sockets.discard(socket)
        if not self._sockets:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def kinds(self) -> list[str]:
        """The kind of each open socket, by its class; from any thread."""
        return [type(socket).__name__ for socket in tuple(self._sockets)]

    async def _look_after(self) -> None:
        while True:
            now = time.monotonic()
            for socket in [socket for socket in self._sockets if socket.ping_due <= now]:
                socket.ping_due = now + settings.SOCKET_PING
                socket.ping_now()
            await self._check([socket for socket in self._sockets if socket.check_due <= now])
            if now >= self._hosts_due:
                self._hosts_due = now + _HOSTS_EVERY
                await self._look_for_silent_hosts()
            await asyncio.sleep(min(1.0, settings.SOCKET_PING / 2, settings.SOCKET_RECHECK / 2))

    async def _look_for_silent_hosts(self) -> None:
        try:
            silent = await in_thread(self.find_silent)
        except DatabaseError as error:
            log.info("hosts can't be looked at for now: %s", error)
            return
        if silent != self.silent:
            self.silent = silent
            for socket in self._sockets:
                socket.ping_now()

    async def _hear(self) -> None:
        """Check a user's sockets when something is told of the user, and all when it may have been missed."""
        feed = Feed()
        hub.listen(feed, {_USERS})
        try:
            while True:
                news = await feed.get()
                told = {topic.partition(":")[2] for topic, message in news.items() if "gap" not in message}
                missed = any("gap" in message for message in news.values())
                await self._check([found for found in self._sockets if missed or str(found.user.pk) in told])
        finally:
            hub.leave(feed)

    async def _check(self, sockets: Collection["LiveSocket"]) -> None:
        """Close those that may be open no longer, and let the others look at everything anew."""
        if not sockets:
            return
        due = time.monotonic() + settings.SOCKET_RECHECK
        for socket in sockets:
            socket.check_due = due
        try:
            refused = await in_thread(refusals, sockets)
        except Exception:
            log.exception("sockets can't be checked for now")  # they are again, as nothing new is read meanwhile
            return
        at = asyncio.get_running_loop().time()
        for socket in sockets:
            if code := refused.get(socket):
                socket.refuse(code)
            else:
                socket.look_again(at)


def refusals(sockets: Iterable["LiveSocket"]) -> dict["LiveSocket", int]:
    """The sockets that may be open no longer, with the code to close each with. Few queries for any number."""
    sockets = list(sockets)
    users = {user.pk: user for user in get_user_model().objects.filter(pk__in={s.user.pk for s in sockets})}
    signed_out = _signed_out(sockets, users)
    left = [socket for socket in sockets if socket not in signed_out]
    gone = {found for kind in {type(s) for s in left} for found in kind.unseen(_of(left, kind), users)}
    return dict.fromkeys(gone, GONE) | dict.fromkeys(signed_out, SIGNED_OUT)


def _of(sockets: Iterable["LiveSocket"], kind: type) -> list[Any]:
    return [socket for socket in sockets if type(socket) is kind]


def _signed_out(sockets: list["LiveSocket"], users: dict[int, Any]) -> set["LiveSocket"]:
    """Those whose session or token no longer is a live one of the same active user with the same password."""
    headers = {socket.authorization for socket in sockets if socket.authorization is not None}
    tokens = {header for header in headers if user_for_authorization(header)}
    sessions = _sessions({socket.session_key for socket in sockets if socket.authorization is None})
    hashes = {pk: user.get_session_auth_hash() for pk, user in users.items() if user.is_active}
    return {socket for socket in sockets if not _holds(socket, tokens, sessions, hashes)}


def _holds(socket: "LiveSocket", tokens: set[str], sessions: dict[str, str], hashes: dict[int, str]) -> bool:
    if socket.authorization is not None:
        return socket.authorization in tokens
    known = hashes.get(socket.user.pk)
    return known is not None and constant_time_compare(sessions.get(socket.session_key or "", ""), known)


def _sessions(keys: set[str | None]) -> dict[str, str]:
    """The password's hash in each live session of these keys."""
    rows = Session.objects.filter(session_key__in=keys - {None}, expire_date__gt=timezone.now())
    return {key: _hash_in(data) for key, data in rows.values_list("session_key", "session_data")}


@lru_cache(maxsize=8192)
def _hash_in(session_data: str) -> str:
    """A session's content changes with its data only; what can't be read is no session of anybody."""
    return str(SessionStore().decode(session_data).get(HASH_SESSION_KEY, ""))


keeper = Keeper()
