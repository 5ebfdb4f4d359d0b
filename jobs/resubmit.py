"""The same job once more, as a new job of the same owner."""

import uuid
from typing import Any

from jobs import secretbox
from jobs.models import Job
from jobs.request import JobRequest
from jobs.submit import submit


def resubmit(job: Job, *, owner: Any, submission: uuid.UUID) -> Job:
    """Submit what `job` asked for again, secrets included; only for its owner, whose secrets they are.

    Raises what `jobs.submit.submit` raises, and `secretbox.Unreadable`. A start time that has passed is left out.
    """
    return submit(request_of(job), owner=owner, team=job.team, submission=submission)


def request_of(job: Job) -> JobRequest:
    """What the job asked for, with its secrets opened."""
    secrets = {name: secretbox.open_(token) for name, token in job.secrets_encrypted.items()}
    return JobRequest(
        name=job.name, image=job.image, command_kind=job.command_kind, script=job.script,
        entrypoint=tuple(job.entrypoint), arguments=tuple(job.arguments), gpus=job.gpus, gpu_model=job.gpu_model,
        gpu_memory_mib=job.gpu_memory_mib, millicpus=job.millicpus, memory_mib=job.memory_mib, shm_mib=job.shm_mib,
        limit_seconds=job.limit_seconds, grace_seconds=job.grace_seconds, priority=job.priority,
        environment=(*job.environment.items(), *secrets.items()), secret_names=frozenset(secrets),
        gpu_milli=job.gpu_milli, gpu_profile=job.gpu_profile, least_gpus=job.least_gpus,
        node_labels=tuple(job.node_labels), interactive=job.interactive, preemptible=job.preemptible,
        movable=job.movable, offline=job.offline, stop_signal=job.stop_signal,
        mounts=tuple(job.mounts.values_list("pk", flat=True)), cloned_from=job.pk,
    )  # fmt: skip
