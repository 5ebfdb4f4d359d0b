"""The door to PostgreSQL's roles: one a host, with no more rights than `hostrights` gives. SQLite has none.

The portal's own role makes them, so it must be the owner of the tables and may create roles (CREATEROLE).
"""

import contextlib
import hashlib
import re
import time
from collections.abc import Iterator

from django.apps import apps
from django.db import OperationalError, connection, transaction
from psycopg import sql

from jobs import hostrights
from jobs.hostrights import DELETES, EVERYTHING, INSERTS, READS, ROWS, TAKES, UPDATES

_POLICY = "host_"
_LINE = 0x646B7968  # the number of the advisory lock
TRIES = 10


def has_roles() -> bool:
    return connection.vendor == "postgresql"


def create(node: str, password: str) -> str:
    """A role for this host, or a new password for the one that it has. Returns the role's name. After `give_rights`.

    Raises DatabaseError when the portal's own role may make none.
    """
    role = hostrights.database_role(_database(), node)
    with transaction.atomic():
        verb = "ALTER" if _exists(role) else "CREATE"
        # As the server would store it: the password itself must not stand in its log of statements.
        sealed = connection.connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
        _do(f"{verb} ROLE {{}} LOGIN INHERIT PASSWORD {{}}", sql.Identifier(role), sql.Literal(sealed.decode()))
        _do("GRANT {} TO {}", sql.Identifier(hostrights.group_role(_database())), sql.Identifier(role))
    return role


def drop(role: str) -> None:
    """Take the role away, and end its connections; one that is gone is no error."""
    with transaction.atomic():
        if not _exists(role):
            return
        _do("ALTER ROLE {} NOLOGIN", sql.Identifier(role))
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role])
        _do("DROP ROLE {}", sql.Identifier(role))


def refresh() -> None:
    """Give hosts their rights on tables as they are now, where any host has ever joined. After each migration."""
    if has_roles() and _exists(hostrights.group_role(_database())):
        give_rights()


def give_rights() -> None:
    """Let members of the group role do what hosts may; nothing to do where neither tables nor rules have changed.

    Table by table, each in a transaction of its own that is tried again: policies need a table to themselves for a
    moment, and others hold tables in whatever order. So never call it inside a transaction. Raises DatabaseError.
    """
    with _in_line():
        _give_rights(hostrights.group_role(_database()))


@contextlib.contextmanager
def _in_line() -> Iterator[None]:
    """One at a time: the server fails who changes the rights on a table that another changes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [_LINE])
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_LINE])


def _give_rights(group: str) -> None:
    if not _exists(group):
        _do("CREATE ROLE {} NOLOGIN", sql.Identifier(group))
    plan = {table: _of_table(group, table) for table in connection.introspection.table_names()}
    digest = hashlib.sha256(repr(sorted(plan.items())).encode()).hexdigest()
    if _comment(group) == digest:
        return
    _do(f"GRANT CONNECT ON DATABASE {_quoted(_database())} TO {_quoted(group)}")
    _do(f"GRANT USAGE ON SCHEMA public TO {_quoted(group)}")
    for lines in plan.values():
        _patiently(lines)
    _do("COMMENT ON ROLE {} IS {}", sql.Identifier(group), sql.Literal(digest))


def _patiently(lines: list[str]) -> None:
    """All in one transaction, again where it met others who held what it needs."""
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                for line in lines:
                    cursor.execute(line)
            return
        except OperationalError:  # a deadlock
            if not left:
                raise
            time.sleep(0.1)


def _of_table(group: str, table: str) -> list[str]:
    name = _quoted(table)
    return [f"REVOKE ALL ON {name} FROM {_quoted(group)}", *_grants(group, name), *_policies(group, name)]


def _grants(group: str, table: str) -> Iterator[str]:
    for verb, rules in (("SELECT", READS), ("UPDATE", UPDATES)):
        for model, columns in rules.items():
            if _table(model) == table:
                yield f"GRANT {verb}{_columns(columns)} ON {table} TO {_quoted(group)}"
    for verb, models in (("INSERT", INSERTS), ("DELETE", DELETES)):
        if table in map(_table, models):
            yield f"GRANT {verb} ON {table} TO {_quoted(group)}"


def _policies(group: str, table: str) -> Iterator[str]:
    """Row by row, for members of the group alone: the owner of a table is subject to no policy of it."""
    for model, rules in ROWS.items():
        if _table(model) != table:
            continue
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        for command, rows in rules.items():
            policy = f"{_POLICY}{command.lower()}"
            yield f"DROP POLICY IF EXISTS {policy} ON {table}"
            which = _which(model, command, re.sub(r"\{([\w.]+)\}", lambda found: _table(found[1]), rows))
            yield f"CREATE POLICY {policy} ON {table} FOR {command} TO {_quoted(group)} {which}"


def _which(model: str, command: str, rows: str) -> str:
    if command == "INSERT":
        return f"WITH CHECK ({rows})"
    before = "true" if command == "UPDATE" and model in TAKES else rows
    return f"USING ({before})" + (f" WITH CHECK ({rows})" if command == "UPDATE" else "")


def _table(model: str) -> str:
    """The quoted table of `app.Model`, of `app.Model.field` for one of its many-to-many fields, or of this name."""
    if "." not in model:
        return _quoted(model)
    app, name, *field = model.split(".")
    found = apps.get_model(app, name)
    if field:
        return _quoted(getattr(found, field[0]).through._meta.db_table)
    return _quoted(found._meta.db_table)


def _columns(names: tuple[str, ...]) -> str:
    return "" if names == EVERYTHING else f" ({', '.join(map(_quoted, names))})"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _database() -> str:
    return str(connection.settings_dict["NAME"])


def forget_rights() -> None:
    """Hosts' roles have lost theirs with the tables: `give_rights` must not think that nothing has changed."""
    if has_roles() and _exists(group := hostrights.group_role(_database())):
        _do("COMMENT ON ROLE {} IS NULL", sql.Identifier(group))


def _exists(role: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
        return cursor.fetchone() is not None


def _comment(role: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = %s", [role])
        return str(cursor.fetchone()[0])


def _do(line: str, *parts: sql.Composable) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL(line).format(*parts).as_string())
