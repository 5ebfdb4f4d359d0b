"""How long passes take, added up in Redis, where web processes find it. Lost with Redis: counts begin anew."""

import logging
from dataclasses import dataclass

import redis
from django.conf import settings

from portal import live

log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds, upper bounds
KINDS = ("full", "brief")  # a brief pass only places; a full one also tells those that wait why, and how long


@dataclass(frozen=True)
class Passes:
    """Those of one kind so far: `counts` of each bucket by itself, and of those beyond the last."""

    counts: tuple[int, ...]
    seconds: float


def _key(kind: str) -> str:
    return f"dockyard.{settings.INSTALLATION}.passes.{kind}"


def note(seconds: float, *, full: bool) -> None:
    """Add one pass. Never raises."""
    bucket = next((n for n, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
    name = _key(KINDS[not full])
    try:
        with live.briefly() as client, client.pipeline(transaction=False) as pipe:
            pipe.hincrby(name, str(bucket), 1)
            pipe.hincrbyfloat(name, "seconds", seconds)
            pipe.execute()
    except redis.RedisError as error:
        log.debug("a pass was not counted: %s", error)


def passes() -> dict[str, Passes]:
    """By kind. Raises RedisError."""
    with live.briefly() as client, client.pipeline(transaction=False) as pipe:
        for kind in KINDS:
            pipe.hgetall(_key(kind))
        return {kind: _passes(found) for kind, found in zip(KINDS, pipe.execute(), strict=True)}


def _passes(found: dict[bytes, bytes]) -> Passes:
    counts = tuple(int(found.get(str(n).encode(), 0)) for n in range(len(BUCKETS) + 1))
    return Passes(counts, float(found.get(b"seconds", 0)))
