"""Blocking work from the event loop: in threads, and once for all who ask for the same at the same time."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from channels.db import database_sync_to_async

_KEPT = 6.0  # seconds after which nobody is content with an answer


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run what blocks (database, Redis, log storage) in the pool, not in the one thread that all others share."""
    return await database_sync_to_async(function, thread_sensitive=False)(*args)


@dataclass(frozen=True)
class _Answer:
    begun: float
    task: asyncio.Task[Any]


class Shared:
    """Answers of blocking functions by key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: dict[Hashable, _Answer] = {}

    async def ask(self, key: Hashable, since: float, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` says, asked at `since` (by the loop's clock) or later, by whomever.

        Whoever has heard of a change at `since` so gets an answer that knows of it.
        """
        if self._loop is not asyncio.get_running_loop():  # a test's
            self._loop, self._answers = asyncio.get_running_loop(), {}
        found = self._answers.get(key)
        if found is None or found.begun < since or _failed(found.task):
            found = self._begin(key, function, *args)
        return await asyncio.shield(found.task)

    def _begin(self, key: Hashable, function: Callable[..., Any], *args: Any) -> _Answer:
        loop = asyncio.get_running_loop()
        answer = _Answer(loop.time(), loop.create_task(in_thread(function, *args)))
        self._answers[key] = answer
        answer.task.add_done_callback(lambda _task: loop.call_later(_KEPT, self._forget, key, answer))
        return answer

    def _forget(self, key: Hashable, answer: _Answer) -> None:
        if self._answers.get(key) is answer:
            del self._answers[key]


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


shared = Shared()
