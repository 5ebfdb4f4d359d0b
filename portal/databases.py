"""DATABASE_URL as Django has it, also of several servers of which one is in charge, and of lines that may fall silent.

Pure: the standard library and dj-database-url.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import dj_database_url

_PROBES = 3  # unanswered ones in a row end a connection that is otherwise idle


def parse(url: str, *, patience: float) -> dict[str, Any]:
    """The entry of DATABASES for a URL. Raises ValueError.

    `postgres://user:password@a:5432,b:5432/name` names several servers: the first that can be written to is taken at
    each connection (libpq's `target_session_attrs`). A server of which nothing comes for `patience` seconds is given
    up, though nobody refuses: by TCP's own means, so that a query may take as long as it wants. What the URL's query
    says of any of that holds.
    """
    parts = urlsplit(url)
    user, at, where = parts.netloc.rpartition("@")
    servers = [_server(text) for text in where.split(",")] if "," in where else []
    first = f"{user}{at}{where.split(',')[0]}"
    found: dict[str, Any] = dict(dj_database_url.parse(urlunsplit(parts._replace(netloc=first)) if servers else url))
    if servers:
        found |= {"HOST": ",".join(host for host, _port in servers), "PORT": ",".join(port for _host, port in servers)}
    if found["ENGINE"].endswith("postgresql"):
        several = {"target_session_attrs": "read-write"} if servers else {}
        found["OPTIONS"] = {**several, **_patient(patience), **found.get("OPTIONS", {})}
    return found


def told_to_server(database: Mapping[str, Any], *, patience: float) -> str:
    """SQL for a new connection to PostgreSQL, so that the server too gives up a line that has fallen silent.

    It would keep the locks of a host that is gone for hours. Empty for a socket of the same machine.
    """
    if all(not host or host.startswith("/") for host, _port in servers(database)):
        return ""
    ours = _patient(patience)
    names = {
        "tcp_keepalives_idle": "keepalives_idle", "tcp_keepalives_interval": "keepalives_interval",
        "tcp_keepalives_count": "keepalives_count", "tcp_user_timeout": "tcp_user_timeout",
    }  # fmt: skip
    return "; ".join(f"SET {name} = {ours[own]}" for name, own in names.items())


def servers(database: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Host and port of each server of an entry of DATABASES; a folder is a socket's. Empty for SQLite."""
    hosts, ports = str(database.get("HOST") or ""), str(database.get("PORT") or "5432").split(",")
    if not hosts:
        return []
    names = hosts.split(",")
    return [(host, int(port or 5432)) for host, port in zip(names, ports * (len(names) // len(ports)), strict=True)]


def hosts_in(url: str) -> list[str]:
    """The names of the servers in a URL; `localhost` for a socket of this machine."""
    where = urlsplit(url).netloc.rpartition("@")[2]
    names = [_server(text)[0] for text in where.split(",")]
    return [name if name and not name.startswith("/") else "localhost" for name in names]


def _server(text: str) -> tuple[str, str]:
    """Host and port of `host`, `host:port`, `[address]` or `[address]:port`."""
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or ""), str(parts.port or 5432)


def _patient(seconds: float) -> dict[str, int]:
    """What libpq is told. A socket of this machine heeds none of it."""
    return {
        "connect_timeout": max(round(seconds / 2), 2), "tcp_user_timeout": round(seconds * 1000), "keepalives": 1,
        "keepalives_idle": max(round(seconds / 2), 1), "keepalives_interval": max(round(seconds / 2 / _PROBES), 1),
        "keepalives_count": _PROBES,
    }  # fmt: skip
