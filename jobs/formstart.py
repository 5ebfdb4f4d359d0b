"""What a new form shows: the defaults, or the job that is cloned, never the value of a secret."""

import shlex
import uuid
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import fairshare, units, usage
from jobs.formfields import Row
from jobs.models import CommandKind, Job, Priority
from jobs.quotas import WHOLE
from jobs.submit import default_limit
from portal.models import User


def first_values(user: User, original: Job | None) -> dict[str, Any]:
    """The first values of the form's fields, by name."""
    if original is not None:
        return {"submission": uuid.uuid4(), **_cloned(user, original)}
    limits = usage.user_limits([user])[user.pk]
    host = fairshare.largest_host()
    most = min(n for n in (1, host.gpus, limits.gpus, limits.job_gpus) if n is not None)
    size = fairshare.share(host, most, limits)
    last = Job.objects.filter(owner=user, team__memberships__user=user).values_list("team_id", flat=True).first()
    return {
        "submission": uuid.uuid4(), "team": last,
        "command_kind": CommandKind.SCRIPT, "gpus": size.gpus, "cpus": units.format_cpus(size.millicpus),
        "memory": units.exact_memory(size.memory_mib), "limit": units.exact_duration(default_limit(user)),
        "priority": Priority.NORMAL, "grace": "30s", "stop_signal": "SIGTERM",
    }  # fmt: skip


def _cloned(user: User, job: Job) -> dict[str, Any]:
    return {
        "cloned_from": job.pk, "name": job.name, "image": job.image, "team": job.team_id,
        "command_kind": job.command_kind, "script": job.script, "entrypoint": shlex.join(job.entrypoint),
        "arguments": shlex.join(job.arguments), "gpus": job.gpus, "gpu_model": job.gpu_model,
        "gpu_memory": units.format_memory(job.gpu_memory_mib) if job.gpu_memory_mib else "",
        "cpus": units.format_cpus(job.millicpus), "memory": units.exact_memory(job.memory_mib),
        "shm": units.exact_memory(job.shm_mib), "grace": units.exact_duration(job.grace_seconds),
        "limit": units.exact_duration(job.limit_seconds) if job.limit_seconds else _("none"),
        "priority": job.priority, "mounts": [mount.pk for mount in job.mounts.all()],
        "gpu_percent": f"{job.gpu_milli / 10:g}" if job.gpu_milli < WHOLE else None, "gpu_profile": job.gpu_profile,
        "least_gpus": job.least_gpus, "node_labels": job.node_labels, "preemptible": job.preemptible,
        "movable": job.movable, "offline": job.offline, "interactive": job.interactive, "stop_signal": job.stop_signal,
        "start_after": _future(job.start_after), "environment": _cloned_rows(user, job),
    }  # fmt: skip


def _future(moment: datetime | None) -> datetime | None:
    return moment if moment is not None and moment > timezone.now() else None


def _cloned_rows(user: User, job: Job) -> list[Row]:
    """Variables as they were; a secret is kept for its owner, and everybody else has to enter it again."""
    kept = job.pk if job.owner_id == user.pk else None
    plain = [Row(name=name, value=value) for name, value in job.environment.items()]
    return plain + [Row(name=name, secret=True, kept=kept, again=kept is None) for name in job.secrets_encrypted]
