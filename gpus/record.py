"""Where a reading goes: Redis, for pages now; the database, for the scheduler and for good."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import redis
from django.db import DatabaseError

from gpus import history
from gpus.inventory import Inventory
from gpus.readings import GpuReading, HostReading
from portal import live

log = logging.getLogger(__name__)

_LATEST_EXPIRES = 60  # seconds
_SAMPLES_EXPIRE = 2 * 3600
_TRIM_EVERY = 60  # samples
_REDIS_AGAIN = 5.0  # seconds without a try after a failure, each of which may take as long to fail
_SAMPLE = (
    "utilisation", "memory_used_mib", "power_w", "temperature_c", "sm_clock_mhz", "mem_clock_mhz", "throttle", "job",
)  # fmt: skip


class Recorder:
    """Writes one node's readings. Belongs to one thread."""

    def __init__(self, node_name: str) -> None:
        self.node_name = node_name
        self.inventory = Inventory(node_name)
        self._count = 0
        self._known = frozenset[str]()  # keys that have an end
        self._redis_from = 0.0
        self._failing: dict[str, str] = {}

    def record(self, reading: HostReading) -> None:
        """Publish, then store. Never raises: what fails is logged once, and done again with a later reading."""
        self._attempt("Redis", self._share, reading)
        self._attempt("the database", self._store, reading)

    def _attempt(self, where: str, step: Callable[[HostReading], None], reading: HostReading) -> None:
        try:
            step(reading)
        except Exception as error:
            if self._failing.get(where) != type(error).__name__:
                log.warning("GPU readings don't reach %s: %s", where, error, exc_info=not _is_outage(error))
            self._failing[where] = type(error).__name__
            return
        if self._failing.pop(where, None):
            log.info("GPU readings reach %s again", where)

    def _share(self, reading: HostReading) -> None:
        if time.monotonic() < self._redis_from:
            return
        self._redis_from = time.monotonic() + _REDIS_AGAIN
        plain = reading.as_dict()
        pipe = live.connection().pipeline(transaction=False)
        pipe.set(history.host_key(self.node_name), _json(plain), ex=_LATEST_EXPIRES)
        samples = {history.gpu_key(gpu.uuid): _sample(reading.at, gpu) for gpu in reading.gpus}
        samples |= {history.run_key(found.run): {"at": reading.at, **vars(found)} for found in reading.containers}
        for key, sample in samples.items():
            pipe.lpush(key, _json(sample))
            if self._count % _TRIM_EVERY == 0 or key not in self._known:
                pipe.ltrim(key, 0, history.KEPT_SAMPLES - 1)
                pipe.expire(key, _SAMPLES_EXPIRE)
        pipe.execute()
        self._known = frozenset(samples)
        live.publish(live.gpus_topic(self.node_name), plain)
        self._count += 1
        self._redis_from = 0.0

    def _store(self, reading: HostReading) -> None:
        try:
            self.inventory.update(reading)
        except Exception:
            self.inventory.forget()
            raise


def _sample(at: float, gpu: GpuReading) -> dict[str, Any]:
    return {"at": at, **{name: getattr(gpu, name) for name in _SAMPLE}}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_outage(error: Exception) -> bool:
    return isinstance(error, redis.RedisError | DatabaseError)
