"""What is done to the parts of a site, and how each is known to have recovered."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import redis

from gpus.models import Node
from jobs import hostrights
from jobs.models import Cluster
from tests.chaos import victims
from tests.chaos.evidence import Outage
from tests.chaos.site import PERIODS, Site
from tests.rigs.processes import kill_pump, wait_until
from tests.rigs.stack import SHORT

RECOVERY = 150.0  # seconds, after which a part is told not to have recovered
LOOK = 2 * float(SHORT["NODE_HEARTBEAT"])  # seconds in which a node that is heard of has looked at its engine, too
STEADY = 1.0  # seconds for which a process lives that did not end as it started
AGENT_THREADS = 6  # an RQ worker has fewer, an agent has more
FILLED = "filled"


@dataclass(frozen=True)
class Fault:
    """`strike` does it, and returns when the part may recover; `recovered(struck)` says whether it has.

    `part`: two faults of one part do not overlap. `excuses`: what an outage of it excuses, see `Outage.what`: until
    it has recovered if it `is_away` till then, else until it may.
    """

    kind: str
    host: str  # "" for the portal's own parts
    part: str
    strike: Callable[[], None]
    recovered: Callable[[float], bool]
    excuses: str = ""

    @property
    def is_away(self) -> bool:
        """Whether the part is not there yet when its strike returns: a node, which its supervisor starts again."""
        return self.excuses == "node"


@dataclass
class Blow:
    """One fault as it happened. `seconds`: from the time when the part may recover; None: it did not."""

    kind: str
    host: str
    begun: float
    over: float = 0.0
    seconds: float | None = None


@dataclass
class Faults:
    """Makes faults of a site. What may be away for a while is, for `longest` seconds at most."""

    site: Site
    dice: random.Random
    longest: float = 15.0
    outages: list[Outage] = field(default_factory=list)

    def all(self) -> list[Fault]:
        """One of each kind; those of a host for each host."""
        return [*self._of_portal(), *(fault for host in self.site.hosts for fault in self._of_host(host))]

    def _of_portal(self) -> list[Fault]:
        site = self.site
        return [
            Fault("web killed", "", "web", lambda: self._kill_role("web"), self._web_answers),
            Fault("scheduler killed", "", "scheduler", lambda: self._kill_role("scheduler"), self._passes),
            Fault("Redis killed", "", "redis", self._restart_redis, self._readings_come),
            Fault("Redis flushed", "", "redis", site.redis.flush, self._readings_come),
            Fault("PostgreSQL restarted", "", "postgres", self._restart_postgres, self._all_are_heard),
        ]

    def _of_host(self, host: str) -> list[Fault]:
        def heard(struck: float) -> bool:
            return self._is_heard(host, struck)

        def works(struck: float) -> bool:
            return engine_works(self._row(host), struck)

        def has_room(struck: float) -> bool:
            return disk_has_room(self._row(host), struck)

        node, line, engine = f"node {host}", f"line {host}", f"engine {host}"
        return [
            Fault("node killed", host, node, lambda: self._kill_node(host), heard, "node"),
            Fault("agent killed", host, node, lambda: self._kill_agent(host), heard, "node"),
            Fault("RQ workers killed", host, node, lambda: self._kill_workers(host), lambda _: self._is_manned(host)),
            Fault("log pump killed", host, node, lambda: self._kill_pump(host), lambda _: self._pumps(host)),
            Fault("node and pump killed", host, node, lambda: self._kill_both(host), heard, "node"),
            Fault("network cut", host, line, lambda: self._cut(host), heard),
            Fault("network stalled", host, line, lambda: self._stall(host), heard),
            Fault("engine restarted", host, engine, lambda: self._restart_engine(host, kill=False), works, "engine"),
            Fault("engine killed", host, engine, lambda: self._restart_engine(host, kill=True), works, "engine"),
            Fault("disk filled", host, f"disk {host}", lambda: self._fill(host), has_room, "disk"),
        ]  # fmt: skip

    # --- strikes ---

    def _rest(self, least: float, most: float) -> None:
        """Between these parts of `longest`."""
        time.sleep(self.longest * self.dice.uniform(least, most))

    def _restart_redis(self) -> None:
        self.site.redis.kill()
        self._rest(0, 0.25)
        self.site.redis.start()

    def _restart_postgres(self) -> None:
        self.site.postgres.stop()
        self._rest(0, 0.25)
        self.site.postgres.start()

    def _kill_role(self, role: str) -> None:
        portal = self.site.portal
        wait_until(lambda: portal.is_running(role), f"{role}, to be killed", seconds=RECOVERY)
        victims.kill(portal.pid(role))

    def _kill_node(self, host: str) -> None:
        node = self.site.hosts[host]
        wait_until(lambda: node.is_running, f"node {host}, to be killed", seconds=RECOVERY)
        children = victims.children(node.pid)
        victims.kill(node.pid)
        victims.wait_dead(children)

    def _kill_agent(self, host: str) -> None:
        victims.kill(wait_until(lambda: self._agent(host), f"the agent of {host}, to be killed", seconds=RECOVERY))

    def _kill_workers(self, host: str) -> None:
        def workers() -> list[int]:
            agent = self._agent(host)
            return [pid for pid in victims.children(self.site.hosts[host].pid) if agent and pid != agent]

        victims.kill(*wait_until(workers, f"the workers of {host}, to be killed", seconds=RECOVERY))

    def _kill_pump(self, host: str) -> None:
        wait_until(lambda: self._pumps(host), f"the pump of {host}, to be killed", seconds=RECOVERY)
        kill_pump(self._spool(host))

    def _kill_both(self, host: str) -> None:
        self._kill_node(host)
        kill_pump(self._spool(host))

    def _spool(self, host: str) -> Path:
        return self.site.disk(host) / "spool"

    def _agent(self, host: str) -> int:
        """The process id of a host's agent, the one of its processes that has many threads; 0 while there is none."""
        of_host = victims.children(self.site.hosts[host].pid)
        return next((pid for pid in of_host if victims.threads(pid) >= AGENT_THREADS), 0)

    def _cut(self, host: str) -> None:
        for line in self.site.lines[host]:
            line.cut()
        self._rest(0.1, 1)
        self._heal(host)

    def _stall(self, host: str) -> None:
        for line in self.site.lines[host]:
            line.stall()
        self._rest(0.1, 1)
        self._heal(host)

    def _heal(self, host: str) -> None:
        for line in self.site.lines[host]:
            line.heal()

    def _restart_engine(self, host: str, *, kill: bool) -> None:
        engine = self.site.hosts[host].engine
        if kill:
            engine.kill()
        else:
            engine.stop()
        self._rest(0, 0.2)
        engine.start()

    def _fill(self, host: str) -> None:
        filled = self.site.disk(host) / FILLED
        with contextlib.suppress(OSError), filled.open("wb") as file:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        self._rest(0.15, 0.7)
        filled.unlink()

    # --- recoveries ---

    def _web_answers(self, _struck: float) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.site.portal.url}/healthz", timeout=5).status_code == 200
        return False

    def _passes(self, struck: float) -> bool:
        last = self.site.ask(lambda: Cluster.objects.values_list("last_pass_at", flat=True).get())
        return last is not None and last > _moment(struck)

    def _is_heard(self, host: str, struck: float) -> bool:
        return self.site.ask(Node.objects.filter(name=host, last_seen__gt=_moment(struck)).exists)

    def _all_are_heard(self, struck: float) -> bool:
        return self._passes(struck) and all(self._is_heard(host, struck) for host in self.site.hosts)

    def _readings_come(self, struck: float) -> bool:
        """The hosts have logged in to Redis again, and tell it what their GPUs do."""
        installation = self.site.portal.env["INSTALLATION"]
        with contextlib.suppress(redis.RedisError), self.site.redis.client() as client:
            users = set(client.acl_users())
            known = all(hostrights.redis_user(installation, host) in users for host in self.site.hosts)
            return known and all(client.exists(f"dockyard.{installation}.gpus.{host}") for host in self.site.hosts)
        return False

    def _is_manned(self, host: str) -> bool:
        """All its processes are there, and none of them is one that ends as it starts."""
        started = int(self.site.hosts[host].env["START_WORKERS"])
        return len(victims.children(self.site.hosts[host].pid, older=STEADY)) >= started + 2

    def _pumps(self, host: str) -> bool:
        """A log pump lives there."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._spool(host) / "pump.pid").read_text())
            return b"pump.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def _row(self, host: str) -> Node:
        return self.site.ask(lambda: Node.objects.get(name=host))


def engine_works(node: Node, struck: float) -> bool:
    """By a look of the node's own that began after the blow."""
    return not node.engine_error and node.last_seen is not None and node.last_seen > _moment(struck + LOOK)


def disk_has_room(node: Node, struck: float) -> bool:
    """The node is heard of, and does not say, or says no more, that one of its disks is full: it takes jobs."""
    least = int(PERIODS["DISK_RESERVE_MIB"])
    is_heard = node.last_seen is not None and node.last_seen > _moment(struck)
    return is_heard and all(disk["free_mib"] >= least for disk in (node.facts or {}).get("disks", ()))


class Injector(threading.Thread):
    """Strikes one fault after the other, as they are dealt, until `seconds` are over."""

    def __init__(self, faults: Faults, number: int, seconds: float, pause: tuple[float, float], locks: "Locks") -> None:
        super().__init__(name=f"injector {number}", daemon=True)
        self.faults, self.pause, self.locks = faults, pause, locks
        self.until = time.monotonic() + seconds
        self.blows: list[Blow] = []
        self.failures: list[str] = []
        self._watchers: list[threading.Thread] = []

    def run(self) -> None:
        dice = self.faults.dice
        for kind in self.locks.deal(self.faults, dice):
            if time.monotonic() > self.until:
                break
            self.strike(dice.choice([fault for fault in self.faults.all() if fault.kind == kind]))
            time.sleep(dice.uniform(*self.pause))
        for watcher in self._watchers:
            watcher.join(RECOVERY + 60)

    def strike(self, fault: Fault) -> Blow:
        """Do it, and watch its recovery beside what comes next."""
        with self.locks.of(fault.part):
            blow = Blow(fault.kind, fault.host, time.time())
            self.blows.append(blow)
            try:
                fault.strike()
            except Exception as error:  # noqa: BLE001
                self.failures.append(f"{fault.kind} {fault.host}: {error!r}")
            blow.over = time.time()
        watcher = threading.Thread(target=self._watch, args=(fault, blow), daemon=True)
        self._watchers.append(watcher)
        watcher.start()
        return blow

    def _watch(self, fault: Fault, blow: Blow) -> None:
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: fault.recovered(blow.over), fault.kind, seconds=RECOVERY, every=0.1)
            blow.seconds = time.time() - blow.over
        if fault.excuses:
            ended = time.time() if fault.is_away else blow.over
            self.faults.outages.append(Outage(host=fault.host, what=fault.excuses, begun=blow.begun, ended=ended))


class Locks:
    """One lock a part, and the kinds of faults as they are dealt to all: each `rounds` times, or without end."""

    def __init__(self, rounds: int | None = None) -> None:
        self._rounds = rounds
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._deck: list[str] = []

    def of(self, part: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(part, threading.Lock())

    def deal(self, faults: Faults, dice: random.Random) -> Iterator[str]:
        """Kinds of faults, each once before any comes again."""
        while kind := self._next(faults, dice):
            yield kind

    def _next(self, faults: Faults, dice: random.Random) -> str:
        """ "" when there is none any more."""
        with self._guard:
            if not self._deck and self._rounds != 0:
                self._rounds = None if self._rounds is None else self._rounds - 1
                self._deck = list(dict.fromkeys(fault.kind for fault in faults.all()))
                dice.shuffle(self._deck)
            return self._deck.pop() if self._deck else ""


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
