"""Images to suggest at the form: one's own of late, one's teams', and those that lie on the hosts for everybody."""

import time
from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest
from itertools import chain, islice
from typing import Any

import redis
from django.conf import settings

from jobs.images import Allowed, full_image_name
from jobs.models import Cluster, Job, Membership
from portal import live
from portal.models import User

MOST = 30  # suggestions
LOOKED_AT = 200  # of the last jobs, of oneself and of one's teams
KEPT = 200  # names of the hosts' images
DAY = 86400


def images(user: User) -> list[str]:
    """Allowed names to choose from, the likeliest first, at a cost that does not grow with history."""
    own = _newest(owner=user)
    teams = Membership.objects.filter(user=user).values_list("team_id", flat=True)
    theirs = chain.from_iterable(_newest(team=team) for team in teams)  # one by one: there is no index of several
    allowed = Allowed(Cluster.get().image_patterns)
    likeliest = (image for _job, image in chain(own, nlargest(LOOKED_AT, theirs)))
    known = dict.fromkeys([*likeliest, *_on_hosts()])
    return list(islice(filter(allowed, known), MOST))


def _newest(**of: Any) -> Iterable[tuple[int, str]]:
    """The last jobs with their images, the newest first."""
    return Job.objects.filter(**of).order_by("-pk").values_list("pk", "image")[:LOOKED_AT]


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
