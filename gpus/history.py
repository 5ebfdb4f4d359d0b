"""What was read lately (Redis) and long ago (database). Without Redis the answers are empty, never an error."""

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import redis
from django.conf import settings

from gpus.models import GPU, GPUMinute
from portal import live

KEPT_SAMPLES = 3600
_AT_ONCE = 500  # rows a statement deletes
Sample = dict[str, Any]  # at, utilisation, memory_used_mib, power_w, temperature_c, sm_clock_mhz, job


def host_key(node_name: str) -> str:
    """Redis key of a node's last readings."""
    return f"dockyard.{settings.INSTALLATION}.gpus.{node_name}"


def gpu_key(uuid: str) -> str:
    """Redis key of a GPU's samples, newest first."""
    return f"dockyard.{settings.INSTALLATION}.gpu.{uuid}"


def latest(node_name: str) -> dict[str, Any]:
    """The node's last readings as in docs/architecture.md; empty when there are none of the last minute."""
    try:
        with live.briefly() as connection:
            text = connection.get(host_key(node_name))
    except redis.RedisError:
        return {}
    return dict(json.loads(text)) if text else {}


def recent(uuid: str, seconds: int) -> list[Sample]:
    """A GPU's samples of the last `seconds`, at most an hour, oldest first."""
    return recent_of([uuid], seconds)[uuid]


def recent_of(uuids: Iterable[str], seconds: int) -> dict[str, list[Sample]]:
    """`recent` of several GPUs in one exchange."""
    uuids = list(uuids)
    most = min(int(seconds / settings.SAMPLE_PERIOD) + 1, KEPT_SAMPLES)
    try:
        with live.briefly() as connection:
            pipe = connection.pipeline(transaction=False)
            for uuid in uuids:
                pipe.lrange(gpu_key(uuid), 0, most - 1)
            lists = pipe.execute()
    except redis.RedisError:
        lists = [[] for _ in uuids]
    since = time.time() - seconds
    return {uuid: _samples(texts, since) for uuid, texts in zip(uuids, lists, strict=True)}


def _samples(texts: list[bytes], since: float) -> list[Sample]:
    samples = (json.loads(text) for text in reversed(texts))
    return [sample for sample in samples if sample["at"] >= since]


def minutes(uuid: str, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """A GPU's minute means in [start, end), oldest first; minutes without a reading are absent."""
    rows = GPUMinute.objects.filter(gpu__uuid=uuid, minute__gte=start, minute__lt=end).order_by("minute")
    return [dict(row) for row in rows.values("minute", "utilisation", "memory_mib", "power_w", "temperature_c")]


def forget(before: datetime, most: int) -> int:
    """Delete at most `most` minutes before a time; returns how many. GPU by GPU, as the rows' index has them."""
    gone = 0
    for gpu in GPU.objects.values_list("pk", flat=True):
        rows = GPUMinute.objects.filter(gpu=gpu, minute__lt=before).order_by("minute")
        keys = list(rows.values_list("pk", flat=True)[: most - gone])
        for start in range(0, len(keys), _AT_ONCE):
            gone += GPUMinute.objects.filter(pk__in=keys[start : start + _AT_ONCE]).delete()[0]
        if gone >= most:
            break
    return gone
