"""Moments as PostgreSQL writes them, by the interpreter's own parser.

Django turns the driver's fast reader off, and what is left takes ten times as long: most of the time of a page that
shows thousands of moments.
"""

from datetime import UTC, datetime
from typing import Any

from django.db.backends.postgresql.psycopg_any import BaseTzLoader


class UtcLoader(BaseTzLoader):  # type: ignore[misc]  # it has no annotations
    """Of a connection whose time zone is UTC, which is told as +00."""

    timezone = UTC  # by it Django sees that the connection has what it wants

    def load(self, data: Any) -> datetime:
        try:
            return datetime.fromisoformat(str(data, "ascii"))
        except ValueError:  # infinity, and years of more or fewer than four digits: refused as the driver does
            return super().load(data)  # type: ignore[no-any-return]


def register(connection: Any) -> None:
    """For a connection to PostgreSQL that has just been made."""
    if connection.timezone == UTC:
        connection.connection.adapters.register_loader("timestamptz", UtcLoader)
