"""The door to PostgreSQL's roles: one a host, with no more rights than `hostrights` gives. SQLite has none.

The portal's own role makes them, so it must be the owner of the tables and may create roles (CREATEROLE).
"""

import hashlib
import re

from django.apps import apps
from django.db import connection, transaction
from psycopg import sql

from jobs import hostrights
from jobs.hostrights import DELETES, EVERYTHING, INSERTS, READS, ROWS, TAKES, UPDATES

_POLICY = "host_"


def has_roles() -> bool:
    return connection.vendor == "postgresql"


def create(node: str, password: str) -> str:
    """A role for this host, or a new password for the one that it has. Returns the role's name.

    Raises DatabaseError when the portal's own role may make none.
    """
    database = str(connection.settings_dict["NAME"])
    role = hostrights.database_role(database, node)
    with transaction.atomic():
        group = _ensure_group(database)
        verb = "ALTER" if _exists(role) else "CREATE"
        # As the server would store it: the password itself must not stand in its log of statements.
        sealed = connection.connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
        _do(f"{verb} ROLE {{}} LOGIN INHERIT PASSWORD {{}}", sql.Identifier(role), sql.Literal(sealed.decode()))
        _do("GRANT {} TO {}", sql.Identifier(group), sql.Identifier(role))
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
    database = str(connection.settings_dict["NAME"])
    if has_roles() and _exists(hostrights.group_role(database)):
        with transaction.atomic():
            _ensure_group(database)


def _ensure_group(database: str) -> str:
    """The role whose rights hosts have; the rights are given anew where tables or rules have changed."""
    group = hostrights.group_role(database)
    lines = [*_grants(group), *_policies(group)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if not _exists(group):
        _do("CREATE ROLE {} NOLOGIN", sql.Identifier(group))
    if _comment(group) != digest:
        _do("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}", sql.Identifier(group))
        with connection.cursor() as cursor:
            for line in lines:
                cursor.execute(line)
        _do("COMMENT ON ROLE {} IS {}", sql.Identifier(group), sql.Literal(digest))
    return group


def _grants(group: str) -> list[str]:
    name = _quoted(group)
    lines = [f"GRANT CONNECT ON DATABASE {_quoted(str(connection.settings_dict['NAME']))} TO {name}"]
    lines += [f"GRANT USAGE ON SCHEMA public TO {name}"]
    lines += [f"GRANT SELECT{_columns(columns)} ON {_table(model)} TO {name}" for model, columns in READS.items()]
    lines += [f"GRANT UPDATE{_columns(columns)} ON {_table(model)} TO {name}" for model, columns in UPDATES.items()]
    lines += [f"GRANT INSERT ON {_table(model)} TO {name}" for model in INSERTS]
    lines += [f"GRANT DELETE ON {_table(model)} TO {name}" for model in DELETES]
    return lines


def _policies(group: str) -> list[str]:
    """Row by row, for members of the group alone: the owner of a table is subject to no policy of it."""
    lines = []
    for model, rules in ROWS.items():
        table = _table(model)
        lines.append(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        for command, rows in rules.items():
            policy = f"{_POLICY}{command.lower()}"
            lines.append(f"DROP POLICY IF EXISTS {policy} ON {table}")
            which = _which(model, command, re.sub(r"\{([\w.]+)\}", lambda found: _table(found[1]), rows))
            lines.append(f"CREATE POLICY {policy} ON {table} FOR {command} TO {_quoted(group)} {which}")
    return lines


def _which(model: str, command: str, rows: str) -> str:
    if command == "INSERT":
        return f"WITH CHECK ({rows})"
    before = "true" if command == "UPDATE" and model in TAKES else rows
    return f"USING ({before})" + (f" WITH CHECK ({rows})" if command == "UPDATE" else "")


def _table(model: str) -> str:
    """The quoted table of `app.Model`, or of `app.Model.field` for one of its many-to-many fields."""
    app, name, *field = model.split(".")
    found = apps.get_model(app, name)
    if field:
        return _quoted(getattr(found, field[0]).through._meta.db_table)
    return _quoted(found._meta.db_table)


def _columns(names: tuple[str, ...]) -> str:
    return "" if names == EVERYTHING else f" ({', '.join(map(_quoted, names))})"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


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
