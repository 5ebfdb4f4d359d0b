"""What every process stands on: settings, database, Redis, log storage, folders, disk, clock, versions."""

import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import DatabaseError, ProgrammingError, connection
from django.utils.translation import gettext_noop as _

from jobs.plain import first_line
from portal import VERSION, live, readiness
from portal.doctor.finding import Finding, Role, fail, ok, said, warn, words

GIB = 1 << 30
LEAST_FREE, LEAST_FREE_PART = 10 * GIB, 0.05
LEAST_INODES = 0.03  # of all
MOST_SKEW = 2.0  # seconds
OLDEST_REDIS = (6, 2)
REDIS = words("Redis")


def settings_make_sense(role: Role) -> Iterator[Finding]:
    """Our own system checks, also those of deployment and database."""
    found = checks.run_checks(include_deployment_checks=True, databases=["default"])
    ours = [message for message in found if str(message.id).startswith(("dockyard.", "gpus.", "jobs."))]
    ours = [message for message in ours if message.id not in ("dockyard.E002", "dockyard.W002", "dockyard.E008")]
    for message in ours:
        verdict = fail if message.level >= checks.ERROR else warn
        yield verdict(said(_("Settings")), words(f"{message.id}: {message.msg}"), words(message.hint or ""))
    if not ours:
        yield ok(said(_("Settings")), said(_("every system check passes")))


def database(role: Role) -> Iterator[Finding]:
    name = said(_("Database"))
    try:
        connection.ensure_connection()
    except DatabaseError as error:
        yield fail(name, words(first_line(error)), said(_("Start it, or correct DATABASE_URL.")))
        return
    yield ok(name, words(f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"))
    try:
        applied = readiness.applied_migrations()
        missing = readiness.missing_migrations()
    except ProgrammingError:  # a host's own role may not read which
        return
    if missing:
        seen = said(_("%(count)d migrations are not applied"), count=len(missing))
        yield fail(name, seen, words("python manage.py prepare"))
    ours = {key for key in applied if key.partition(".")[0] in ("portal", "gpus", "jobs")}
    if newer := sorted(ours - readiness.known_migrations()):
        seen = said(_("it has had migrations of a newer version (%(name)s)"), name=newer[-1])
        yield warn(name, seen, said(_("Install the newer version here too.")))


def redis_server(role: Role) -> Iterator[Finding]:
    client = live.connection()
    try:
        info = client.info()
    except redis.RedisError as error:
        yield fail(REDIS, words(first_line(error)), said(_("Start redis-server, or correct REDIS_URL.")))
        return
    yield from _redis_version(info)
    if not info.get("aof_enabled", 1):
        advice = said(_('Set "appendonly yes" in redis.conf; without it a restart delays queued starts by seconds.'))
        yield warn(REDIS, said(_("no append-only file")), advice, fix="redis_append")
    if info.get("aof_last_write_status", "ok") != "ok":
        advice = said(_("See its log, and the disk that it writes to."))
        yield fail(REDIS, said(_("its append-only file can't be written")), advice)
    yield from _redis_config(client)


def _redis_version(info: dict[str, Any]) -> Iterator[Finding]:
    text = str(info.get("redis_version") or info.get("valkey_version") or "?")
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if version and version < OLDEST_REDIS:
        yield warn(REDIS, words(text), said(_("Use Redis 6.2 or newer.")))
    else:
        yield ok(REDIS, words(text))


def _redis_config(client: redis.Redis) -> Iterator[Finding]:
    try:
        config = client.config_get("maxmemory-policy", "requirepass")
        has_password = bool(config.get("requirepass")) or client.acl_whoami() not in (b"default", "default")
    except redis.RedisError:  # not everybody's to ask: a host's own user, or a managed Redis
        return
    policy = config.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        seen = said(_("it evicts keys when it is full (maxmemory-policy %(policy)s)"), policy=policy)
        advice = said(_('Set "maxmemory-policy noeviction" in redis.conf: queued starts would vanish.'))
        yield fail(REDIS, seen, advice, fix="redis_policy")
    if not has_password and not live.connection().connection_pool.connection_kwargs.get("path"):
        advice = said(_("Set requirepass in redis.conf, and REDIS_URL=redis://:PASSWORD@host:6379/0."))
        yield warn(REDIS, said(_("it has no password: every account of its host could start tasks")), advice)


def folders(role: Role) -> Iterator[Finding]:
    """Those on this host that the role writes to."""
    name = said(_("Storage"))
    for folder in places(role):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(there, os.W_OK):
            seen = said(_("%(path)s cannot be written"), path=str(folder))
            yield fail(name, seen, words(f"chown {os.geteuid()} {there}"))
        elif there != folder:
            seen = said(_("%(path)s is not there yet"), path=str(folder))
            yield warn(name, seen, said(_("It is made when it is needed; or now, by --fix.")), fix="folders")


def places(role: Role) -> list[Path]:
    """The folders that a role writes to, besides log storage."""
    node = [Path(settings.SPOOL_DIR), Path(settings.WORKSPACE_ROOT)] if role == "node" else []
    return [Path(settings.DATA_DIR), *node]


def storage(role: Role) -> Iterator[Finding]:
    """Write, read back and delete."""
    name, store, data = said(_("Storage")), storages["logs"], uuid.uuid4().bytes
    try:
        file = store.save(f"doctor-{uuid.uuid4().hex}", ContentFile(data))
        try:
            with store.open(file) as found:
                same = found.read() == data
        finally:
            store.delete(file)
    except Exception as error:  # noqa: BLE001 - any storage backend, any error
        yield fail(name, words(first_line(error)), said(_("Correct STORAGES or its rights.")))
        return
    if not same:
        yield fail(name, said(_("what was written came back different")), said(_("Correct STORAGES or its rights.")))
    else:
        yield ok(name, said(_("logs can be written, read and deleted")))


def disk(role: Role) -> Iterator[Finding]:
    seen: set[int] = set()
    for folder in places(role):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if (device := there.stat().st_dev) not in seen:
            seen.add(device)
            yield disk_at(there)


def is_nearly_full(free: int, total: int) -> bool:
    """Of a disk, in bytes."""
    return free < max(LEAST_FREE, LEAST_FREE_PART * total)


def disk_at(place: Path) -> Finding:
    """How full the disk of this folder is, in bytes and in files."""
    name, usage, files = said(_("Disk")), shutil.disk_usage(place), os.statvfs(place)
    numbers = {"free": usage.free // GIB, "total": usage.total // GIB, "place": str(place)}
    seen = said(_("%(free)d GiB of %(total)d GiB free at %(place)s"), **numbers)
    advice = said(_("Delete what is not needed, or add space."))
    if is_nearly_full(usage.free, usage.total):
        return warn(name, seen, advice)
    if files.f_files and files.f_favail / files.f_files < LEAST_INODES:
        return warn(name, said(_("room for %(count)d more files at %(place)s"), count=files.f_favail, place=str(place)),
                    advice)  # fmt: skip
    return ok(name, seen)


def clock(role: Role) -> Iterator[Finding]:
    """Against Redis and database, which all hosts share."""
    name = said(_("Clock"))
    skews = {"Redis": redis_skew(), connection.display_name: _database_skew()}
    known = {whose: skew for whose, skew in skews.items() if skew is not None}
    for whose, skew in known.items():
        seen = said(_("%(skew).1f s from that of %(whose)s"), skew=abs(skew), whose=whose)
        if abs(skew) > MOST_SKEW:
            yield fail(name, seen, said(_("Keep the clocks of all hosts together: apt-get install chrony")))
        else:
            yield ok(name, seen)
    if not known:
        seen = said(_("unknown: it is compared with that of Redis, which does not answer"))
        yield warn(name, seen, said(_("Mend Redis first.")))


def redis_skew() -> float | None:
    """Seconds by which this clock is ahead of that of Redis, which all hosts share; None: Redis does not answer."""
    begun = time.time()
    try:
        seconds, micros = live.connection().time()
    except redis.RedisError:
        return None
    return (begun + time.time()) / 2 - (seconds + micros / 1e6)


def _database_skew() -> float | None:
    """None of SQLite, which has no clock of its own."""
    if connection.vendor != "postgresql":
        return None
    begun = time.time()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
            theirs = float(cursor.fetchone()[0])
    except DatabaseError:
        return None
    return (begun + time.time()) / 2 - theirs


def versions(role: Role) -> Iterator[Finding]:
    """Ours, and whether all hosts have the same."""
    name = said(_("Version"))
    yield ok(name, words(f"Dockyard {VERSION}, Python {platform.python_version()}, {sys.platform}"))
    try:
        nodes = apps.get_model("gpus", "Node").objects.filter(left_at=None).exclude(agent_version__in=("", VERSION))
        others = list(nodes.order_by("name").values_list("name", "agent_version"))
    except DatabaseError:
        return
    if others:
        told = ", ".join(f"{node} {version}" for node, version in others)
        yield warn(name, said(_("other versions: %(told)s"), told=told), said(_("Upgrade those hosts, or this one.")))
