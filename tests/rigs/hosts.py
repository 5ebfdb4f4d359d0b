"""One installation on several hosts: a portal on PostgreSQL, and hosts that have joined it, each with its own engine.

A host has a folder, an engine and settings of its own, and nothing of the portal's but what joining gave it.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.test import override_settings
from dotenv import dotenv_values

from portal import databases
from tests.rigs.certificates import make_certificates
from tests.rigs.engine import Engine, running_engine
from tests.rigs.line import Line, running_line
from tests.rigs.postgres import Postgres, running_postgres
from tests.rigs.processes import Guard, end, free_port, has_ended, kill_group, kill_pump, tail_of, wait_until
from tests.rigs.redis import RedisServer, running_redis
from tests.rigs.stack import BASE_DIR, SHORT, Stack
from tests.rigs.web import NOTHING_COLLECTED

T = TypeVar("T")
_ESTABLISHED = "01"  # as /proc/net/tcp has it
PATIENCE = {"NETWORK_PATIENCE": "4"}  # of hosts
_FROM_PORTAL = ("NODE_HEARTBEAT", "NODE_SILENT_AFTER", "LOG_SEGMENT_PERIOD")  # what joining hands on


class Host:
    """One `manage.py node` in a folder of its own."""

    def __init__(self, name: str, engine: Engine, root: Path, gpus: int = 2) -> None:
        self.name, self.engine, self.root = name, engine, root / name
        self.root.mkdir(parents=True)
        self.env_file, self.log = self.root / "node.env", self.root / "node.log"
        periods = {key: value for key, value in SHORT.items() if key not in _FROM_PORTAL}
        self.env = {
            **periods, **PATIENCE, "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "portal.settings", "PYTHONUNBUFFERED": "1",
            "DOCKYARD_ENV_FILE": str(self.env_file), "DATA_DIR": str(self.root / "data"), "DOCKER_HOST": engine.url,
            "GPU_DRIVER": "simulated", "SIMULATED_GPUS": str(gpus),
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def join(self, portal: str, token: str, authority: Path, *, start: bool = True) -> None:
        """The one command of a new host, which goes on as its node, unless it is not to `start` yet."""
        self._run("--join", portal, token, "--name", self.name, "--ca", str(authority), *["--no-start"] * (not start))
        if not start:
            assert self._process is not None
            assert self._process.wait(240) == 0, self.log_tail()
            self._forget()

    def start(self) -> None:
        self._run()

    def _run(self, *arguments: str) -> None:
        self._forget()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", "node", *arguments], cwd=BASE_DIR, env=self.env, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._guard = Guard(self._process)

    @property
    def given(self) -> dict[str, str]:
        """The settings that it was given."""
        return {key: value or "" for key, value in dotenv_values(self.env_file).items()}

    def give(self, **settings: str) -> None:
        """Change settings that it was given, before it starts."""
        rows = {**self.given, **settings}
        self.env_file.write_text("".join(f"{name}='{value}'\n" for name, value in rows.items()))

    @property
    def is_running(self) -> bool:
        return self._process is not None and not has_ended(self._process)

    @property
    def pid(self) -> int:
        """Of its supervisor, running or not."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As when it loses power, but for its engine and what runs there."""
        if self._process is not None:
            kill_group(self._process)
            kill_pump(self.root / "data" / "spool")
            self._forget()

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
        self.kill()

    def _forget(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def containers(self) -> list[str]:
        """Names of its containers that run."""
        with self.engine.client() as client:
            return [found.name for found in client.containers.list(ignore_removed=True) if found.name]

    def log_tail(self) -> str:
        return tail_of(self.log)


class Portal(Stack):
    """Web and scheduler on PostgreSQL. `orm` works on that database, whatever the tests around it use."""

    def __init__(
        self, root: Path, postgres: Postgres, redis: RedisServer, lines: Sequence[Line], *, standby_port: int
    ) -> None:
        """`lines`: to the database, to where its standby will be, and to Redis."""
        logs = {"logs": {"BACKEND": "django.core.files.storage.FileSystemStorage",
                         "OPTIONS": {"location": str(settings.DATA_DIR / "logs")}}}  # fmt: skip
        super().__init__("unix:///nowhere.sock", {
            "DATA_DIR": str(root / "portal"), "REDIS_URL": redis.url,
            "DATABASE_URL": f"postgres://dockyard@127.0.0.1:{postgres.port},127.0.0.1:{standby_port}/dockyard",
            "INSTALLATION": f"{settings.INSTALLATION}-hosts", "JOB_NETWORK": "none",
            "NODE_DATABASE_URL": f"postgres://127.0.0.1:{lines[0].port},127.0.0.1:{lines[1].port}/dockyard",
            "NODE_REDIS_URL": f"redis://127.0.0.1:{lines[2].port}/0",
            "STORAGES": json.dumps(json.loads(NOTHING_COLLECTED) | logs),
        })  # fmt: skip
        self.postgres, self.redis, self.lines, self.standby_port = postgres, redis, lines, standby_port
        self.standby: Postgres | None = None
        self.orm(self._use_its_database)

    def _use_its_database(self) -> None:
        """In the thread of `orm` alone: connections are a thread's own."""
        theirs = databases.parse(self.env["DATABASE_URL"], patience=20)
        options = {**connections["default"].settings_dict, **theirs, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
        connections["default"] = DatabaseWrapper(options, "default")

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Within the block no host reaches PostgreSQL and Redis, which the portal does."""
        for line in self.lines:
            line.cut()
        try:
            yield
        finally:
            for line in self.lines:
                line.heal()

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Within the block each packet between hosts and PostgreSQL or Redis vanishes: nobody refuses anything."""
        sides = [(side, str(line.port)) for line in self.lines for side in ("--dport", "--sport")]
        try:
            for side, port in sides:
                _firewall("-I", side, port)
            yield
        finally:
            for side, port in sides:
                _firewall("-D", side, port)

    def dialled(self) -> set[int]:
        """Our side's ports of all connections through the lines that are thought to stand."""
        found = set()
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _number, local, remote, state = row.split()[:4]
            if state == _ESTABLISHED and int(remote.partition(":")[2], 16) in {line.port for line in self.lines}:
                found.add(int(local.partition(":")[2], 16))
        return found

    def restart_database(self) -> None:
        """At a blow: every connection is cut."""
        self.postgres.restart()
        self.orm(lambda: connections["default"].close())

    def fail_over(self) -> None:
        """The database's host dies at a blow; the standby, at the other address, takes its place for good."""
        assert self.standby is not None
        self.postgres.stop()
        self.standby.promote()
        self.orm(lambda: connections["default"].close())

    def add_standby(self) -> None:
        self.standby = self.postgres.add_standby(self.standby_port)

    def close(self) -> None:
        super().close()
        if self.standby is not None:
            self.standby.remove()

    def prepare(self) -> None:
        """The database and its cache table: pages of these tests need no style."""
        self.manage("migrate", "--verbosity", "0")
        self.manage("createcachetable")


class Hosts:
    """The portal and the hosts that have joined, by name."""

    def __init__(self, portal: Portal, root: Path) -> None:
        self.portal, self.root = portal, root
        self.hosts: dict[str, Host] = {}

    def add(self, name: str, engine: Engine, *, gpus: int = 2) -> Host:
        """A machine that has not joined yet."""
        self.hosts[name] = Host(name, engine, self.root, gpus)
        return self.hosts[name]

    def token(self, name: str = "") -> str:
        with override_settings(LOGS_ARE_SHARED=True):  # as the portal's own environment says
            return self.call(lambda: _make_token(name))

    def wait_ready(self, host: Host) -> None:
        """Until the portal has heard from it and knows its GPUs."""

        def ready() -> bool:
            assert host.is_running, host.log_tail()
            return self.call(lambda: _is_ready(host.name))

        wait_until(ready, f"{host.name} ready", seconds=240)

    def call(self, function: Callable[[], T]) -> T:
        return self.portal.orm(function)


def _firewall(action: str, side: str, port: str) -> None:
    rule = ("OUTPUT", "-o", "lo", "-p", "tcp", side, port, "-j", "DROP")
    subprocess.run(["iptables", "-w", action, *rule], check=True, capture_output=True)


def _make_token(name: str) -> str:
    from jobs import joining

    return joining.make_token(name=name)[1]


def _is_ready(name: str) -> bool:
    from gpus.models import GPU, Node

    node = Node.objects.filter(name=name).first()
    return node is not None and node.is_alive() and bool(node.engine_id) and node.gpus.filter(
        health=GPU.Health.OK).exists()  # fmt: skip


@contextlib.contextmanager
def running_hosts(root: Path, engine: Engine) -> Iterator[Hosts]:
    """A portal with the host alpha on this engine, and the host beta on one of its own, both joined and ready."""
    with (
        running_engine() as other,
        running_redis() as redis,
        running_postgres() as postgres,
        running_line(postgres.port) as to_postgres,
        running_line(standby_port := free_port()) as to_standby,
        running_line(redis.port) as to_redis,
        contextlib.ExitStack() as ends,
    ):
        portal = Portal(root, postgres, redis, (to_postgres, to_standby, to_redis), standby_port=standby_port)
        ends.callback(portal.close)
        portal.prepare()
        for role in ("web", "scheduler"):
            portal.start(role)
        portal.wait_ready("web")
        hosts = Hosts(portal, root)
        certificates = make_certificates(root / "certificates")
        front = ends.enter_context(running_line(portal.port, certificates))
        for name, its in (("alpha", engine), ("beta", other)):
            host = hosts.add(name, its)
            ends.callback(host.stop)
            host.join(f"https://127.0.0.1:{front.port}", hosts.token(), certificates / "ca.pem")
        for host in hosts.hosts.values():
            hosts.wait_ready(host)
        yield hosts
