"""The agent of a GPU host: follows logs, watches ends, keeps deadlines, pulls images, samples GPUs, reconciles.

It may be killed at any moment: containers go on, and the next agent adopts them.
"""

import logging
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from gpus.models import Node
from gpus.sample import run_sampler
from jobs import claims, containers, firewall
from jobs import finish as finishing
from jobs.follow import Follower
from jobs.launch import forget_lock
from jobs.pull import Pulls
from jobs.reconcile import reconcile
from jobs.stop import end_grace, enforce_time_limits

log = logging.getLogger(__name__)

VERSION = "0.1.0"
FINISHERS = 4


class Agent:
    """Start it once in a process; `stop` ends its threads and touches no container."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.pulls = Pulls()
        self.stopping = threading.Event()
        self.sample_now = threading.Event()
        self.engine_lost_at: datetime | None = None
        self._finishers = ThreadPoolExecutor(FINISHERS, thread_name_prefix="finish")
        self._finishing: set[int] = set()
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}

    def run(self) -> None:
        """Work until `stop`."""
        register()
        self.follower.start()
        threads = [
            threading.Thread(target=self._watch_ends, name="engine", daemon=True),
            threading.Thread(
                target=run_sampler, name="sampler", daemon=True,
                args=(settings.NODE_NAME, lambda: claims.of_node(settings.NODE_NAME), self.stopping, self.sample_now),
            ),
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        while not self.stopping.wait(min(settings.DEADLINE_PERIOD, 0.5)):
            self._tick()
        self._finishers.shutdown(wait=True, cancel_futures=True)
        self.follower.stop()

    def stop(self) -> None:
        self.stopping.set()

    def _tick(self) -> None:
        """Whatever is due now; a step that fails is logged and comes again."""
        self._step("heartbeat", settings.NODE_HEARTBEAT, heartbeat)
        self._step("reconcile", settings.RECONCILE_PERIOD, lambda: reconcile(self.follower, self.finish))
        self._step("time limits", settings.DEADLINE_PERIOD, lambda: enforce_time_limits(timezone.now()))
        self._step("grace", settings.DEADLINE_PERIOD, lambda: end_grace(timezone.now()))
        self._step("pulls", settings.DEADLINE_PERIOD, lambda: self.pulls.look(timezone.now()))

    def _step(self, name: str, period: float, function: Callable[[], None]) -> None:
        now = time.monotonic()
        if now < self._due.get(name, 0):
            return
        self._due[name] = now + period
        guarded(name, function)

    def finish(self, run_id: int) -> None:
        """Look at a run's end in a thread of its own, once at a time."""
        with self._lock:
            if run_id in self._finishing:
                return
            self._finishing.add(run_id)
        self._finishers.submit(self._finish, run_id)

    def _finish(self, run_id: int) -> None:
        def act() -> None:
            if finishing.finish(run_id, self.follower, engine_lost_at=lambda: self.engine_lost_at):
                forget_lock(run_id)
                self.sample_now.set()

        try:
            guarded(f"end of run {run_id}", act)
        finally:
            with self._lock:
                self._finishing.discard(run_id)

    def _watch_ends(self) -> None:
        """Docker's events, for ever: each end is finished at once; after a gap, reconciliation looks for the rest."""
        since = datetime.now(UTC)
        while not self.stopping.is_set():
            try:
                for _container, run_id in containers.ends(since):
                    since = datetime.now(UTC)
                    if run_id is not None:
                        self.finish(run_id)
            except (containers.EngineUnavailable, containers.EngineRefused, ValueError) as error:
                log.warning("the engine's events broke off: %s", error)
            self.engine_lost_at = datetime.now(UTC)
            self._due["reconcile"] = 0
            self.stopping.wait(0.5)


def guarded(name: str, function: Callable[[], None]) -> None:
    """Call it with fresh database connections; log what goes wrong instead of ending the thread."""
    close_old_connections()
    try:
        function()
    except (containers.EngineUnavailable, DatabaseError, firewall.NotProtected) as error:
        log.warning("%s: %s", name, error)
    except Exception:
        log.exception("%s failed", name)
    finally:
        close_old_connections()


def register() -> None:
    """Make this host's row, or refresh it."""
    Node.objects.get_or_create(name=settings.NODE_NAME)
    guarded("registration", heartbeat)


def heartbeat() -> None:
    """Write what the host is and that it lives; what keeps jobs from starting here goes in `engine_error`."""
    facts: dict[str, object] = {
        "hostname": platform.node(), "agent_version": VERSION, "last_seen": timezone.now(), "engine_error": "",
    }  # fmt: skip
    try:
        engine = containers.engine()
        facts |= {
            "engine_id": engine.id, "engine_version": engine.version, "millicpus": engine.cpus * 1000,
            "memory_mib": engine.memory_mib, "engine_error": _unfit(engine),
        }  # fmt: skip
        firewall.ensure()
    except containers.EngineUnavailable as error:
        facts["engine_error"] = f"the Docker engine does not answer: {error}"
    except (containers.EngineRefused, firewall.NotProtected) as error:
        facts["engine_error"] = f"the job network is not protected: {error}"
    Node.objects.filter(name=settings.NODE_NAME).update(**facts)


def _unfit(engine: containers.Engine) -> str:
    """Why this engine can't do what the settings ask, as a sentence; empty when it can."""
    if settings.GPU_INJECTION == "cdi" and not engine.has_cdi:
        return f"GPU_INJECTION=cdi needs Docker 25 or newer, and this is {engine.version}: use toolkit or runtime"
    if settings.GPU_INJECTION == "runtime" and "nvidia" not in engine.runtimes:
        return "GPU_INJECTION=runtime needs the runtime nvidia in daemon.json: run nvidia-ctk runtime configure"
    return ""
