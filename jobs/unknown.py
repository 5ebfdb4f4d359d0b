"""Containers that bear this installation's label, and whose run its database does not know: after a restore, mostly.

They are nobody's to kill: somebody's work may be in them. An admin is shown them, and decides.
"""

import logging
from collections.abc import Iterable
from typing import Any

import redis
from django.conf import settings

from jobs.containers import Container
from jobs.containerspec import LABEL_JOB
from jobs.models import Run
from portal import nodereports

log = logging.getLogger(__name__)
_told: set[str] = set()  # of this process: the ids that were logged


def unknown(found: Iterable[Container]) -> list[Container]:
    """Those of these containers of this host that belong to no run of it, by name."""
    found = list(found)
    runs = {container.run_id for container in found if container.run_id is not None}
    known = set(Run.objects.filter(pk__in=runs, node__name=settings.NODE_NAME).values_list("pk", flat=True))
    return sorted((c for c in found if c.run_id not in known), key=lambda container: container.name)


def tell(strays: list[Container]) -> None:
    """Show them to admins, and log each once."""
    for container in strays:
        if container.id not in _told:
            log.warning("container %s is ours by its label, but its run is not in the database", container.name)
    _told.clear()
    _told.update(container.id for container in strays)
    try:
        nodereports.tell(settings.NODE_NAME, unknown=[as_told(container) for container in strays])
    except redis.RedisError as error:
        log.debug("not told of unknown containers: %s", error)


def as_told(container: Container) -> dict[str, Any]:
    """`name`, `id` (12 digits), `status`, `job` and `run` (as its labels say, or null)."""
    job = container.labels.get(LABEL_JOB, "")
    return {
        "name": container.name, "id": container.id[:12], "status": container.status, "run": container.run_id,
        "job": int(job) if job.isdigit() else None,
    }  # fmt: skip
