"""The whole database into one file and back, by its own means: SQLite's online back-up, pg_dump and pg_restore.

Both give one moment of a database that goes on being written to.
"""

import gzip
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

Rows = Iterator[tuple[Any, ...]]
Query = Callable[[str], Rows]
_NOT_RESTORED = (" ACL ", " POLICY ", " ROW SECURITY ", " COMMENT ")  # rights are given anew


class Failed(Exception):
    """The database's own program failed; str() has its words."""


def where() -> str:
    """The database, as an admin knows it: a file, or host and name."""
    of = connection.settings_dict
    return str(of["NAME"]) if connection.vendor == "sqlite" else f"{of['HOST'] or 'localhost'}/{of['NAME']}"


@contextmanager
def dumped(folder: Path) -> Iterator[tuple[Path, Query]]:
    """A file with the database at one moment, and a function that reads rows of that very moment. Raises Failed."""
    if connection.vendor == "sqlite":
        with _dumped_sqlite(folder) as found:
            yield found
    else:
        with _dumped_postgres(folder) as found:
            yield found


@contextmanager
def _dumped_sqlite(folder: Path) -> Iterator[tuple[Path, Query]]:
    copy = folder / "database.sqlite3"
    connection.ensure_connection()
    with closing(sqlite3.connect(copy)) as target:
        connection.connection.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file
        packed = folder / "database.sqlite3.gz"
        with copy.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        yield packed, lambda sql: iter(target.execute(sql))


@contextmanager
def _dumped_postgres(folder: Path) -> Iterator[tuple[Path, Query]]:
    dump = folder / "database.pgdump"
    with transaction.atomic(), connection.cursor() as cursor:
        if not connection.savepoint_ids:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        snapshot = cursor.fetchone()[0]
        _run("pg_dump", "--format=custom", f"--snapshot={snapshot}", f"--file={dump}")
        yield dump, lambda sql: _rows(cursor, sql)


def _rows(cursor: Any, sql: str) -> Rows:
    cursor.execute(sql)
    yield from cursor


def restore(name: str, file: IO[bytes]) -> None:
    """Replace the database by what was dumped under this name. Raises Failed; then a database may be left empty."""
    with tempfile.TemporaryDirectory(prefix="dockyard-restore-", dir=_beside()) as folder:
        path = Path(folder) / name
        with path.open("wb") as sink:
            shutil.copyfileobj(file, sink, 1 << 20)
        if connection.vendor == "sqlite":
            _restore_sqlite(path)
        else:
            _restore_postgres(path)


def kind() -> str:
    """What the dump of this database is called."""
    return "database.sqlite3.gz" if connection.vendor == "sqlite" else "database.pgdump"


def _beside() -> str | None:
    """Where a file must lie to be renamed into place."""
    return str(Path(_sqlite_path()).parent) if connection.vendor == "sqlite" else None


def _sqlite_path() -> str:
    return str(connection.settings_dict["NAME"])


def _restore_sqlite(packed: Path) -> None:
    fresh = packed.with_suffix("")
    try:
        with gzip.open(packed, "rb") as source, fresh.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        with closing(sqlite3.connect(fresh)) as found:
            verdict = found.execute("PRAGMA quick_check").fetchone()[0]
    except (OSError, EOFError, sqlite3.DatabaseError) as error:
        raise Failed(str(error)) from error
    if verdict != "ok":
        raise Failed(str(verdict))
    with closing(sqlite3.connect(fresh)) as found:  # into the file that is there: its rights and open handles stay
        connection.ensure_connection()
        found.backup(connection.connection)
    connection.close()


def _restore_postgres(dump: Path) -> None:
    contents = _run("pg_restore", "--list", str(dump), connect=False).splitlines()
    listed = dump.with_suffix(".list")
    listed.write_text("\n".join(line for line in contents if not any(kind in line for kind in _NOT_RESTORED)) + "\n")
    _drop_all_tables()
    connection.close()
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run("pg_restore", *options, f"--use-list={listed}", str(dump))


def _drop_all_tables() -> None:
    tables = ", ".join(connection.ops.quote_name(name) for name in connection.introspection.table_names())
    if tables:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {tables} CASCADE")


def _run(program: str, *arguments: str, connect: bool = True) -> str:
    """Run one of PostgreSQL's own programs on our database. Its password goes by the environment: `ps` shows none."""
    where = [f"--dbname={_address()}"] if connect else []
    password = str(connection.settings_dict.get("PASSWORD") or "")
    env = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    command = [_program(program), *where, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{program}: {' '.join(done.stderr.split())[:500]}")
    return done.stdout


def _address() -> str:
    known = connection.get_connection_params()
    names = ("host", "port", "user", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey", "service",
             "target_session_attrs")  # fmt: skip
    return make_conninfo(**{name: known[name] for name in names if known.get(name)})


def _program(name: str) -> str:
    """The newest there is: Debian keeps those of each version in a folder of its own, and an older one refuses."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which(name)
    if program is None:
        raise Failed(f"{name} is not installed: apt-get install postgresql-client")
    return program
