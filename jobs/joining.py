"""How a host joins and leaves: a token for its own Redis user and PostgreSQL role, and nobody else's passwords."""

import logging
import os
import re
import secrets
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from gpus.models import HostAccess, JoinToken, Node
from jobs import dbroles, hostevents, hostrights, redisusers, secretbox
from jobs.models import Run
from jobs.plain import first_line
from jobs.states import LIVE_RUNS
from portal import databases
from portal.checks import LOOPBACK
from portal.models import ApiToken

log = logging.getLogger(__name__)

PREFIX = "dkj_"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_TAKEN = ("join", "token")  # addresses of pages are beside those of hosts
_given: dict[str, str] = {}  # digests of passwords by Redis user, as this process has set them
# Rules of the whole installation that a node keeps too, where the portal's own environment has them.
_SHARED = (
    "STORAGES", "TIME_ZONE", "MAX_REQUEUES", "PIDS_LIMIT", "WORKSPACE_BYTES",
    "WORKSPACE_FILES", "SCRATCH_BYTES", "SCRATCH_FILES", "DISK_PERIOD", "JOB_NETWORK", "JOBS_REACH_PORTAL",
    "LOG_LIMIT_BYTES", "LOG_PACK_AFTER", "LOG_SEGMENT_BYTES", "LOG_SEGMENT_PERIOD", "NODE_HEARTBEAT",
    "NODE_SILENT_AFTER", "NETWORK_PATIENCE", "SAMPLE_FRESH", "START_TIMEOUT", "PULL_TIMEOUT", "GPU_SYSTEM_PROCESSES",
    "GPU_MEMORY_FLOOR_MIB",
)  # fmt: skip


class Refused(Exception):
    """A host may not join or leave. `code` is a key of `wording.hosts.REFUSALS`."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(code)
        self.code = code
        self.params = params


def make_token(by: Any = None, *, name: str = "") -> tuple[JoinToken, str]:
    """A token for one host, and its secret, which is not stored. With a name it is for the host of that name alone.

    Raises Refused: NAME, or what would refuse every host.
    """
    if name and not _is_name(name):
        raise Refused("NAME", name=name)
    _check_installation()
    secret, now = PREFIX + secrets.token_urlsafe(32), timezone.now()
    token = JoinToken.objects.create(
        digest=ApiToken.digest_of(secret), hint=secret[:8], name=name, made_by=by, created_at=now,
        expires_at=now + timedelta(seconds=settings.JOIN_TOKEN_LIFE),
    )  # fmt: skip
    return token, secret


def join(secret: str, *, name: str, address: str | None) -> dict[str, str]:
    """Let a host in: the settings that it needs, with passwords that exist nowhere else. Raises Refused.

    The token is used up. A host that has joined before gets new passwords, by a token of its name alone.
    """
    if not _usable(secret).exists():
        raise Refused("TOKEN")  # before anything that costs, or that tells a stranger how we are set up
    _check_installation()
    _check_reachable(address)
    _check_users()
    _give_rights()
    passwords = {kind: secrets.token_urlsafe(32) for kind in ("redis", "database")}
    with transaction.atomic():
        node, token = _admit(secret, name)
        role = _role(node.name, passwords["database"])
        digest = ApiToken.digest_of(passwords["redis"])
        user = hostrights.redis_user(settings.INSTALLATION, node.name)
        HostAccess.objects.update_or_create(node=node, defaults={
            "redis_user": user, "redis_digest": digest, "database_role": role, "joined_at": timezone.now(),
            "joined_from": address,
        })  # fmt: skip
        hostevents.note(node, "JOINED", actor=token.made_by, address=address or "")
    try:
        redisusers.create(settings.INSTALLATION, node.name, digest)
    except redisusers.Lost as error:
        log.warning("the Redis user of %s is made once Redis is back: %s", node.name, error)
    return _settings(node.name, user, role, passwords)


def leave(node: Node, actor: Any) -> None:
    """Take a host's access away at once; its past stays. Raises Refused(RUNS) while anything runs there."""
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        count = Run.objects.filter(node=node, state__in=LIVE_RUNS).count()
        if count:
            raise Refused("RUNS", node=node.name, count=count)
        access = HostAccess.objects.filter(node=node).first()
        node.left_at = timezone.now()
        node.declared_dead_at = None
        node.save(update_fields=["left_at", "declared_dead_at"])
        hostevents.note(node, "LEFT", actor=actor)
        if access is not None:
            if access.database_role:
                dbroles.drop(access.database_role)
            access.delete()
    if access is not None:
        try:
            redisusers.drop(access.redis_user)
        except redisusers.Lost as error:
            log.warning("the Redis user of %s is dropped once Redis is back: %s", node.name, error)


def restore_users() -> None:
    """Make the Redis users anew that a restart of Redis has lost, and drop those of hosts that have left.

    The others get their rights and password of now: an upgrade may have changed the rules, or Redis was away as a
    host joined again.
    """
    if not HostAccess.objects.exists() and not Node.objects.filter(left_at__isnull=False).exists():
        return
    try:
        there = redisusers.of_installation(settings.INSTALLATION)
        known = {access.redis_user: access for access in HostAccess.objects.select_related("node")}
        for user, access in known.items():
            if user not in there or _given.get(user) != access.redis_digest:
                redisusers.create(settings.INSTALLATION, access.node.name, access.redis_digest)
                _given[user] = access.redis_digest
        for user in there - known.keys():
            redisusers.drop(user)
    except redisusers.Lost as error:
        log.info("the Redis users of hosts can't be looked at: %s", error)


def _admit(secret: str, name: str) -> tuple[Node, JoinToken]:
    """The row of a host that may join with this token."""
    if not _usable(secret).update(used_at=timezone.now()):
        raise Refused("TOKEN")
    token = JoinToken.objects.select_related("made_by").get(digest=ApiToken.digest_of(secret))
    name = token.name or name
    if not _is_name(name):
        raise Refused("NAME", name=name)
    node, is_new = Node.objects.select_for_update(no_key=True).get_or_create(name=name)
    if not is_new and token.name != name and node.left_at is None:
        raise Refused("NAME_TAKEN", name=name)
    if node.left_at is not None:
        node.left_at = node.last_seen = None  # what it was heard of before it left says nothing of now
        node.save(update_fields=["left_at", "last_seen"])
    return node, token


def _usable(secret: str) -> QuerySet[JoinToken]:
    """The token, unless it was used or is too old."""
    digest = ApiToken.digest_of(secret)
    return JoinToken.objects.filter(digest=digest, used_at=None, expires_at__gt=timezone.now())


def _is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None and name not in _TAKEN


def _give_rights() -> None:
    try:
        dbroles.give_rights()
    except DatabaseError as error:
        raise Refused("ROLE", why=first_line(error)) from error


def _role(name: str, password: str) -> str:
    try:
        return dbroles.create(name, password)
    except DatabaseError as error:
        raise Refused("ROLE", why=first_line(error)) from error


def _check_installation() -> None:
    if not dbroles.has_roles():
        raise Refused("SQLITE")
    if not settings.LOGS_ARE_SHARED:
        raise Refused("STORAGE")


def _check_users() -> None:
    """Redis lets us manage users, or does not answer just now."""
    try:
        redisusers.of_installation(settings.INSTALLATION)
    except redisusers.Refused as error:
        raise Refused("REDIS", why=str(error)[:200]) from error
    except redisusers.Lost as error:
        log.warning("Redis does not answer: %s", error)


def _check_reachable(address: str | None) -> None:
    """A host elsewhere does not reach what our own address names as this machine."""
    if address in (None, *LOOPBACK):
        return
    for setting in ("NODE_REDIS_URL", "NODE_DATABASE_URL"):
        if LOOPBACK & {*databases.hosts_in(getattr(settings, setting))}:
            raise Refused("ADDRESS", setting=setting)


def _settings(name: str, user: str, role: str, passwords: dict[str, str]) -> dict[str, str]:
    shared = {key: os.environ[key] for key in _SHARED if os.environ.get(key)}
    return shared | {
        "INSTALLATION": settings.INSTALLATION, "NODE_NAME": name, "PUBLIC_URL": settings.PUBLIC_URL,
        "REDIS_URL": _with_user(settings.NODE_REDIS_URL, user, passwords["redis"]),
        "DATABASE_URL": _with_user(settings.NODE_DATABASE_URL, role, passwords["database"]),
        "SECRETS_KEY": secretbox.opener(),
    }  # fmt: skip


def _with_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{where}"))
