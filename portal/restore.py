"""Puts a back-up in the place of an installation. Everything that speaks against it is found before anything changes.

Nothing of it runs meanwhile: hosts, scheduler and web are stopped first. Afterwards all starts are paused, and the ids
of jobs and runs go on far behind those of the back-up: containers that were started since have ids of their own, are
listed as unknown (`jobs/unknown.py`), and are never taken for those of a new run.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from django.apps import apps
from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import storages
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import dbroles
from portal import databasedump, live, readiness
from portal.archive import FORMAT, Damaged, Reader
from portal.backup import DATABASE, FILES, LOGS, WORKSPACES, fingerprint

GAP = 100_000  # numbers of jobs and runs that may have been given since the back-up
_NUMBERED = ("jobs_job", "jobs_run")


class Refused(Exception):
    """This back-up can't, or should not, be restored here; str() says why, in the reader's language."""


def examine(path: Path, *, force: bool, other_installation: bool) -> Reader:
    """The back-up, when nothing speaks against it. Raises Refused. Changes nothing."""
    try:
        reader = Reader(path)
        reader.check()
    except FileNotFoundError as error:
        raise Refused(_("There is no file %(path)s.") % {"path": path}) from error
    except (Damaged, OSError) as error:
        raise Refused(_("%(path)s is damaged: %(why)s") % {"path": path, "why": error}) from error
    problem = _not_for_us(reader.manifest, other_installation) or _in_the_way(force)
    if problem:
        raise Refused(problem)
    return reader


def has_other_key(reader: Reader) -> bool:
    """Whether secrets in it were encrypted with another SECRETS_KEY than ours: they can't be read here."""
    return bool(reader.manifest["key"] != fingerprint())


def _not_for_us(manifest: dict[str, Any], other_installation: bool) -> str:
    if manifest["format"] > FORMAT or (unknown := _unknown_migrations(manifest)):
        newer = _("It was made by a newer version of Dockyard. Install that version here first.")
        return newer + (f" ({unknown[-1]})" if manifest["format"] <= FORMAT else "")
    if manifest["database"] != databasedump.kind():
        said = _("It holds a database of %(there)s, and this installation uses %(here)s: set DATABASE_URL.")
        return said % {"there": _product(manifest["database"]), "here": _product(databasedump.kind())}
    if manifest["installation"] != settings.INSTALLATION and not other_installation:
        said = _(
            "It is of the installation “%(there)s”, and this one is “%(here)s”. Set INSTALLATION=%(there)s to have its "
            "containers recognised, or say --other-installation."
        )
        return said % {"there": manifest["installation"], "here": settings.INSTALLATION}
    return ""


def _product(dump: str) -> str:
    return "PostgreSQL" if dump.endswith("pgdump") else "SQLite"


def _unknown_migrations(manifest: dict[str, Any]) -> list[str]:
    return sorted(set(manifest["migrations"]) - readiness.known_migrations())


def _in_the_way(force: bool) -> str:
    alive = _alive()
    if alive:
        said = _("%(nodes)s was heard of a moment ago. Stop nodes, scheduler and web first, and wait %(seconds)d s.")
        return said % {"nodes": ", ".join(alive), "seconds": settings.NODE_SILENT_AFTER}
    if not force and _has_content():
        return _("This installation has people or jobs already, which would be lost. Say --force to replace them.")
    return ""


def _alive() -> list[str]:
    """Which hosts were heard of within NODE_SILENT_AFTER, and whether a scheduler was."""
    since = timezone.now() - timedelta(seconds=settings.NODE_SILENT_AFTER)
    try:
        nodes = apps.get_model("gpus", "Node").objects.filter(last_seen__gte=since)
        scheduled = apps.get_model("jobs", "Cluster").objects.filter(last_pass_at__gte=since).exists()
        return [*nodes.order_by("name").values_list("name", flat=True), *([_("the scheduler")] * scheduled)]
    except DatabaseError:  # empty, or of an older version
        return []


def _has_content() -> bool:
    there = set(connection.introspection.table_names())
    tables = [t for t in ("portal_user", "jobs_job") if t in there]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608
            if cursor.fetchone():
                return True
    return False


def restore(reader: Reader, *, paused: bool = True) -> Counter[str]:
    """Replace database, logs, files and, where they are in it, workspaces. Says how much of each.

    The database comes last: until then what was there can still be used.
    """
    counts: Counter[str] = Counter()
    counts["logs"] = sum(1 for _ in _put_into("logs", reader, LOGS))
    counts["files"] = sum(1 for _ in _put_into("default", reader, FILES))
    counts["workspaces"] = sum(1 for _ in _unpack(reader, WORKSPACES, Path(settings.WORKSPACE_ROOT)))
    for member in reader.members(DATABASE):
        assert member.file is not None
        databasedump.restore(member.name.removeprefix(DATABASE), member.file)
        counts["database"] += 1
    _set_numbers_on()
    dbroles.forget_rights()
    call_command("migrate", interactive=False, verbosity=0)
    if paused:
        _pause(datetime.fromisoformat(reader.manifest["made_at"]))
    _forget_tails()
    return counts


def _put_into(alias: str, reader: Reader, folder: str) -> Iterator[str]:
    storage = storages[alias]
    for member in reader.members(folder):
        if member.file is not None:
            name = member.name.removeprefix(folder)
            storage.delete(name)
            yield storage.save(name, File(member.file))


def _unpack(reader: Reader, folder: str, root: Path) -> Iterator[str]:
    for member in reader.members(folder):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        reader.unpack(member, root, folder)
        yield member.name


def _set_numbers_on() -> None:
    """Let the numbers of jobs and runs go on GAP behind the last: those in between may be out in the world."""
    with connection.cursor() as cursor:
        for table in _NUMBERED:
            cursor.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}")  # noqa: S608
            to = cursor.fetchone()[0] + GAP
            if connection.vendor == "sqlite":
                cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [to, table])
            else:
                cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, to])


def _pause(made_at: datetime) -> None:
    cluster = apps.get_model("jobs", "Cluster")
    row = cluster.get()
    reason = _("Restored as of %(when)s UTC.") % {"when": f"{made_at:%Y-%m-%d %H:%M}"}
    cluster.objects.filter(pk=row.pk).update(paused=True, pause_reason=reason)


def _forget_tails() -> None:
    """The newest output of runs as Redis has it: of a later time than the database. Only of this installation."""
    pattern = f"dockyard.{settings.INSTALLATION}.log.*"
    try:
        client = live.connection()
        for key in client.scan_iter(match=pattern, count=1000):
            client.delete(key)
    except redis.RedisError:
        return  # it is rebuilt from the spools in any case
