"""Take a request in: checked, admitted against the quotas in a transaction, stored. Never lost, never twice."""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from jobs import quotas, secretbox, snapshot, usage
from jobs.images import Allowed
from jobs.models import Cluster, Job, JobEvent, Membership, Mount, Team
from jobs.policy import Node
from jobs.policy.explain import impossible
from jobs.policy.kinds import Kinds
from jobs.policy.ledger import Ledger
from jobs.queues import wake_scheduler
from jobs.quotas import WHOLE, Limits, Refusal
from jobs.request import JobRequest, Problem

LATE = timedelta(minutes=10)  # a start time may be over for so long: it was not when it was typed
FAR = timedelta(days=366)


class Refused(Exception):
    """The request can't be taken. `refusals` name quotas with numbers, `problems` what is wrong with the fields."""

    def __init__(self, refusals: Sequence[Refusal] = (), problems: Sequence[Problem] = ()) -> None:
        super().__init__("; ".join([r.code for r in refusals] + [p.code for p in problems]))
        self.refusals = list(refusals)
        self.problems = list(problems)


def submit(request: JobRequest, *, owner: Any, team: Team, submission: uuid.UUID) -> Job:
    """Store the job as QUEUED and wake the scheduler. The same submission of the same owner gives the same job.

    Raises Refused, with everything that is wrong at once, before anything is stored.
    """
    same = Job.objects.filter(owner=owner, submission=submission)
    if existing := same.first():
        return existing
    limits = check(request, owner=owner, team=team)
    try:
        with transaction.atomic():
            if any(limit.queued_jobs is not None for limit in limits):
                _stand_in_line(owner, team)
                if existing := same.first():
                    return existing
                _admit(owner, team)
            job = _store(request, owner, team, submission)
            transaction.on_commit(lambda: wake_scheduler(urgent=False), robust=True)
    except IntegrityError:
        return same.get()  # the other half of a double post was faster
    return job


def check(
    request: JobRequest, *, owner: Any, team: Team | None, unread: Collection[str] = ()
) -> tuple[Limits, ...]:  # fmt: skip
    """The limits of owner and team, all of which the request could meet. Without a team what concerns none is checked.

    Raises Refused for whatever no waiting would mend: wrong fields, rights, limits below the request itself, and what
    no host could ever give. Fields that are wrong, or `unread`, are left out of what hosts are asked for.
    """
    problems = [*request.problems(), *_when(request), *_rights(request, owner, team)]
    hosts = snapshot.hardware(timezone.now())
    wrong = {*unread, *(problem.field for problem in problems)}
    problems += _hardware(request, wrong, hosts, owner=owner, team=team)
    limits = usage.limits_of(owner, team) if team else (usage.user_limits([owner])[owner.pk],)
    refusals = beyond_limits(build(request, owner=owner, team=team), Kinds(hosts), *limits)
    if problems or refusals:
        raise Refused(refusals, problems)
    return limits


def beyond_limits(job: Job, hosts: Kinds, *limits: Limits) -> list[Refusal]:
    """What of the limits no waiting would mend, by what GPUs there are and how they are cut."""
    asked = hosts.charged(snapshot.waiting(job))
    return [*quotas.never(asked, *limits, models=hosts.models(asked)), *quotas.above_ceiling(asked, *limits)]


_FIELDS = {
    "NO_GPU_MODEL": "gpu_model", "NO_GPU_MEMORY": "gpu_memory_mib", "TOO_LARGE_CPUS": "millicpus",
    "TOO_LARGE_MEMORY": "memory_mib", "NO_LABELS": "node_labels", "NO_GPU_PROFILE": "gpu_profile",
    "NO_SHARED_GPU": "gpu_milli",
}  # fmt: skip


# What any host gives: stands in for fields that are wrong.
_NOTHING: dict[str, Any] = {
    "gpus": 0, "gpu_model": "", "gpu_memory_mib": 0, "gpu_milli": WHOLE, "gpu_profile": "", "least_gpus": None,
    "millicpus": 0, "memory_mib": 0, "node_labels": (),
}  # fmt: skip
_OF_GPUS = {"gpus", "gpu_model", "gpu_memory_mib", "gpu_milli", "gpu_profile", "least_gpus"}


def _hardware(
    request: JobRequest, wrong: set[str], hosts: Iterable[Node], *, owner: Any, team: Team | None
) -> list[Problem]:  # fmt: skip
    """What no host could ever give it. A job that was taken in waits, should the hosts shrink later."""
    if wrong & {"gpus", "least_gpus", "gpu_profile"}:  # how many GPUs, and of what kind, is not known then
        wrong = wrong | _OF_GPUS
    sure = replace(request, **{name: nothing for name, nothing in _NOTHING.items() if name in wrong})
    return beyond_hosts(build(sure, owner=owner, team=team), hosts)


def beyond_hosts(job: Job, hosts: Iterable[Node]) -> list[Problem]:
    """What none of the hosts could ever give the job; nothing where there are none."""
    ledgers = [Ledger(node) for node in hosts]
    reasons = impossible(snapshot.waiting(job), ledgers) if ledgers else []
    return [Problem(field=_FIELDS.get(r["code"], "gpus"), code=r["code"], params=r) for r in reasons]


def _when(request: JobRequest) -> Iterator[Problem]:
    """A start time that can only be a slip."""
    if request.start_after is None:
        return
    now = timezone.now()
    if request.start_after < now - LATE:
        yield Problem(field="start_after", code="START_OVER", params={"at": request.start_after.isoformat()})
    elif request.start_after > now + FAR:
        yield Problem(field="start_after", code="START_FAR")


def _rights(request: JobRequest, owner: Any, team: Team | None) -> list[Problem]:
    """What this person may not ask for."""
    problems = []
    if team and not Membership.objects.filter(team=team, user=owner).exists():
        problems.append(Problem(field="team", code="NOT_IN_TEAM", params={"team": team.name}))
    if request.limit_seconds is None and not owner.may_run_unlimited:
        problems.append(Problem(field="limit_seconds", code="NO_LIMIT_FORBIDDEN"))
    if not Allowed(Cluster.get().image_patterns)(request.image):
        problems.append(Problem(field="image", code="IMAGE_NOT_ALLOWED", params={"image": request.image}))
    if request.mounts and owner.may_run_as_root:
        problems.append(Problem(field="mounts", code="MOUNTS_AS_ROOT"))
    if team and request.mounts and not set(request.mounts) <= set(allowed_mounts(team).values_list("pk", flat=True)):
        problems.append(Problem(field="mounts", code="MOUNT_NOT_ALLOWED"))
    return problems


def allowed_mounts(team: Team) -> Any:
    """The mounts that jobs of this team may ask for."""
    return (Mount.objects.filter(teams=None) | Mount.objects.filter(teams=team)).distinct()


def _stand_in_line(owner: Any, team: Team) -> None:
    """Jobs of one user and of one team are admitted one after another, so that two can't both be the last.

    Here and elsewhere without the key: rows that only refer to a locked one would wait for it, and lead to deadlocks.
    """
    if connection.features.has_select_for_update:  # on SQLite the transaction itself is the line
        get_user_model().objects.select_for_update(no_key=True).get(pk=owner.pk)
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)


def _admit(owner: Any, team: Team) -> None:
    refusals = quotas.admit(*usage.levels(owner, team, timezone.now(), queued=True))
    if refusals:
        raise Refused(refusals)


def taken_in(owner: Any, last: int = 20) -> list[uuid.UUID]:
    """The submissions behind the owner's newest jobs: a form that still holds one of them has become a job."""
    return list(Job.objects.filter(owner=owner).values_list("submission", flat=True)[:last])


def _store(request: JobRequest, owner: Any, team: Team, submission: uuid.UUID) -> Job:
    job = build(request, owner=owner, team=team)
    job.submission = submission
    job.save()
    if request.mounts:
        job.mounts.set(request.mounts)
    JobEvent.objects.create(job=job, kind="SUBMITTED", new_state=job.state, actor=owner)
    return job


def build(request: JobRequest, *, owner: Any, team: Team | None) -> Job:
    """The job as it would be stored, unsaved: also what a preview plans with."""
    plain = {name: value for name, value in request.environment if name not in request.secret_names}
    sealed = {name: secretbox.seal(value) for name, value in request.environment if name in request.secret_names}
    now = timezone.now()
    return Job(
        owner=owner, team=team, name=request.name.strip(), image=request.image, command_kind=request.command_kind,
        script=request.script, entrypoint=list(request.entrypoint), arguments=list(request.arguments),
        gpus=request.gpus, gpu_model=request.gpu_model, gpu_memory_mib=request.gpu_memory_mib,
        gpu_milli=request.gpu_milli, gpu_profile=request.gpu_profile, least_gpus=request.least_gpus,
        node_labels=list(request.node_labels), interactive=request.interactive, preemptible=request.preemptible,
        movable=request.movable, offline=request.offline, stop_signal=request.stop_signal,
        millicpus=request.millicpus, memory_mib=request.memory_mib, shm_mib=request.shm_mib,
        limit_seconds=request.limit_seconds, grace_seconds=request.grace_seconds, priority=request.priority,
        environment=plain, secrets_encrypted=sealed, start_after=request.start_after,
        cloned_from_id=request.cloned_from, created_at=now, queued_at=now,
    )  # fmt: skip


def default_limit(owner: Any) -> int:
    """The time limit to suggest: the default, or the longest this user may have."""
    longest = usage.user_limits([owner])[owner.pk].limit_seconds
    return min(settings.DEFAULT_LIMIT_SECONDS, longest or settings.DEFAULT_LIMIT_SECONDS)
