"""What was read lately (Redis) and long ago (database). Without Redis the answers are empty, never an error."""

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import redis
from django.conf import settings
from django.db.models import Q

from gpus.minutes import CONTAINER_METRICS, METRICS
from gpus.models import GPU, ContainerMinute, GPUMinute
from portal import live

KEPT_SAMPLES = 3600
_AT_ONCE = 500  # rows a statement deletes
Sample = dict[str, Any]  # at, and the values as in GpuReading or ContainerReading


def host_key(node_name: str) -> str:
    """Redis key of a node's last readings."""
    return f"dockyard.{settings.INSTALLATION}.gpus.{node_name}"


def gpu_key(uuid: str) -> str:
    """Redis key of a GPU's samples, newest first."""
    return f"dockyard.{settings.INSTALLATION}.gpu.{uuid}"


def run_key(run: int) -> str:
    """Redis key of the samples of a run's container, newest first."""
    return f"dockyard.{settings.INSTALLATION}.run.{run}"


def latest(node_name: str) -> dict[str, Any]:
    """The node's last readings as in docs/architecture.md; empty when there are none of the last minute."""
    return latest_of([node_name])[node_name]


def latest_of(node_names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`latest` of several nodes in one exchange."""
    names = list(node_names)
    try:
        with live.briefly() as connection:
            texts = connection.mget([host_key(name) for name in names]) if names else []
    except redis.RedisError:
        texts = [None] * len(names)
    return {name: dict(json.loads(text)) if text else {} for name, text in zip(names, texts, strict=True)}


def recent(uuid: str, seconds: int) -> list[Sample]:
    """A GPU's samples of the last `seconds`, at most an hour, oldest first."""
    return recent_of([uuid], seconds)[uuid]


def recent_of(uuids: Iterable[str], seconds: int, *, every: float = 0) -> dict[str, list[Sample]]:
    """`recent` of several GPUs in one exchange; of every `every` seconds only one sample, where there are more."""
    uuids = list(uuids)
    return dict(zip(uuids, _lists([gpu_key(uuid) for uuid in uuids], seconds, every), strict=True))


def recent_of_run(run: int, seconds: int) -> list[Sample]:
    """The samples of a run's container as in ContainerReading, with `at`, oldest first."""
    return _lists([run_key(run)], seconds)[0]


def _lists(keys: list[str], seconds: int, every: float = 0) -> list[list[Sample]]:
    most = min(int(seconds / settings.SAMPLE_PERIOD) + 1, KEPT_SAMPLES)
    try:
        with live.briefly() as connection:
            pipe = connection.pipeline(transaction=False)
            for key in keys:
                pipe.lrange(key, 0, most - 1)
            lists = pipe.execute()
    except redis.RedisError:
        lists = [[] for _ in keys]
    since, step = time.time() - seconds, max(int(every / settings.SAMPLE_PERIOD), 1)
    return [_samples(texts[::step], since) for texts in lists]


def _samples(texts: list[bytes], since: float) -> list[Sample]:
    samples = json.loads(b"[%s]" % b",".join(reversed(texts)))  # at once: a page reads thousands of them
    return [sample for sample in samples if sample["at"] >= since]


def minutes(uuid: str, start: datetime, end: datetime, *, every: int = 1) -> list[dict[str, Any]]:
    """A GPU's minute means in [start, end), oldest first; minutes without a reading are absent.

    Of every `every` minutes (a divisor of 60) only one.
    """
    rows = GPUMinute.objects.filter(_inside(start, end, every), gpu__uuid=uuid).order_by("minute")
    return list(rows.values("minute", *METRICS, "throttle"))


def minutes_of_run(run: int, start: datetime, end: datetime, *, every: int = 1) -> list[dict[str, Any]]:
    """The minute means of a run's container, as `minutes`."""
    rows = ContainerMinute.objects.filter(_inside(start, end, every), run=run).order_by("minute")
    return list(rows.values("minute", *CONTAINER_METRICS))


def _inside(start: datetime, end: datetime, every: int) -> Q:
    wanted = Q(minute__gte=start, minute__lt=end)
    return wanted if every == 1 else wanted & Q(minute__minute__in=range(0, 60, every))


def forget(before: datetime, most: int) -> int:
    """Delete at most `most` minutes before a time; returns how many. GPU by GPU, as the rows' index has them."""
    gone = _forget_containers(before, most)
    for gpu in GPU.objects.values_list("pk", flat=True):
        rows = GPUMinute.objects.filter(gpu=gpu, minute__lt=before).order_by("minute")
        keys = list(rows.values_list("pk", flat=True)[: most - gone])
        for start in range(0, len(keys), _AT_ONCE):
            gone += GPUMinute.objects.filter(pk__in=keys[start : start + _AT_ONCE]).delete()[0]
        if gone >= most:
            break
    return gone


def _forget_containers(before: datetime, most: int) -> int:
    rows = ContainerMinute.objects.filter(minute__lt=before).order_by("minute")
    keys = list(rows.values_list("pk", flat=True)[:most])
    pieces = (keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE))
    return sum(ContainerMinute.objects.filter(pk__in=piece).delete()[0] for piece in pieces)
