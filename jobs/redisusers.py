"""The door to Redis's users: one a host, with no more rights than `hostrights` gives. Every call may raise RedisError.

Redis keeps users in memory alone unless it has an ACL file, so the scheduler makes those anew that it has lost.
"""

from typing import Any, cast

import redis

from jobs import hostrights
from portal import live

Lost = redis.RedisError
Refused = redis.ResponseError  # Redis answered, and lets us manage no users


def create(installation: str, node: str, digest: str) -> None:
    """A user for this host, or its rights and password anew. `digest`: SHA-256 of its password."""
    user = hostrights.redis_user(installation, node)
    rules = [*hostrights.redis_rules(installation, node), f"#{digest}"]
    with live.briefly() as client:
        client.execute_command("ACL SETUSER", user, *rules)  # type: ignore[no-untyped-call]


def drop(user: str) -> None:
    """Take the user away, and its connections with it; one that is gone is no error."""
    with live.briefly() as client:
        client.acl_deluser(user)


def of_installation(installation: str) -> set[str]:
    """The names of all hosts' users of this installation that Redis knows of."""
    with live.briefly() as client:
        names = cast(list[Any], client.acl_users())
    known = {name.decode() if isinstance(name, bytes) else str(name) for name in names}
    return {name for name in known if name.startswith(hostrights.redis_user(installation, ""))}
