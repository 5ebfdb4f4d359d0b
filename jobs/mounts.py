"""Which host directories a container may see: an admin's named mounts, looked at again at every start."""

import os

from django.conf import settings

from jobs.containerspec import Bind
from jobs.models import Job, Mount


class Refused(Exception):
    """A mount may not be used: str() is a sentence without the host's paths."""


def binds(job: Job) -> tuple[Bind, ...]:
    """The job's mounts as binds. Raises Refused for one that has gone bad since it was named."""
    mounts = list(job.mounts.all())
    if not mounts:
        return ()
    if job.owner.run_uid == 0:
        raise Refused("jobs that run as root may not use shared mounts")
    team = {mount.pk for mount in (Mount.objects.filter(teams=None) | Mount.objects.filter(teams=job.team))}
    for mount in mounts:
        if mount.pk not in team:
            raise Refused(f'the mount "{mount.name}" is no longer open to the team {job.team.name}')
    return tuple(Bind(source=resolve(m.source, m.name), target=m.target, read_only=m.read_only) for m in mounts)


def resolve(source: str, name: str) -> str:
    """The real path of a mount's directory, links followed first. Raises Refused outside the admin's roots."""
    problem = problem_of(source)
    if problem:
        raise Refused(f'the mount "{name}" {problem}')
    return os.path.realpath(source)


def problem_of(source: str) -> str | None:
    """What is wrong with a path as a mount, as the end of a sentence; None when nothing is."""
    if not is_plain(source):
        return "must be an absolute path without a colon"
    real = os.path.realpath(source)
    if not is_inside_roots(real):
        return "leads outside the allowed roots (MOUNT_ROOTS)"
    return None if os.path.isdir(real) else "is not a directory on this host"


def is_plain(source: str) -> bool:
    """Whether a path can be told to the engine: absolute, and without what it takes for a separator."""
    return os.path.isabs(source) and ":" not in source and "\0" not in source


def is_inside_roots(real: str) -> bool:
    """Whether a path without links lies at or below one of MOUNT_ROOTS; "/" is no root."""
    roots = [os.path.realpath(root) for root in settings.MOUNT_ROOTS]
    return any(os.path.commonpath([real, root]) == root for root in roots if root != "/")
