"""The door to the newest bytes of live logs: those not yet in a segment, in a Redis stream a run.

An entry's id is `<end offset>-0`, its field `b` the bytes that end there, `m` their marks (`jobs.logmarks`). All of it
may vanish at any time.
"""

import contextlib
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from portal import live

_KEEP = 3600  # seconds after the last byte: far longer than bytes stay out of a segment
_BATCH = 64
_REST = 1.0  # seconds in which writers leave Redis alone after it failed
_rest = {"until": 0.0}  # of this process

Lost = redis.RedisError


class OutOfStep(redis.RedisError):
    """The stream does not hold what was put there: it was flushed, or is of another time."""


@cache
def _connection() -> redis.Redis:
    """Without retries: the caller has its own, and others to serve meanwhile."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0),
        **live.keepalive(),
    )  # fmt: skip


def _key(run_id: int, generation: int) -> str:
    return f"dockyard.{settings.INSTALLATION}.log.{run_id}.{generation}"


def is_resting() -> bool:
    """Whether Redis failed a moment ago, so that nobody should wait for it again just yet."""
    return time.monotonic() < _rest["until"]


@contextlib.contextmanager
def _writing() -> Iterator[redis.Redis]:
    if is_resting():
        raise redis.ConnectionError("Redis failed a moment ago")
    try:
        yield _connection()
    except (redis.ConnectionError, redis.TimeoutError):
        _rest["until"] = time.monotonic() + _REST
        raise


def push(run_id: int, generation: int, end: int, data: bytes | bytearray, marks: bytes = b"", *, entries: int) -> None:
    """Add the bytes that end at offset `end`; the stream then holds `entries` entries, or OutOfStep is raised.

    `marks` are those of these bytes, packed.
    """
    key = _key(run_id, generation)
    with _writing() as connection:
        pipe = connection.pipeline(transaction=False)
        pipe.xadd(key, {"b": bytes(data), "m": marks}, id=f"{end}-0")
        pipe.xlen(key)
        pipe.expire(key, _KEEP)
        try:
            count = pipe.execute()[1]
        except redis.ResponseError as error:  # an id that is not the newest
            raise OutOfStep(str(error)) from error
    if count != entries:
        raise OutOfStep(f"{key} holds {count} entries in place of {entries}")


def trim(run_id: int, generation: int, through: int) -> None:
    """Forget entries that end at `through` or before."""
    with _writing() as connection:
        connection.xtrim(_key(run_id, generation), minid=f"{through + 1}-0", approximate=False)


def drop(run_id: int, generation: int) -> None:
    with _writing() as connection:
        connection.delete(_key(run_id, generation))


def end(run_id: int, generation: int) -> int | None:
    """The offset behind the newest byte; None when there is none, or Redis does not answer."""
    try:
        with live.briefly() as connection:
            last = cast(list[Any], connection.xrevrange(_key(run_id, generation), count=1))
    except redis.RedisError:
        return None
    return _offset(last[0][0]) if last else None


def read(run_id: int, generation: int, start: int, stop: int) -> bytes:
    """The bytes [start, stop), or as many as there are without a gap from `start` on; none when Redis is silent."""
    parts: list[bytes] = []
    at = start
    try:
        while at < stop:
            with live.briefly() as connection:
                entries = cast(list[Any], connection.xrange(_key(run_id, generation), min=f"{at + 1}-0", count=_BATCH))
            before = at
            at = _collect(entries, at, stop, parts)
            if at == before or len(entries) < _BATCH:
                break
    except redis.RedisError:
        pass  # what came before is true none the less
    return b"".join(parts)


def marks(run_id: int, generation: int, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
    """(first offset, offset behind, packed marks) of each entry that has some of [start, stop), in order."""
    try:
        with live.briefly() as connection:
            entries = cast(list[Any], connection.xrange(_key(run_id, generation), min=f"{start + 1}-0"))
    except redis.RedisError:
        return
    for entry_id, fields in entries:
        end_of = _offset(entry_id)
        first = end_of - len(fields[b"b"])
        if first >= stop:
            return
        yield first, end_of, fields.get(b"m", b"")


def _collect(entries: list[Any], at: int, stop: int, parts: list[bytes]) -> int:
    for entry_id, fields in entries:
        data = fields[b"b"]
        first = _offset(entry_id) - len(data)
        if first > at or at >= stop:
            break
        part = data[at - first : stop - first]
        parts.append(part)
        at += len(part)
    return at


def _offset(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
