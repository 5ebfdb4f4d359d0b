"""How the web process runs Django's requests: each from end to end in one thread, and one after another in the same.

Django's own handler changes threads at every step between middleware that can be asynchronous and such that cannot,
and it gives each request a thread of its own, which has to open a connection to the database of its own.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from portal import bodies
from portal.requestlog import PROBES

MOST_IDLE = 8  # threads that wait for a request, each with its connection to the database
LEAST_IDLE = 2  # which wait for as long as it takes
MOST_AT_ONCE = 32  # pages that are made; all lists ask again at the same moment, and a database bears 100 connections


class Handler(ASGIHandler):
    """An ASGI application. `django.setup()` must have been called."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: dict[ThreadPoolExecutor, float] = {}  # since when, the longest first
        self._tidying: asyncio.TimerHandle | None = None
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and bodies.announces_too_much(scope):
            return await bodies.refuse(scope, send)
        bounded = bodies.Bounded(receive)
        await self._answer(scope, bounded, send)
        if bounded.is_over:
            await bodies.refuse(scope, send)
        return None

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        executor = self._idle.popitem()[0] if self._idle else ThreadPoolExecutor(1, "request")
        try:
            async with ThreadSensitiveContext(executor=executor):
                await super().__call__(scope, receive, send)
        finally:
            await self._take_back(executor)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """Once it is its turn; what is streamed afterwards keeps nobody waiting. Probes ask whether others do."""
        async with nullcontext() if request.path in PROBES else self._turns:
            found: HttpResponseBase = await sync_to_async(self.get_response, thread_sensitive=True)(request)
        return found

    async def _take_back(self, executor: ThreadPoolExecutor) -> None:
        """Once the thread is free: a browser that left does not stop what was begun for it."""
        await asyncio.wrap_future(executor.submit(_nothing))
        if len(self._idle) >= MOST_IDLE:
            return _end(executor)
        loop = asyncio.get_running_loop()
        self._idle[executor] = loop.time()
        if self._tidying is None:
            self._tidying = loop.call_later(settings.THREAD_REST, self._tidy)
        return None

    def _tidy(self) -> None:
        """End those that have waited for THREAD_REST: a burst is over, and its connections are for others."""
        loop = asyncio.get_running_loop()
        rested = [executor for executor, since in self._idle.items() if since <= loop.time() - settings.THREAD_REST]
        for executor in rested[: max(len(self._idle) - LEAST_IDLE, 0)]:
            del self._idle[executor]
            _end(executor)
        more = len(self._idle) > LEAST_IDLE
        self._tidying = loop.call_later(settings.THREAD_REST, self._tidy) if more else None


def _end(executor: ThreadPoolExecutor) -> None:
    executor.submit(connections.close_all)
    executor.shutdown(wait=False)


def _nothing() -> None:
    pass
