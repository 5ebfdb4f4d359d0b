"""DATABASE_URL as Django has it, also of several servers of which one is in charge, and of lines that may fall silent.

Pure: the standard library, dj-database-url and other pure modules.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import dj_database_url

from portal.silence import Keepalive

_KEEPALIVES = ("keepalives_idle", "keepalives_interval", "keepalives_count")


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


def told_to_server(database: Mapping[str, Any]) -> str:
    """SQL for a new connection to PostgreSQL, so that the server too gives up a line that has fallen silent.

    It would keep the locks of a host that is gone for hours. It is told what libpq is (see `parse`), except what the
    URL tells it by `options`. Empty for a socket of the same machine.
    """
    if all(not host or host.startswith("/") for host, _port in servers(database)):
        return ""
    ours: Mapping[str, Any] = database.get("OPTIONS") or {}
    themselves = str(ours.get("options", "")).replace("-", "_")  # `-c tcp_user_timeout=9`, `--tcp-user-timeout=9`
    told = {"tcp_user_timeout": ours.get("tcp_user_timeout")}
    if int(ours.get("keepalives", 1)):
        told |= {f"tcp_{name}": ours.get(name) for name in _KEEPALIVES}
    return "; ".join(
        f"SET {name} = {max(int(value), 0)}"  # below 0 is the system's own to libpq, and to the server no number
        for name, value in told.items() if value is not None and name not in themselves
    )  # fmt: skip


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
    kept = Keepalive.of(seconds)
    return {
        "connect_timeout": max(round(seconds / 2), 2), "tcp_user_timeout": kept.timeout_ms, "keepalives": 1,
        "keepalives_idle": kept.idle, "keepalives_interval": kept.interval, "keepalives_count": kept.probes,
    }  # fmt: skip
