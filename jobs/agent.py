"""The agent of a GPU host: follows logs, watches ends, keeps deadlines, pulls images, samples GPUs, reconciles.

It may be killed at any moment: containers go on, and the next agent adopts them.
"""

import logging
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import redis
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from gpus.models import Node
from gpus.sample import run_sampler
from jobs import claims, comeback, containers, containers_images, firewall, hints, hostevents, hostfacts
from jobs import finish as finishing
from jobs.diskwatch import run_disk_watch
from jobs.follow import Follower
from jobs.idle import watch_idle
from jobs.pack import run_packer
from jobs.pull import Pulls
from jobs.reconcile import reconcile
from jobs.stop import end_grace, enforce_time_limits, kill, stop, stop_again
from jobs.watch import watch_gpus, watch_logs, watch_memory
from portal import VERSION, health, logs, nodereports
from portal.doctor.examine import examine

log = logging.getLogger(__name__)
EVENTS_MISSED = timedelta(seconds=60)  # of before the agent's start, which the engine is asked for
IMAGES_PERIOD = 600.0  # seconds
FACTS_PERIOD = 60.0
CLEARING_PERIOD = 1.0  # between two looks while something runs here that should not

WATCH_PERIOD = 2.0
IDLE_PERIOD = 20.0
FINISHERS = 4
SIGNALLERS = 4


class Agent:
    """Start it once in a process; `stop` ends its threads and touches no container.

    What may wait for the engine runs in threads of its own, so that an engine that does not answer for one
    container delays neither signs of life nor the other containers.
    """

    def __init__(self) -> None:
        self.follower = Follower()
        self.pulls = Pulls()
        self.stopping = threading.Event()
        self.sample_now = threading.Event()
        self.reconcile_now = threading.Event()
        self.engine_gap: finishing.Gap | None = None  # when the engine last did not answer
        self.signalled: dict[int, datetime] = {}  # when the engine last sent a run's container a signal
        self.exit_codes: dict[int, int] = {}  # what the engine said as a run's container ended
        self._acting: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._finishers = ThreadPoolExecutor(FINISHERS, thread_name_prefix="finish")
        self._signallers = ThreadPoolExecutor(SIGNALLERS, thread_name_prefix="signal")
        self._due: dict[str, float] = {}

    def run(self) -> None:
        """Work until `stop`."""
        register()
        self.follower.start()
        for name, work in self._threads().items():
            threading.Thread(target=work, name=name, daemon=True).start()
        while not self.stopping.wait(min(settings.DEADLINE_PERIOD, 0.5)):
            self._tick()
        self._signallers.shutdown(wait=False, cancel_futures=True)
        self._finishers.shutdown(wait=True, cancel_futures=True)
        self.follower.stop()

    def stop(self) -> None:
        self.stopping.set()
        self.reconcile_now.set()

    def _threads(self) -> dict[str, Callable[[], None]]:
        node = settings.NODE_NAME
        return {
            "engine": self._watch_ends,
            "look": self._look_at_engine,
            "reconcile": self._reconcile,
            "doctor": self._look_at_itself,
            "disk": lambda: run_disk_watch(node, self.stopping, guarded),
            "pack": lambda: run_packer(node, self.stopping),
            "sampler": lambda: run_sampler(node, lambda: claims.of_node(node), self.stopping, self.sample_now),
        }

    def _tick(self) -> None:
        """Whatever is due now and asks only the database; a step that fails is logged and comes again."""
        now = timezone.now()
        self._step("heartbeat", settings.NODE_HEARTBEAT, heartbeat)
        self._step("time limits", settings.DEADLINE_PERIOD, lambda: enforce_time_limits(now, self._stop_run))
        self._step("grace", settings.DEADLINE_PERIOD, lambda: end_grace(now, self._stop_again, self._kill_run))
        self._step("pulls", settings.DEADLINE_PERIOD, lambda: self.pulls.look(now))
        self._step("report", settings.NODE_HEARTBEAT, self._report)
        self._step("GPU watch", WATCH_PERIOD, lambda: watch_gpus(settings.NODE_NAME))
        self._step("idle watch", IDLE_PERIOD, lambda: watch_idle(settings.NODE_NAME, now))
        self._step("log watch", WATCH_PERIOD, lambda: watch_logs(self.follower.problems()))

    def _report(self) -> None:
        count, seconds = self.follower.behind()
        with suppress(redis.RedisError):  # the next report tells it
            nodereports.tell(settings.NODE_NAME, log_behind_bytes=count, log_behind_seconds=round(seconds, 1))

    def _step(self, name: str, period: float, function: Callable[[], None]) -> None:
        """Do it once a period; what fails comes again with the next sign of life, when that is sooner."""
        now = time.monotonic()
        if now < self._due.get(name, 0):
            return
        went_well = guarded(name, function)
        self._due[name] = now + (period if went_well else min(period, settings.NODE_HEARTBEAT))

    def _look_at_engine(self) -> None:
        while not self.stopping.wait(settings.NODE_HEARTBEAT):
            guarded("a look at the engine", hostfacts.look_at_engine)
            self._step("the host's facts", FACTS_PERIOD, hostfacts.tell)
            guarded("a look at full disks", hostfacts.look_at_full_disks)
            self._step("a look at the images", IMAGES_PERIOD, lambda: hints.remember(containers_images.images()))

    def _look_at_itself(self) -> None:
        while not self.stopping.is_set():
            guarded("the doctor's round", lambda: health.tell(settings.NODE_NAME, examine(["node"], sampled=True)))
            self.stopping.wait(settings.DOCTOR_PERIOD)

    def _reconcile(self) -> None:
        while not self.stopping.is_set():
            self.reconcile_now.clear()
            guarded("reconciliation", lambda: reconcile(self.follower, self.finish))
            guarded("a return", self._come_back)
            self.reconcile_now.wait(settings.RECONCILE_PERIOD)

    def _come_back(self) -> None:
        while not comeback.come_back() and not self.stopping.wait(CLEARING_PERIOD):
            reconcile(self.follower, self.finish)

    def finish(self, run_id: int) -> None:
        """Look at a run's end, in a thread of the pool."""
        self._act(self._finishers, "end", run_id, self._finish)

    def _finish(self, run_id: int) -> None:
        known = finishing.EngineLife(
            lambda: self.engine_gap, lambda: self.signalled.get(run_id), lambda: self.exit_codes.get(run_id)
        )
        if finishing.finish(run_id, self.follower, known):
            self.signalled.pop(run_id, None)
            self.sample_now.set()
        self.exit_codes.pop(run_id, None)  # heard, or of a run that ended otherwise; kept while the engine is away

    def _stop_run(self, run_id: int) -> None:
        self._act(self._signallers, "stop", run_id, stop)

    def _stop_again(self, run_id: int) -> None:
        self._act(self._signallers, "stop again", run_id, stop_again)

    def _kill_run(self, run_id: int) -> None:
        self._act(self._signallers, "kill", run_id, kill)

    def _act(self, pool: ThreadPoolExecutor, kind: str, run_id: int, act: Callable[[int], None]) -> None:
        """Do it in a thread of the pool, unless the same waits or is being done."""
        key = (kind, run_id)
        with self._lock:
            if key in self._acting:
                return
            self._acting.add(key)

        def guarded_act() -> None:
            try:
                with logs.about(run=run_id):
                    guarded(f"{kind} of run {run_id}", lambda: act(run_id))
            finally:
                with self._lock:
                    self._acting.discard(key)

        with suppress(RuntimeError):  # the pool is shut down
            pool.submit(guarded_act)

    def _watch_ends(self) -> None:
        """Docker's events, for ever: each end is finished at once; after a gap, reconciliation looks for the rest.

        Who was killed for lack of memory during a gap, the container itself tells at its end.
        """
        since = datetime.now(UTC) - EVENTS_MISSED
        while not self.stopping.is_set():
            try:
                for event in containers.events(since):
                    since = datetime.now(UTC)
                    if event.run is not None:
                        self._heed(event.run, event)
                    elif self.engine_gap is not None:
                        self.engine_gap = self.engine_gap[0], since
            except (containers.EngineUnavailable, containers.EngineRefused, ValueError) as error:
                log.warning("the engine's events broke off: %s", error)
            if self.engine_gap is None or self.engine_gap[1] is not None:
                self.engine_gap = datetime.now(UTC), None
            self.reconcile_now.set()
            self.stopping.wait(0.5)

    def _heed(self, run_id: int, event: containers.Event) -> None:
        if event.what == "kill":
            self.signalled[run_id] = event.at
        elif event.what == "oom":
            self._act(self._signallers, "oom", run_id, watch_memory)
        else:
            if event.exit_code is not None:
                self.exit_codes[run_id] = event.exit_code
            self.finish(run_id)


def guarded(name: str, function: Callable[[], None]) -> bool:
    """Call it with fresh database connections; what goes wrong is logged, and ends no thread. False when it did."""
    close_old_connections()
    try:
        function()
        return True
    except (containers.EngineUnavailable, containers.EngineRefused, DatabaseError, firewall.NotProtected) as error:
        log.warning("%s: %s", name, error)
    except Exception:
        log.exception("%s failed", name)
    finally:
        close_old_connections()
    return False


def register() -> None:
    """Make this host's row, or refresh it."""
    node, _is_new = Node.objects.get_or_create(name=settings.NODE_NAME)
    guarded("registration", heartbeat)
    guarded("a note of the start", lambda: _note_start(node))
    guarded("a look at the engine", hostfacts.look_at_engine)


def _note_start(node: Node) -> None:
    hostevents.note(node, "STARTED", version=VERSION)


def heartbeat() -> None:
    """Write that this host lives."""
    Node.objects.filter(name=settings.NODE_NAME).update(
        hostname=platform.node(), agent_version=VERSION, last_seen=timezone.now()
    )
