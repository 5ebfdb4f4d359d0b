"""The web process alone, on the test's own database and Redis: for tests that play the node's part themselves."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import connection

from tests.rigs.processes import free_port, tail_of, terminate, wait_until

NOTHING_COLLECTED = '{"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}'
BASE_DIR = Path(__file__).resolve().parents[2]


class Web:
    """One uvicorn. The port stays the same over restarts."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.options = options
        self.log = Path(settings.DATA_DIR) / f"web-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "uvicorn", "portal.asgi:application", "--host", "127.0.0.1", "--port",
            str(self.port), "--no-access-log", "--timeout-graceful-shutdown", "1", "--ws-per-message-deflate", "false",
            *self.options,
        ]  # fmt: skip
        env = {
            **os.environ, "DATABASE_URL": _database_url(connection.settings_dict), "SOCKET_RECHECK": "2",
            "DJANGO_SETTINGS_MODULE": "portal.settings", "PYTHONUNBUFFERED": "1", "STORAGES": NOTHING_COLLECTED,
        }  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=BASE_DIR, env=env, stdout=log, stderr=log)
        wait_until(self._answers, f"web process: {tail_of(self.log)}")

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the web process ended: {tail_of(self.log)}")
        try:
            return httpx.get(f"{self.url}/api/me", timeout=5).status_code == 401
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            terminate(self._process)


@contextlib.contextmanager
def running_web(*options: str) -> Iterator[Web]:
    """A web process for as long as the block runs."""
    server = Web(*options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _database_url(database: dict[str, Any]) -> str:
    if "sqlite3" in database["ENGINE"]:
        return f"sqlite:///{database['NAME']}"
    return "postgres://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**database)
