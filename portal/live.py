"""The one door for news to browsers: a process publishes on Redis, each web process listens (`portal/hub.py`).

Messages are small and may all be lost; the truth is in the database and in log storage.

Topics: `jobs` (some job changed: {"job": id}), `job:<id>`, `log:<run id>` ({"generation": g, "end": bytes}, and
"complete" with the last), `gpus:<node>` (a node's readings), `user:<id>` (log-out or deactivation: re-check now).
"""

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from portal.silence import Keepalive

log = logging.getLogger(__name__)

JOBS = "jobs"
Message = dict[str, Any]


def job_topic(job_id: int) -> str:
    return f"job:{job_id}"


def log_topic(run_id: int) -> str:
    return f"log:{run_id}"


def gpus_topic(node_name: str) -> str:
    return f"gpus:{node_name}"


def user_topic(user_id: int) -> str:
    return f"user:{user_id}"


def channel(topic: str) -> str:
    """The Redis channel of a topic, or the pattern of one that ends in `*`."""
    return f"dockyard.{settings.INSTALLATION}.live.{topic}"


def topic_of(name: bytes) -> str:
    """The topic of a Redis channel."""
    return name.decode()[len(channel("")) :]


@cache
def connection() -> redis.Redis:
    """This process's Redis client: bytes in, bytes out, bounded waits."""
    once = Retry(NoBackoff(), 1)  # the library's own patience would hold up whoever has news to tell
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=2, retry=once, **keepalive()
    )


@cache
def _brief_connection() -> redis.Redis:
    """A client that gives up soon. A connection that a restarted Redis has closed is made anew, once."""
    anew = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    patience = settings.REDIS_PATIENCE
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=patience, socket_connect_timeout=patience, retry=anew, **keepalive()
    )


def keepalive() -> dict[str, Any]:
    """For a client that waits for Redis without an end: a line of which nothing comes for NETWORK_PATIENCE is dead.

    A query that the network swallowed is answered by nobody, and nobody refuses it.
    """
    if settings.REDIS_URL.startswith("unix:"):
        return {}
    kept = Keepalive.of(settings.NETWORK_PATIENCE)
    options = {
        socket.TCP_KEEPIDLE: kept.idle, socket.TCP_KEEPINTVL: kept.interval, socket.TCP_KEEPCNT: kept.probes,
        socket.TCP_USER_TIMEOUT: kept.timeout_ms,
    }  # fmt: skip
    return {"socket_keepalive": True, "socket_keepalive_options": options}


_rest = {"until": 0.0}  # of this process


@contextlib.contextmanager
def briefly() -> Iterator[redis.Redis]:
    """Redis for those whom somebody waits for: it answers within REDIS_PATIENCE or raises a RedisError.

    After a failure nobody in this process asks for REDIS_REST seconds: the block is left with an error at once.
    """
    if time.monotonic() < _rest["until"]:
        raise redis.ConnectionError("Redis failed a moment ago")
    try:
        yield _brief_connection()
    except (redis.ConnectionError, redis.TimeoutError):
        _rest["until"] = time.monotonic() + settings.REDIS_REST
        raise


def publish(topics: str | Sequence[str], message: Message) -> None:
    """Send news to whoever watches the topic, or one of several. Never raises: news may be lost, work may not."""
    told = json.dumps(message, separators=(",", ":"))
    try:
        with briefly() as client, client.pipeline(transaction=False) as pipe:
            for topic in [topics] if isinstance(topics, str) else topics:
                pipe.publish(channel(topic), told)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("news on %s lost: %s", topics, error)
