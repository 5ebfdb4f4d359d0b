"""DATABASE_URL: one server or several, and what libpq is told of silent lines."""

from typing import Any

import pytest
from django.db import connection

from portal import databases


@pytest.mark.parametrize(
    ("url", "host", "port", "several"),
    [
        ("postgres://a:b%2Cc@db:6543/name", "db", "6543", False),
        ("postgres://a@one:5433,two/name", "one,two", "5433,5432", True),
        ("postgres://a@[fe80::1]:5433,[fe80::2]/name", "fe80::1,fe80::2", "5433,5432", True),
        ("postgres://a:b@%2Frun%2Fpostgresql/name", "/run/postgresql", "", False),
    ],
)
def test_a_url_names_one_server_or_several_of_which_one_is_in_charge(
    url: str, host: str, port: str, several: bool
) -> None:
    found = databases.parse(url, patience=20)
    assert (found["HOST"], str(found["PORT"]), found["USER"], found["NAME"]) == (host, port, "a", "name")
    assert ("target_session_attrs" in found["OPTIONS"]) is several
    assert found["OPTIONS"]["tcp_user_timeout"] == 20000


def test_what_the_url_says_holds() -> None:
    found = databases.parse("postgres://a@b,c/n?target_session_attrs=any&connect_timeout=3&sslmode=require", patience=9)
    options = {name: str(found["OPTIONS"][name]) for name in ("target_session_attrs", "connect_timeout", "sslmode")}
    assert options == {"target_session_attrs": "any", "connect_timeout": "3", "sslmode": "require"}
    assert "OPTIONS" not in databases.parse("sqlite:////tmp/x.sqlite3", patience=9)


@pytest.mark.parametrize("url", ["postgres://a@one:port,two/n", "mongodb://a/n", "nonsense"])
def test_nonsense_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        databases.parse(url, patience=9)


@pytest.mark.parametrize(
    ("database", "servers"),
    [
        ({"HOST": "a,b", "PORT": "1,2"}, [("a", 1), ("b", 2)]),
        ({"HOST": "a,b", "PORT": ""}, [("a", 5432), ("b", 5432)]),
        ({"HOST": "a", "PORT": 6543}, [("a", 6543)]),
        ({"NAME": "/x.sqlite3"}, []),
    ],
)
def test_each_server_is_told(database: dict[str, Any], servers: list[tuple[str, int]]) -> None:
    assert databases.servers(database) == servers


@pytest.mark.django_db
def test_the_server_is_told_how_long_a_silent_line_is_good(settings: Any) -> None:
    """It would keep the locks of a host that lost its power for two hours."""
    told = databases.told_to_server(settings.DATABASES["default"])
    if connection.vendor == "postgresql":
        assert "SET tcp_user_timeout = 20000" in told
        with connection.cursor() as cursor:
            cursor.execute("SHOW tcp_user_timeout")
            assert cursor.fetchone() == ("20000",)  # ms
    else:
        assert told == ""


ALL = {"tcp_user_timeout": 20000, "tcp_keepalives_idle": 10, "tcp_keepalives_interval": 3, "tcp_keepalives_count": 3}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgres://a@b/n", ALL),
        ("postgres://a@%2Frun%2Fpostgresql/n", {}),
        ("postgres://a@b/n?tcp_user_timeout=9000&keepalives_idle=60",
         {**ALL, "tcp_user_timeout": 9000, "tcp_keepalives_idle": 60}),
        ("postgres://a@b/n?keepalives=0&tcp_user_timeout=-1", {"tcp_user_timeout": 0}),
        ("postgres://a@b/n?options=-c%20tcp_user_timeout%3D9%20--tcp-keepalives-idle%3D8",
         {"tcp_keepalives_interval": 3, "tcp_keepalives_count": 3}),
    ],
)  # fmt: skip
def test_the_server_is_told_what_the_url_says(url: str, told: dict[str, int]) -> None:
    expected = "; ".join(f"SET {name} = {value}" for name, value in told.items())
    assert databases.told_to_server(databases.parse(url, patience=20)) == expected


def test_a_socket_is_of_this_machine_alone() -> None:
    assert databases.hosts_in("postgres://a@%2Frun%2Fpostgresql/n") == ["localhost"]
    assert databases.hosts_in("postgres://a@one:1,two/n") == ["one", "two"]
    assert databases.hosts_in("redis://:p@r:6379/0") == ["r"]
    assert databases.hosts_in("unix:///run/redis.sock") == ["localhost"]
