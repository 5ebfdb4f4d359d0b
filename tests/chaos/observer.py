"""Sees what one engine does, by itself: its events, what it says of each container, and the processes' own ends.

It asks neither the portal nor its database. An engine that goes away takes its events along: the ends of containers
are then seen by their first processes (`pidfd_open`), and by what the engine says of them once it is back.
"""

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import requests

from tests.chaos.evidence import Container, assemble

_GONE = (docker.errors.DockerException, requests.RequestException, OSError, ValueError)
_WHAT = {"create", "start", "die", "kill", "destroy"}
_JOB, _NAME = "dockyard.job", "dockyard.attempt"


class Observer:
    """From `start` to `stop`. Records are also written to `path`, one JSON object a line."""

    def __init__(self, host: str, url: str, path: Path) -> None:
        self.host, self.url = host, url
        self.records: list[dict[str, Any]] = []
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._since = time.time()
        self._pids: dict[int, str] = {}  # pidfd → container
        self._watched: set[str] = set()
        self._threads = [
            threading.Thread(target=work, name=f"observer {host}", daemon=True) for work in (self._listen, self._watch)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The engine may still be there: what it says now is taken in, too."""
        with contextlib.suppress(*_GONE), contextlib.closing(self._client()) as client:
            self._look(client)
        self._stopping.set()
        self._threads[1].join(5)

    def containers(self) -> list[Container]:
        with self._lock:
            return assemble(self.host, list(self.records))

    def _client(self) -> Any:
        return docker.APIClient(base_url=self.url, version="1.41", timeout=60)

    def _note(self, what: str, name: str, **facts: Any) -> None:
        record = {"host": self.host, "what": what, "id": name, **facts}
        with self._lock:
            self.records.append(record)
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    # --- the engine's events ---

    def _listen(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(*_GONE), contextlib.closing(self._client()) as client:
                events = client.events(since=f"{self._since:.9f}", decode=True, filters={"type": "container"})
                self._look(client)
                with contextlib.closing(self._client()) as other:
                    for event in events:
                        self._take(event, other)
            self._stopping.wait(0.1)

    def _take(self, event: dict[str, Any], client: Any) -> None:
        what, name, labels = event["Action"], event["Actor"]["ID"], event["Actor"]["Attributes"]
        at = event["timeNano"] / 1e9
        self._since = max(self._since, at)
        if what not in _WHAT or _JOB not in labels:
            return
        facts: dict[str, Any] = {"at": at, "job": int(labels[_JOB]), "attempt": int(labels[_NAME])}
        if what == "die":
            facts |= {"ended": at, "exit_code": int(labels["exitCode"])}
        elif what == "kill":
            facts["signal"] = int(labels["signal"])
        elif what == "destroy":
            facts["ended"] = at
        self._note(what, name, **facts)
        if what in ("create", "start"):
            self._inspect(client, name)

    def _look(self, client: Any) -> None:
        for found in client.containers(all=True):
            self._inspect(client, found["Id"])

    def _inspect(self, client: Any, name: str) -> None:
        with contextlib.suppress(docker.errors.APIError):
            found = client.inspect_container(name)
            labels, state = found["Config"]["Labels"] or {}, found["State"]
            if _JOB not in labels:
                return
            facts: dict[str, Any] = {
                "job": int(labels[_JOB]), "attempt": int(labels[_NAME]), "gpus": _gpus(found["Config"]["Env"]),
                "started": _time(state["StartedAt"]), "ended": None if state["Running"] else _time(state["FinishedAt"]),
            }  # fmt: skip
            if facts["ended"]:
                facts["exit_code"] = state["ExitCode"]
            self._note("inspect", name, at=time.time(), **facts)
            if state["Running"] and state["Pid"]:
                self._follow(name, state["Pid"])

    # --- the processes ---

    def _follow(self, name: str, pid: int) -> None:
        """Watch a container's first process, if it is that: its number may be another's by now."""
        if name in self._watched:
            return
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            if name in Path(f"/proc/{pid}/cgroup").read_text():
                self._watched.add(name)
                with self._lock:
                    self._pids[fd] = name
            else:
                os.close(fd)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                fds = list(self._pids)
            poll = select.poll()
            for fd in fds:
                poll.register(fd, select.POLLIN)
            for fd, _event in poll.poll(50):  # ms
                with self._lock:
                    name = self._pids.pop(fd)
                os.close(fd)
                self._note("exit", name, at=time.time(), ended=time.time())


def _gpus(environment: list[str] | None) -> list[str]:
    for row in environment or ():
        name, _, value = row.partition("=")
        if name == "NVIDIA_VISIBLE_DEVICES" and value not in ("", "void", "none"):
            return value.split(",")
    return []


def _time(text: str) -> float | None:
    """Seconds since 1970 of a time as the engine writes it; None for none."""
    if text.startswith("0001-"):
        return None
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")


@contextlib.contextmanager
def observing(host: str, url: str, path: Path) -> Iterator[Observer]:
    """An observer for as long as the block runs."""
    observer = Observer(host, url, path)
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()
