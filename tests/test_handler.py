"""How the web process runs requests: in threads that keep their connections to the database."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished, request_started
from django.db import connections
from django.db.backends.signals import connection_created

from portal.handler import LEAST_IDLE, Handler

pytestmark = pytest.mark.django_db(transaction=True)
SCOPE = {
    "type": "http", "http_version": "1.1", "method": "GET", "path": "/healthz", "query_string": b"",
    "headers": [(b"host", b"localhost")],
}  # fmt: skip


@pytest.fixture
def handler() -> Iterator[Handler]:
    """Without its connections in the end."""
    found = Handler()
    yield found
    for executor in found._idle:
        executor.submit(connections.close_all).result()
        executor.shutdown()


async def ask(handler: Handler, path: str = "/healthz") -> int:
    """A page that reads the database; its status."""
    asked: Any = ApplicationCommunicator(handler, {**SCOPE, "path": path})  # type: ignore[no-untyped-call]
    await asked.send_input({"type": "http.request", "body": b"", "more_body": False})
    answer = await asked.receive_output(timeout=60)
    while (await asked.receive_output(timeout=60)).get("more_body"):
        pass
    await asked.wait(timeout=60)
    status: int = answer["status"]
    return status


@pytest.fixture
def seen() -> Iterator[dict[str, list[Any]]]:
    """In which threads requests began and ended, and connections were opened."""
    found: dict[str, list[Any]] = {"begun": [], "ended": [], "opened": []}
    signals = {"begun": request_started, "ended": request_finished, "opened": connection_created}

    def note(name: str) -> Any:
        def heard(**_told: Any) -> None:
            found[name].append(threading.get_ident())

        return heard

    heard = {name: note(name) for name in signals}
    for name, signal in signals.items():
        signal.connect(heard[name])
    yield found
    for name, signal in signals.items():
        signal.disconnect(heard[name])


async def test_one_request_after_another_runs_in_one_thread_with_one_connection(handler: Any, seen: Any) -> None:
    assert [await ask(handler) for _ in range(3)] == [200, 200, 200]
    assert len(set(seen["begun"])) == 1
    assert seen["ended"] == seen["begun"]
    assert seen["opened"] == seen["begun"][:1]


async def test_a_thread_that_still_works_for_a_browser_that_left_gets_no_request(handler: Any, seen: Any) -> None:
    busy, goes_on = ThreadPoolExecutor(1), threading.Event()
    work = busy.submit(goes_on.wait, 120)
    left = asyncio.create_task(handler._take_back(busy))
    await ask(handler)
    assert busy not in handler._idle
    goes_on.set()
    await left
    assert work.done()
    assert busy in handler._idle


async def test_threads_of_a_burst_go_when_they_have_rested_and_a_few_stay(handler: Any, settings: Any) -> None:
    """A hundred connections are all that a database has, also for its hosts."""
    settings.THREAD_REST = 0.01
    assert await asyncio.gather(*(ask(handler, "/accounts/login/") for _ in range(6))) == [200] * 6
    for _look in range(6000):
        if handler._tidying is None:
            break
        await asyncio.sleep(0.01)
    assert len(handler._idle) == LEAST_IDLE
    assert await ask(handler) == 200


async def test_a_burst_of_requests_is_answered_by_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a connection, of which the database and its hosts have a hundred: after those, pages fail."""
    monkeypatch.setattr("portal.handler.MOST_AT_ONCE", 2)
    busy: list[int] = []
    most: list[int] = []

    class Counting(Handler):
        def get_response(self, request: Any) -> Any:
            busy.append(1)
            most.append(len(busy))
            time.sleep(0.02)  # the others have come by then
            try:
                return super().get_response(request)
            finally:
                busy.pop()

    found = Counting()
    assert await asyncio.gather(*(ask(found, "/accounts/login/") for _ in range(8))) == [200] * 8
    assert max(most) <= 2
    async with found._turns, found._turns:
        assert await ask(found) == 200, "who asks whether we are well waits for no page"
    for executor in found._idle:
        executor.submit(connections.close_all).result()
        executor.shutdown()
