"""What tests of logs need: containers as a run has them, an agent in this process, and one in a process of its own."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
from django.conf import settings
from django.db import connection

from jobs import containers_logs, logframes, logstore
from jobs.follow import Follower, request_attach
from jobs.models import Run
from tests import factories
from tests.rigs.engine import BUSYBOX, Engine
from tests.rigs.processes import kill_pump, wait_until


def make_run() -> Run:
    """A running run on a node of its own team, without GPUs."""
    team = factories.make_team("logs")
    owner = factories.User.objects.filter(username="logger").first() or factories.make_user("logger", teams=(team,))
    node = factories.Node.objects.filter(name="alpha").first() or factories.make_node(gpus=0)
    return factories.make_run(factories.make_job(owner, gpus=0), node)


@contextlib.contextmanager
def running_follower() -> Iterator[Follower]:
    """The agent's follower, in this process."""
    follower = Follower()
    follower.start()
    try:
        yield follower
    finally:
        follower.stop()


def gate(name: str) -> str:
    """Words for a container's shell that end once the test opens the gate of that name, `Container.open`."""
    return f"until [ -e /tmp/{name} ]; do usleep 20000; done"


class Container:
    """A container with the log driver of the product, and its run."""

    def __init__(self, engine: Engine, script: str, *, run: Run | None = None) -> None:
        self.api = docker.APIClient(base_url=engine.url, version="1.41", timeout=60)
        self.run = run or make_run()
        host = {"NetworkMode": "none", "LogConfig": containers_logs.log_config(), "Init": False}
        config = {"Image": BUSYBOX, "Cmd": ["/bin/sh", "-c", script], "HostConfig": host}
        self.id: str = self.api.create_container_from_config(config)["Id"]

    def attach(self, *, seconds: float = 60) -> bool:
        return request_attach(self.run.pk, self.id, seconds)

    def start(self) -> None:
        self.api.start(self.id)

    @property
    def pid(self) -> int:
        """Of its first process."""
        return int(self.api.inspect_container(self.id)["State"]["Pid"])

    def open(self, name: str) -> None:
        """Let the running container go on behind `gate(name)`."""
        Path(f"/proc/{self.pid}/root/tmp/{name}").touch()

    def wait(self) -> int:
        return int(self.api.wait(self.id)["StatusCode"])

    def play(self, follower: Follower) -> bytes:
        """Attach, start, wait for its end, finish, discard. Returns the stored log."""
        assert self.attach()
        self.start()
        self.wait()
        return self.end(follower)

    def end(self, follower: Follower) -> bytes:
        """Finish, remove, discard, as the agent does. Returns the stored log."""
        follower.finish(self.run.pk, self.id, 30)
        self.api.remove_container(self.id)
        follower.discard(self.run.pk)
        self.run.refresh_from_db()
        assert self.run.log_complete
        return stored(self.run)


def stored(run: Run) -> bytes:
    """The log as anybody reads it now."""
    run.refresh_from_db()
    return b"".join(logstore.stream(run))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def engine_streams(container_id: str) -> dict[int, bytes]:
    """What the engine's own log says that a container printed, stream by stream: the witness for what we stored."""
    repair, parts = logframes.Repair(), {1: bytearray(), 2: bytearray()}
    for stream, record in logframes.whole_frames(containers_logs.read_log(container_id)):
        parts[stream] += repair.feed(stream, record)
    return {stream: bytes(data) for stream, data in parts.items()}


def engine_has(container: Container, text: bytes) -> None:
    """Wait until the engine's own log of a container holds `text`."""
    wait_until(lambda: text in b"".join(engine_streams(container.id).values()), f"{text!r} in the engine's log")


class AgentProcess:
    """A follower in a process of its own, to be killed."""

    def __init__(self, engine: Engine, **environment: str) -> None:
        self._env = {
            **os.environ, "DJANGO_SETTINGS_MODULE": "tests.rigs.log_agent_settings", "DOCKER_HOST": engine.url,
            "LOG_AGENT_DATABASE": json.dumps(_database()), "SPOOL_DIR": str(settings.SPOOL_DIR), **environment,
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rigs.log_agent"], env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process
        assert self._process.stdout
        return self._process.stdout.readline().decode().strip()

    def call(self, verb: str, *arguments: Any) -> str:
        """Call a method of the follower; returns "ok" or the error."""
        assert self._process
        assert self._process.stdin
        self._process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def rss_mib(self) -> float:
        with open(f"/proc/{self.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def kill(self, *, pump: bool = True) -> None:
        """SIGKILL, and to the pump first: nothing is tidied."""
        assert self._process
        if pump:
            self._process.send_signal(signal.SIGSTOP)  # or it would start another
            self.kill_pump()
        self._process.kill()
        self._process.wait()

    @staticmethod
    def kill_pump() -> None:
        kill_pump(Path(settings.SPOOL_DIR))

    def restart(self, *, pump: bool = True) -> None:
        self.kill(pump=pump)
        self.start()


def _database() -> dict[str, Any]:
    chosen = {name: connection.settings_dict[name] for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    return {**chosen, "NAME": str(chosen["NAME"]), "OPTIONS": connection.settings_dict.get("OPTIONS", {})}


@contextlib.contextmanager
def running_agent(engine: Engine, **environment: str) -> Iterator[AgentProcess]:
    agent = AgentProcess(engine, **environment)
    try:
        yield agent
    finally:
        agent.kill()


def wait_for_log(run: Run, text: bytes, *, seconds: float = 60) -> bytes:
    """Wait until the log, as anybody reads it, holds `text`; return that log. A moment later its tail may be gone."""

    def found() -> bytes:
        log = stored(run)
        return log if text in log else b""

    return wait_until(found, f"{text!r} in the log", seconds=seconds, every=0.02)
