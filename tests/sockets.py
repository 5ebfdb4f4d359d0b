"""A browser's sockets in tests: signed in by session, with cookies and Origin as a browser sends them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.test import Client

from portal import live
from portal.asgi import application

HOST = "testserver"


def in_db(function: Callable[..., Any]) -> Callable[..., Any]:
    """A blocking function as a coroutine function, in a thread that may use the database."""

    async def run(*args: Any, **kwargs: Any) -> Any:
        return await database_sync_to_async(function)(*args, **kwargs)

    return run


async def _communicator(path: str, user: Any, origin: str, client: Client | None) -> WebsocketCommunicator:
    client = client or Client()
    if user is not None and settings.SESSION_COOKIE_NAME not in client.cookies:
        await in_db(client.force_login)(user)
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    headers = [(b"host", HOST.encode()), (b"cookie", cookies.encode())]
    if origin:
        headers.append((b"origin", origin.encode()))
    return WebsocketCommunicator(application, path, headers=headers)


async def connect(path: str, user: Any, *, origin: str = f"http://{HOST}") -> tuple[bool, int | None]:
    """Whether the handshake is accepted, and the code where it is not."""
    socket = await _communicator(path, user, origin, None)
    accepted, code = await socket.connect(timeout=60)
    if accepted:
        await socket.disconnect(timeout=60)
    return accepted, None if accepted else code


@contextlib.asynccontextmanager
async def open_socket(path: str, user: Any, *, client: Client | None = None) -> AsyncIterator[WebsocketCommunicator]:
    """An accepted socket, closed at the end of the block."""
    socket = await _communicator(path, user, f"http://{HOST}", client)
    accepted, code = await socket.connect(timeout=60)
    assert accepted, code
    try:
        yield socket
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await socket.disconnect(timeout=60)


async def message(
    socket: WebsocketCommunicator, wanted: Callable[[dict[str, Any]], bool], *, seconds: float = 120
) -> dict[str, Any]:
    """The next JSON message that is wanted; binary frames and others are passed over."""
    async with asyncio.timeout(seconds):
        while True:
            output = await socket.receive_output(timeout=seconds)
            if output["type"] == "websocket.close":
                raise AssertionError(f"closed with {output.get('code')}")
            if output.get("text") is not None:
                found: dict[str, Any] = json.loads(output["text"])
                if wanted(found):
                    return found


async def closed_with(socket: WebsocketCommunicator, *, seconds: float = 120) -> int | None:
    """The code of the close that follows."""
    async with asyncio.timeout(seconds):
        while True:
            output = await socket.receive_output(timeout=seconds)
            if output["type"] == "websocket.close":
                return int(output["code"])


@contextlib.asynccontextmanager
async def publishing(topic: str, news: dict[str, Any]) -> AsyncIterator[None]:
    """The news come again and again, as readings do: the first of them may come before anybody listens."""

    async def publish() -> None:
        while True:
            await in_db(live.publish)(topic, news)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
