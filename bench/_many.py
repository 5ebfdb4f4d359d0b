"""The product on PostgreSQL and on several hosts of one machine, in its production settings, with many people.

For modules that `bench._postgres` runs with a database of their own.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any, cast

from django.db import connections
from django.test import Client

from bench._judge import RunLog, whole
from bench._report import say
from bench._rig import settings
from bench._web import cookies_of
from jobs.models import Job, Membership, Run, Team
from portal.models import ApiToken, User
from tests.rigs.engine import Engine, running_engine
from tests.rigs.redis import RedisServer, running_redis
from tests.rigs.stack import Stack

TEAMS = 5
AS_SHIPPED = {"WRITES_PER_MINUTE": "600", "API_READS_PER_MINUTE": "6000", "LOG_REQUESTS": "1", "REDIS_REST": "4"}
LOGS = {"logs": {"BACKEND": "django.core.files.storage.FileSystemStorage",
                 "OPTIONS": {"location": str(settings.DATA_DIR / "logs")}}}  # fmt: skip


class Installation:
    """A portal and its hosts: `nodes` by name, `engines` likewise."""

    def __init__(self, redis: RedisServer, hosts: int, gpus: int, network: str) -> None:
        self.names = [f"host{number + 1:02}" for number in range(hosts)]
        self.redis, self.engines, self.nodes = redis, {}, {}
        with redis.client() as client:
            self._redis_pid = cast(dict[str, int], client.info("server"))["process_id"]
        self.scratch = settings.DATA_DIR / "scratch"  # what the product leaves in its folder for temporary files, shows
        self.scratch.mkdir()
        self._env = {
            **AS_SHIPPED, "NODE_NAMES": ",".join(self.names), "SIMULATED_GPUS": str(gpus), "JOB_NETWORK": network,
            "STORAGES": json.dumps(LOGS), "WORKSPACE_ROOT": str(settings.DATA_DIR / "workspaces"),
            "TMPDIR": str(self.scratch),
        }  # fmt: skip
        self.portal = Stack("unix:///nowhere.sock", self._env, periods={})
        self._ends = contextlib.ExitStack()

    def start(self) -> None:
        """Until all are ready."""
        self.portal.prepare()
        for role in ("web", "scheduler"):
            self.portal.start(role)
        for name in self.names:
            self._start_host(name)
        for role in ("web", "scheduler"):
            self.portal.wait_ready(role)
        for node in self.nodes.values():
            node.wait_ready("node")

    def _start_host(self, name: str) -> None:
        engine: Engine = self._ends.enter_context(running_engine())
        env = {**self._env, "NODE_NAME": name, "DATA_DIR": str(settings.DATA_DIR / name), "START_WORKERS": "2"}
        self.engines[name] = engine
        self.nodes[name] = Stack(engine.url, env, periods={})
        self.nodes[name].start("node")

    def stop(self) -> None:
        for stack in (*self.nodes.values(), self.portal):
            stack.close()
        self._ends.close()
        connections.close_all()

    @property
    def roles(self) -> dict[str, list[int]]:
        """The processes that lead each part of the product, and what it stands on."""
        return {
            "web": [self.portal.pid("web")], "scheduler": [self.portal.pid("scheduler")],
            "nodes": [node.pid("node") for node in self.nodes.values()],
            "pumps": [int((node.data / "spool" / "pump.pid").read_text()) for node in self.nodes.values()],
            "redis": [self._redis_pid], "postgres": [int(os.environ["BENCH_POSTGRES_PID"])],
        }  # fmt: skip

    def containers(self) -> int:
        """How many there are on all hosts, running or not."""
        return sum(self._on(engine) for engine in self.engines.values())

    @staticmethod
    def _on(engine: Engine) -> int:
        with engine.client() as client:
            return len(client.api.containers(all=True))

    def states(self, jobs: list[int]) -> dict[int, str]:
        return dict(Job.objects.filter(pk__in=jobs).values_list("pk", "state"))

    def whole_logs(self, jobs: list[int]) -> frozenset[int]:
        """Which of the jobs have their whole log in storage."""
        found = Run.objects.filter(job__in=jobs).values_list("job", "started_at", "log_complete", "log_holes")
        return whole(
            RunLog(job, begun is not None, is_complete, len(holes)) for job, begun, is_complete, holes in found
        )

    def errors(self) -> list[str]:
        """Lines of the product's own logs that speak of errors."""
        logs = [path for stack in (self.portal, *self.nodes.values()) for path in stack.logs.glob("*.log")]
        return [f"{path.name}: {line}" for path in logs for line in path.read_text(errors="replace").splitlines()
                if " ERROR " in line or line.startswith("Traceback")]  # fmt: skip


@contextlib.contextmanager
def installation(*, hosts: int, gpus: int, network: str) -> Iterator[Installation]:
    port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with running_redis(port=port) as redis:
        found = Installation(redis, hosts, gpus, network)
        try:
            say(f"starting a portal and {hosts} hosts")
            begun = time.monotonic()
            found.start()
            say(f"ready after {time.monotonic() - begun:.0f} s")
            yield found
        finally:
            found.stop()


def people(count: int) -> list[dict[str, Any]]:
    """So many users in TEAMS teams, as the process that plays them needs them."""
    teams = [Team.objects.create(name=f"team{number + 1}") for number in range(TEAMS)]
    users = [User.objects.create_user(f"user{number + 1:02}") for number in range(count)]
    for number, user in enumerate(users):
        Membership.objects.create(user=user, team=teams[number % TEAMS])
    tokens = [ApiToken.issue(user, name="bench", scope="write", expires_at=None)[1] for user in users]
    return [
        {"name": user.username, "team": teams[number % TEAMS].pk, "team_name": teams[number % TEAMS].name,
         "cookie": cookie.partition("=")[2], "token": tokens[number], "jobs": []}
        for number, (user, cookie) in enumerate(zip(users, cookies_of(users, Client), strict=True))
    ]  # fmt: skip
