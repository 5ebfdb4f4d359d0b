"""Sample this host for as long as the agent lives: read, attribute, record, wait."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from django.conf import settings
from django.db import close_old_connections

from gpus import simulated
from gpus.attribute import Rules, attribute
from gpus.cgroups import CgroupTree, ContainerUse, cpu_percent, rate
from gpus.claims import Claim
from gpus.readings import ContainerReading, HostReading
from gpus.record import Recorder
from gpus.sampler import Sampler

log = logging.getLogger(__name__)

Claims = Callable[[], list[Claim]]


def run_sampler(node_name: str, claims: Claims, stop: threading.Event, sample_now: threading.Event) -> None:
    """Sample every SAMPLE_PERIOD, and at once when `sample_now` is set, until `stop` is set.

    For a plain thread. `claims` gives the node's claims (see Claim) and may raise: the last ones stand.
    No failure of the library, the database or Redis ends it. Notices `stop` within a period.
    """
    round_ = _Round(node_name, claims)
    try:
        while not stop.is_set():
            began = time.monotonic()
            sample_now.clear()
            round_.once()
            sample_now.wait(max(began + settings.SAMPLE_PERIOD - time.monotonic(), 0))
    finally:
        round_.close()


class Source(Protocol):
    """Where readings come from."""

    def read(self) -> HostReading | None: ...
    def close(self) -> None: ...


class _Simulated:
    def __init__(self, node_name: str, current: Callable[[], list[Claim]]) -> None:
        self._node_name, self._current = node_name, current

    def read(self) -> HostReading:
        return simulated.read_host(
            self._node_name, self._current(), time.time(), count=settings.SIMULATED_GPUS,
            model=settings.SIMULATED_GPU_MODEL, memory_mib=settings.SIMULATED_GPU_MEMORY_MIB,
            mig=simulated.read_mig(settings.SIMULATED_MIG), island=settings.SIMULATED_ISLAND,
        )  # fmt: skip

    def close(self) -> None: ...


class _Round:
    """What one sample after the other needs to remember."""

    def __init__(self, node_name: str, claims: Claims) -> None:
        self._ask_claims = claims
        self._claims: list[Claim] = []
        self._source: Source
        if settings.GPU_DRIVER == "simulated":
            self._source = _Simulated(node_name, lambda: self._claims)
        else:
            self._source = Sampler(node_name, settings.SAMPLE_PERIOD)
        self._recorder = Recorder(node_name)
        self._containers = ContainerMeter()
        self._last_error = ""

    def once(self) -> None:
        """One reading from source to record. Never raises."""
        try:
            close_old_connections()  # one that broke or is too old, as at a request's start
            self._refresh_claims()
            reading = self._source.read()
            if reading is not None:
                self._record(reading)
        except Exception as error:  # noqa: BLE001 - logged; the loop goes on
            self._complain("a GPU sample failed", error)

    def close(self) -> None:
        self._source.close()

    def _refresh_claims(self) -> None:
        try:
            self._claims = self._ask_claims()
        except Exception as error:  # noqa: BLE001 - logged; the loop goes on
            self._complain("the claims on this node's GPUs can't be read, the last ones stand", error)

    def _record(self, reading: HostReading) -> None:
        attributed = attribute(reading, self._claims, _rules())
        if any(gpu.busy_outside for gpu in attributed.gpus):  # or a container made while we read?
            self._refresh_claims()
            attributed = attribute(reading, self._claims, _rules())
        self._recorder.record(attributed.with_containers(self._containers.read(self._claims)))

    def _complain(self, what: str, error: Exception) -> None:
        """Once per kind of failure in a row: this loop turns every second."""
        if self._last_error != repr(error):
            log.warning("%s", what, exc_info=error)
        self._last_error = repr(error)


def _rules() -> Rules:
    return Rules(
        system_processes=frozenset(settings.GPU_SYSTEM_PROCESSES),
        memory_floor_mib=settings.GPU_MEMORY_FLOOR_MIB,
        grace=settings.FOREIGN_GRACE,
    )


class ContainerMeter:
    """CPU, memory, disk and network of the claimed containers, from one sample to the next."""

    def __init__(self, tree: CgroupTree | None = None) -> None:
        self._tree = tree or CgroupTree()
        self._before: dict[str, ContainerUse] = {}

    def read(self, claims: Iterable[Claim]) -> tuple[ContainerReading, ...]:
        """One reading for each live claim's container that has a cgroup here."""
        live = {claim.container_id: claim for claim in claims if claim.container_id and claim.ended is None}
        uses = {container: use for container in live if (use := self._tree.use(container)) is not None}
        readings = tuple(self._one(live[container], use) for container, use in uses.items())
        self._before = uses
        self._tree.forget_all_but(set(live))
        return readings

    def _one(self, claim: Claim, use: ContainerUse) -> ContainerReading:
        before = self._before.get(claim.container_id)
        rates = {f"{name}_kib_s": rate(before, use, f"{name}_kib") for name in ("read", "written", "received", "sent")}
        return ContainerReading(
            job=claim.job, run=claim.run, cpu_percent=cpu_percent(before, use), memory_mib=use.memory_mib, **rates
        )
