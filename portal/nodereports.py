"""What each node says of itself, in Redis: how far its logs are behind, and whatever an admin is to know of it.

A report is news, no truth: it goes when Redis is flushed, or KEPT after the node fell silent.
"""

import json
from collections.abc import Iterable
from typing import Any

import redis
from django.conf import settings

from portal import live

Report = dict[str, Any]  # by part, see docs/architecture.md
KEPT = 24 * 3600  # seconds


def key(node: str) -> str:
    """Redis key of a node's report: a hash of JSON, by part."""
    return f"dockyard.{settings.INSTALLATION}.report.{node}"


def tell(node: str, **parts: Any) -> None:
    """Replace these parts of the node's report. Raises RedisError."""
    told: dict[Any, Any] = {name: json.dumps(part) for name, part in parts.items()}
    with live.briefly() as client, client.pipeline(transaction=True) as pipe:
        pipe.hset(key(node), mapping=told)
        pipe.expire(key(node), KEPT)
        pipe.execute()


def read(nodes: Iterable[str]) -> dict[str, Report]:
    """The reports of these nodes; an empty one of a node that has told none, or while Redis is away."""
    names = list(nodes)
    try:
        with live.briefly() as client, client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(key(name))
            found = pipe.execute()
    except redis.RedisError:
        return {name: {} for name in names}
    return {
        name: {part.decode(): json.loads(text) for part, text in parts.items()}
        for name, parts in zip(names, found, strict=True)
    }
