"""Whether this process can serve: what stands behind `/readyz`. Cheap enough to be asked every second by anybody."""

import logging
import threading
import time
from functools import cache
from typing import Literal

import redis
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from portal import live

log = logging.getLogger(__name__)

Verdict = Literal["ok", "unreachable", "not applied", "unknown"]
KEPT = 1.0  # seconds for which an answer holds, whoever asks: nobody makes the database busy with this


class _Last:
    """This process's last answer."""

    lock = threading.Lock()
    until = 0.0
    found: dict[str, Verdict] = {}


def look() -> dict[str, Verdict]:
    """What was found of `database`, `migrations` and `redis`, each "ok" or what is wrong; no older than KEPT."""
    with _Last.lock:
        if time.monotonic() >= _Last.until:
            _Last.found = {**_database(), "redis": _redis()}
            _Last.until = time.monotonic() + KEPT
        return dict(_Last.found)


def applied_migrations() -> set[str]:
    """Those that the database has had, as `app.name`. Raises DatabaseError."""
    return {".".join(key) for key in MigrationRecorder(connection).applied_migrations()}


def missing_migrations() -> list[str]:
    """Those of this code that it has not had. Raises DatabaseError."""
    return sorted(_of_this_code() - applied_migrations())


def await_migrations() -> None:
    """Return once the database has had the migrations of this code: a new version may be started before `prepare`.

    Also when nobody can say: whoever works with a database that does not answer has a way of its own to wait.
    """
    told = False
    try:
        while missing := missing_migrations():
            if not told:
                log.warning("waiting for manage.py prepare of this version: %s is not applied", missing[0])
            told = True
            time.sleep(KEPT)
    except DatabaseError as error:
        log.warning("nobody can say whether all migrations are applied: %s", error)


def known_migrations() -> frozenset[str]:
    """All that this code knows of, as `app.name`."""
    return frozenset(".".join(key) for key in _loader().disk_migrations)


@cache
def _loader() -> MigrationLoader:
    return MigrationLoader(None, ignore_no_migrations=True)


@cache
def _of_this_code() -> frozenset[str]:
    replaced = {".".join(key) for migration in _loader().disk_migrations.values() for key in migration.replaces}
    return known_migrations() - replaced


def _database() -> dict[str, Verdict]:
    try:
        missing = missing_migrations()
    except DatabaseError:
        return {"database": "unreachable", "migrations": "unknown"}
    return {"database": "ok", "migrations": "not applied" if missing else "ok"}


def _redis() -> Verdict:
    try:
        with live.briefly() as client:
            client.ping()
    except redis.RedisError:
        return "unreachable"
    return "ok"
