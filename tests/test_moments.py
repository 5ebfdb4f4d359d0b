"""Moments from the database: the same to the microsecond, aware, in UTC."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import DataError, connection

from gpus.models import Node
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("at", [
    datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 0, 59, 59, 500_000, tzinfo=UTC),
    datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
])  # fmt: skip
def test_a_moment_is_read_as_it_was_written(at: datetime) -> None:
    factories.make_node("alpha")
    Node.objects.update(last_seen=at)
    read = Node.objects.get().last_seen
    assert read == at
    assert read is not None
    assert read.tzinfo is UTC


def test_postgresql_s_moments_are_read_by_the_interpreter_s_parser_on_every_connection() -> None:
    """Django's own loader reads the same, at ten times the cost: no test of values would miss ours."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's are read by Django")
    from psycopg import adapters
    from psycopg.pq import Format

    from portal.moments import UtcLoader

    def registered(of: Any) -> Any:
        return of.adapters.get_loader(adapters.types["timestamptz"].oid, Format.TEXT)

    with connection.cursor() as cursor:  # on which Django registers its own where it sees none for its zone
        assert (registered(connection.connection), registered(cursor.cursor)) == (UtcLoader, UtcLoader)


def test_a_moment_that_python_cannot_hold_is_refused() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has one")
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'infinity'::timestamptz")
        with pytest.raises(DataError):
            cursor.fetchone()
