"""Several hosts on one machine, each with an engine, a disk and a network of its own, and who restarts what died."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

from tests import factories
from tests.chaos.mix import LIMITS, PEOPLE
from tests.chaos.observer import Observer, observing
from tests.rigs.certificates import make_certificates
from tests.rigs.engine import Engine
from tests.rigs.hosts import Host, Hosts, Portal
from tests.rigs.line import Line, running_line
from tests.rigs.postgres import Postgres, running_postgres
from tests.rigs.processes import free_port, wait_until
from tests.rigs.redis import RedisServer, running_redis

T = TypeVar("T")
GPUS = 4
DISK = "96m"  # of a host's own data
RESTART_PAUSE = 1.0  # seconds, as a supervisor's
PERIODS = {
    "NODE_SILENT_AFTER": "10", "PLACED_TIMEOUT": "15", "SCHEDULER_PERIOD": "1", "RECONCILE_PERIOD": "3",
    "DISK_RESERVE_MIB": "8",
}  # fmt: skip


class Site:
    """The portal, its hosts, what they stand on and who watches them."""

    def __init__(self, hosts: Hosts, postgres: Postgres, redis: RedisServer) -> None:
        self.hosts, self.portal, self.postgres, self.redis = hosts.hosts, hosts.portal, postgres, redis
        self.root = hosts.root
        self.lines: dict[str, tuple[Line, Line]] = {}  # to PostgreSQL and Redis, of each host
        self.observers: dict[str, Observer] = {}
        self.tokens: dict[str, str] = {}

    def ask(self, question: Callable[[], T], *, seconds: float = 120) -> T:
        """What the database says, however often it is restarted meanwhile."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.portal.orm(question)
            except (DatabaseError, InterfaceError):
                self.portal.orm(lambda: connections["default"].close())
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def disk(self, host: str) -> Path:
        return self.hosts[host].root / "data"


class Supervisor(threading.Thread):
    """Starts again what has died, as systemd or compose would: web, scheduler, and each host's node."""

    def __init__(self, site: Site) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.site = site
        self.restarts = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        portal = self.site.portal
        while not self._stopping.wait(0.1):
            for role in ("web", "scheduler"):
                if not portal.is_running(role):
                    self._again(partial(portal.start, role))
            for host in self.site.hosts.values():
                if not host.is_running:
                    self._again(host.start)

    def _again(self, start: Callable[[], None]) -> None:
        self.restarts += 1
        if not self._stopping.wait(RESTART_PAUSE):
            start()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)


@contextlib.contextmanager
def running_site(root: Path, engines: dict[str, Engine]) -> Iterator[Site]:
    """All of it, joined and ready, on these engines, which run."""
    with (
        running_redis() as redis,
        running_postgres() as postgres,
        contextlib.ExitStack() as ends,
    ):
        lines = {name: _lines(ends, postgres, redis) for name in engines}
        to_postgres, to_redis = next(iter(lines.values()))
        portal = Portal(root, postgres, redis, (to_postgres, to_postgres, to_redis), standby_port=free_port())
        ends.callback(portal.close)
        portal.env |= PERIODS
        portal.prepare()
        for role in ("web", "scheduler"):
            portal.start(role)
        portal.wait_ready("web")
        site = Site(hosts := Hosts(portal, root), postgres, redis)
        site.lines = lines
        certificates = make_certificates(root / "certificates")
        front = ends.enter_context(running_line(portal.port, certificates))
        for name, engine in engines.items():
            host = hosts.add(name, engine, gpus=GPUS)
            ends.callback(host.stop)
            _join(host, hosts.token(), f"https://127.0.0.1:{front.port}", certificates / "ca.pem")
            _redirect(host, {to_postgres: lines[name][0], to_redis: lines[name][1]})
            _own_disk(site.disk(name), ends)
            host.start()
            site.observers[name] = ends.enter_context(observing(name, engine.url, root / f"{name}.jsonl"))
        for host in hosts.hosts.values():
            hosts.wait_ready(host)
        site.tokens = site.ask(_cast)
        supervisor = Supervisor(site)
        supervisor.start()
        ends.callback(supervisor.stop)
        yield site


def _lines(ends: contextlib.ExitStack, postgres: Postgres, redis: RedisServer) -> tuple[Line, Line]:
    return ends.enter_context(running_line(postgres.port)), ends.enter_context(running_line(redis.port))


def _join(host: Host, token: str, portal: str, authority: Path) -> None:
    host.env |= {name: value for name, value in PERIODS.items() if name != "NODE_SILENT_AFTER"}  # joining hands that on
    host.join(portal, token, authority, start=False)


def _redirect(host: Host, lines: Mapping[Line, Line]) -> None:
    """It dials by its own lines from now on, in place of those that every host is given."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        address = host.given[name]
        for line, own in lines.items():
            address = address.replace(f"127.0.0.1:{line.port}", f"127.0.0.1:{own.port}")
        host.give(**{name: address})


def _own_disk(folder: Path, ends: contextlib.ExitStack) -> None:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "dockyard-chaos", folder], check=True)
    ends.callback(lambda: subprocess.run(["umount", "-l", folder], check=False))


def _cast() -> dict[str, str]:
    """The people and their API tokens, with their quotas; jobs may make way for others at once."""
    from jobs.models import Cluster, Quota, Team
    from portal.models import ApiToken, User

    Cluster.get()
    Cluster.objects.update(preempt_lower=True, protected_minutes=0, defragment=True)
    teams = {name: factories.make_team(name) for name in sorted(set(PEOPLE.values()))}
    users = {name: factories.make_user(name, teams=(teams[team],)) for name, team in PEOPLE.items()}
    for limit in LIMITS:
        whose = {"user": User.objects.get(username=limit.name)} if limit.whose == "owner" else {
            "team": Team.objects.get(name=limit.name)}  # fmt: skip
        Quota.objects.create(**whose, gpus=limit.gpus, running_jobs=limit.jobs)
    return {name: ApiToken.issue(user, name="chaos", scope="write", expires_at=None)[1] for name, user in users.items()}


def wait_stopped(site: Site, seconds: float) -> None:
    """Until no job waits or runs any more."""
    from jobs.models import Job
    from jobs.states import ENDED

    with contextlib.suppress(TimeoutError):  # the judge says which
        wait_until(lambda: not site.ask(Job.objects.exclude(state__in=ENDED).exists), "the last job's end",
                   seconds=seconds, every=1)  # fmt: skip
