"""How many connections a node keeps to its engine."""

import os
import stat
import threading
from collections.abc import Callable

from jobs import containers
from tests.rigs.engine import Engine


def _sockets() -> int:
    """How many this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode)
        except OSError:  # that of the listing itself
            continue
    return found


def _in_a_thread(function: Callable[[], int]) -> int:
    """In one that has asked the engine nothing yet, as clients are a thread's own."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_keeps_one_connection_whatever_containers_it_asks_for(engine: Engine) -> None:
    """docker-py by itself keeps one for each of the last 25 addresses, and each container has several."""

    def asked() -> int:
        before = _sockets()
        for number in range(12):
            assert containers.inspect(f"none-{number}") is None  # which a healthy engine answers at once
            containers.remove(f"none-{number}")  # which may take its time
        return _sockets() - before

    assert _in_a_thread(asked) <= 1
