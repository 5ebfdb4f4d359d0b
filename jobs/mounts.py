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
    if mounts and job.owner.run_uid == 0:
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
    if not os.path.isabs(source) or ":" in source or "\0" in source:
        return "must be an absolute path without a colon"
    real = os.path.realpath(source)
    roots = [os.path.realpath(root) for root in settings.MOUNT_ROOTS]
    if not any(real != "/" and os.path.commonpath([real, root]) == root for root in roots if root != "/"):
        return "leads outside the allowed roots (MOUNT_ROOTS)"
    if not os.path.isdir(real):
        return "is not a directory on this host"
    return None
