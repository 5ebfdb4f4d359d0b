"""System checks of deployments that make no sense. Each has an id, and a hint that says what to do.

Those that need the database or Redis run only with `check --database default` and `check --deploy`.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connections
from django.utils import timezone

from portal import live

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]", ".localhost"})
SHORTEST_KEY = 32


def is_public() -> bool:
    """Whether this installation answers to a name or address that other machines may use."""
    return any(host not in LOOPBACK and not host.startswith("127.") for host in settings.ALLOWED_HOSTS)


def uses_sqlite() -> bool:
    return bool(settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"))


@register()
def check_nodes_in_settings(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.W001`: NODE_NAMES names several nodes, and the database is a file of one host."""
    if not uses_sqlite() or len(settings.NODE_NAMES) < 2:
        return []
    return [checks.Warning(
        f"NODE_NAMES has {len(settings.NODE_NAMES)} nodes, and the database is SQLite.",
        hint="SQLite is for a single host. Set DATABASE_URL to PostgreSQL before a second host joins.",
        id="dockyard.W001",
    )]  # fmt: skip


@register(deploy=True)
def check_nodes_deployed(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E001`: what W001 warns of is no deployment."""
    if not uses_sqlite() or len(settings.NODE_NAMES) < 2:
        return []
    return [_several_hosts(settings.NODE_NAMES)]


def _several_hosts(names: Sequence[str]) -> Error:
    return Error(
        f"{len(names)} nodes ({', '.join(names)}) are to share one SQLite database.",
        hint="A database file on a network disk is damaged sooner or later. Set DATABASE_URL to PostgreSQL.",
        id="dockyard.E001",
    )


@register(Tags.database)
def check_nodes_in_database(app_configs: Any, databases: Any = None, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E001`: nodes of several hosts are alive, and the database is a file of one host."""
    if not databases or "default" not in databases or not uses_sqlite():
        return []
    alive_since = timezone.now() - timedelta(seconds=settings.NODE_SILENT_AFTER)
    try:
        nodes = apps.get_model("gpus", "Node").objects.filter(last_seen__gte=alive_since)
        hosts = sorted(set(nodes.exclude(hostname="").values_list("hostname", flat=True)))
    except DatabaseError:  # before the first migration
        return []
    return [_several_hosts(hosts)] if len(hosts) > 1 else []


@register(deploy=True)
def check_redis_keeps(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E002`: Redis throws keys away when it is full. `dockyard.W002`: it does not answer."""
    try:
        found = live.connection().config_get("maxmemory*")
    except redis.ResponseError:  # CONFIG is not for everybody on a managed Redis
        return []
    except redis.RedisError as error:
        hint = "Start it, or correct REDIS_URL."
        return [checks.Warning(f"Redis does not answer: {error}", hint=hint, id="dockyard.W002")]
    policy = found.get("maxmemory-policy", "noeviction")
    if policy == "noeviction":
        return []
    return [Error(
        f"Redis evicts keys when it is full (maxmemory-policy {policy}): queued starts would vanish.",
        hint='Set "maxmemory-policy noeviction" in redis.conf.',
        id="dockyard.E002",
    )]  # fmt: skip


@register(Tags.database)
def check_guarantees(app_configs: Any, databases: Any = None, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.W009`: teams are guaranteed more GPUs than there are, and some of them will wait for theirs."""
    if not databases or "default" not in databases:
        return []
    try:
        quotas = apps.get_model("jobs", "Quota").objects.filter(team__isnull=False)
        rows = quotas.filter(guaranteed_gpus__gt=0).values_list("team__name", "guaranteed_gpus")
        promised: dict[str, int] = {name: count or 0 for name, count in rows}
        there = apps.get_model("gpus", "GPU").objects.filter(hidden=False, profile="").count()
    except DatabaseError:  # before the first migration
        return []
    if sum(promised.values()) <= there:
        return []
    teams = ", ".join(f"{name} {count}" for name, count in sorted(promised.items()))
    return [checks.Warning(
        f"{sum(promised.values())} GPUs are guaranteed ({teams}), and there are {there}.",
        hint="Lower the guaranteed GPUs of some teams in their quotas, or add hosts.",
        id="dockyard.W009",
    )]  # fmt: skip


@register()
def check_redis_password(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E003`: Redis is reached over a network without a password."""
    url = urlsplit(settings.REDIS_URL)
    if url.scheme == "unix" or (url.hostname or "localhost") in LOOPBACK or unquote(url.password or ""):
        return []
    return [Error(
        f"REDIS_URL leads to {url.hostname} without a password: whoever reaches it could start tasks.",
        hint="Set requirepass (or an ACL user) in redis.conf, and REDIS_URL=redis://:PASSWORD@host:6379/0.",
        id="dockyard.E003",
    )]  # fmt: skip


@register()
def check_debug(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E004`: DEBUG shows settings and code to everybody who finds an error."""
    if not settings.DEBUG or not is_public():
        return []
    return [Error(
        f"DEBUG is on, and ALLOWED_HOSTS is public ({', '.join(settings.ALLOWED_HOSTS)}).",
        hint="Remove DEBUG from the environment, or keep ALLOWED_HOSTS to localhost.",
        id="dockyard.E004",
    )]  # fmt: skip


@register()
def check_keys(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E005`: a key that can be guessed signs sessions or encrypts secrets."""
    if not is_public():
        return []
    weak = [name for name in ("SECRET_KEY", "SECRETS_KEY") if _is_weak(getattr(settings, name))]
    return [
        Error(
            f"{name} is too easy to guess for a public host.",
            hint=f"Remove {name} to have one made and kept in DATA_DIR, or set {SHORTEST_KEY} random characters.",
            id="dockyard.E005",
        )
        for name in weak
    ]


@register()
def check_metrics_token(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E010`: the token that opens /metrics can be guessed."""
    if not settings.METRICS_TOKEN or not is_public() or not _is_weak(settings.METRICS_TOKEN):
        return []
    return [Error(
        "METRICS_TOKEN is too easy to guess for a public host.",
        hint=f"Set {SHORTEST_KEY} random characters or more.",
        id="dockyard.E010",
    )]  # fmt: skip


def _is_weak(key: str) -> bool:
    return len(key) < SHORTEST_KEY or len(set(key)) < 8 or key.startswith("django-insecure-")


@register()
def check_simulated(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.W006`: other people may take simulated GPUs for real ones."""
    if settings.GPU_DRIVER != "simulated" or not is_public():
        return []
    return [checks.Warning(
        "GPU_DRIVER=simulated on a public host: its readings are made up, and jobs get no GPU.",
        hint="Remove GPU_DRIVER where there are real GPUs.",
        id="dockyard.W006",
    )]  # fmt: skip


@register()
def check_mount_roots(app_configs: Any, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E007`: a mount could be any directory of a host."""
    bad = [root for root in settings.MOUNT_ROOTS if root.rstrip("/") == "" or not root.startswith("/")]
    if not bad:
        return []
    return [Error(
        f"MOUNT_ROOTS has {', '.join(repr(root) for root in bad)}: mounts must be kept to some directories.",
        hint="Name absolute directories that hold shared data, such as /data.",
        id="dockyard.E007",
    )]  # fmt: skip


@register(Tags.database)
def check_database_answers(app_configs: Any, databases: Any = None, **_: Any) -> Sequence[CheckMessage]:
    """`dockyard.E008`: the database can't be reached."""
    if not databases or "default" not in databases:
        return []
    try:
        connections["default"].ensure_connection()
    except DatabaseError as error:
        hint = "Start it, or correct DATABASE_URL."
        return [Error(f"The database does not answer: {error}", hint=hint, id="dockyard.E008")]
    return []
