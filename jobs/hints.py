"""Images to suggest at the form: one's own of late, one's teams', and those that lie on the hosts for everybody."""

import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

import redis
from django.conf import settings

from jobs.images import Allowed, full_image_name
from jobs.models import Cluster, Job
from portal import live
from portal.models import User

MOST = 30  # suggestions
LOOKED_AT = 200  # of the last jobs, of oneself and of one's teams
KEPT = 200  # names of the hosts' images
DAY = 86400


def images(user: User) -> list[str]:
    """Allowed names to choose from, the likeliest first, at a cost that does not grow with history."""
    jobs = Job.objects.order_by("-pk").values_list("image", flat=True)
    own = jobs.filter(owner=user)[:LOOKED_AT]
    theirs = jobs.filter(team__in=user.teams.all()).exclude(owner=user)[:LOOKED_AT]
    allowed = Allowed(Cluster.get().image_patterns)
    known = dict.fromkeys([*own, *theirs, *_on_hosts()])
    return list(islice(filter(allowed, known), MOST))


def remember(names: Iterable[str]) -> None:
    """Note for a day what images lie on a host, but for those that jobs have brought: their names are their owners'."""
    of_jobs = {full_image_name(image) for image in Job.objects.order_by().values_list("image", flat=True).distinct()}
    now = time.time()
    shared = {name: now for name in names if full_image_name(name) not in of_jobs}
    with suppress(redis.RedisError), live.briefly() as connection:
        pipe = connection.pipeline()
        if shared:
            pipe.zadd(_key(), shared)
        pipe.zremrangebyscore(_key(), 0, now - DAY)
        pipe.zremrangebyrank(_key(), 0, -KEPT - 1)
        pipe.expire(_key(), DAY)
        pipe.execute()


def _on_hosts() -> list[str]:
    try:
        with live.briefly() as connection:
            found: Any = connection.zrevrange(_key(), 0, MOST - 1)
    except redis.RedisError:
        return []
    return [name.decode() if isinstance(name, bytes) else name for name in found]


def _key() -> str:
    return f"dockyard.{settings.INSTALLATION}.images"
