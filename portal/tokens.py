"""Bearer tokens: who a program speaks for, in HTTP and in the handshake of a socket."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from channels.db import database_sync_to_async
from django.db.models import Q
from django.utils import timezone

from portal.models import TOKEN_PREFIX, ApiToken, User

LAST_USED_EVERY = timedelta(minutes=1)


def bearer_secret(header: str) -> str | None:
    """The secret in an `Authorization` header of the bearer scheme; None when it has none."""
    scheme, _, secret = header.strip().partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and secret else None


def token_for_secret(secret: str) -> ApiToken | None:
    """The live token of an active user; None for one unknown, expired or revoked.

    Always one hash and one look-up by the hash: the answer's time tells nothing about the secret.
    """
    token = ApiToken.objects.select_related("user").filter(digest=ApiToken.digest_of(secret)).first()
    if token is None or token.is_expired or not token.user.is_active or not secret.startswith(TOKEN_PREFIX):
        return None
    _mark_used(token)
    return token


def _mark_used(token: ApiToken) -> None:
    """Remember the use, at most once a minute, so that a busy program does not make every read a write."""
    now = timezone.now()
    stale = now - LAST_USED_EVERY
    if token.last_used_at is None or token.last_used_at <= stale:
        unused = Q(last_used_at=None) | Q(last_used_at__lte=stale)
        ApiToken.objects.filter(unused, pk=token.pk).update(last_used_at=now)


def token_for_authorization(header: str) -> ApiToken | None:
    """The token of an `Authorization` header; None when it is no bearer header or the token is not good."""
    secret = bearer_secret(header)
    return token_for_secret(secret) if secret else None


def user_for_authorization(header: str) -> User | None:
    """The person a socket's `Authorization` header speaks for; None refuses."""
    token = token_for_authorization(header)
    return token.user if token else None


App = Callable[[dict[str, Any], Any, Any], Awaitable[Any]]


class BearerAuth:
    """ASGI middleware of sockets: a handshake with a bearer token is a program's, any other a browser's.

    A program has no cookies and sends no Origin; it goes straight to `programs` with `scope["user"]` set, or is
    refused before accept. `browsers` checks Origin and session. A bad token never falls back to a session.
    `scope["token_authorization"]` lets the socket check again later that the token still holds.
    """

    def __init__(self, programs: App, *, browsers: App) -> None:
        self.programs = programs
        self.browsers = browsers

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        header = _authorization(scope)
        if header is None:
            return await self.browsers(scope, receive, send)
        user = await database_sync_to_async(user_for_authorization, thread_sensitive=False)(header)
        if user is None:
            await receive()  # websocket.connect
            return await send({"type": "websocket.close", "code": 4401})
        return await self.programs({**scope, "user": user, "token_authorization": header}, receive, send)


def _authorization(scope: dict[str, Any]) -> str | None:
    values = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
    return values[0].decode("latin-1") if values else None
