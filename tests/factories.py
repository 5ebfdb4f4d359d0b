"""Rows for tests, each with plausible values for what the test does not care about, and the cast of the stories."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from django.db import transaction
from django.utils import timezone

from gpus.models import GPU, Node
from jobs import quotas
from jobs.models import Allocation, AllocationSlot, Job, Membership, Quota, Run, Team
from jobs.states import JOB_STATE_OF_RUN, EndReason, JobState, RunState
from portal.models import User

PASSWORD = "a good long password"
_numbers = count(1)


def make_user(name: str, *, teams: tuple[Team, ...] = (), password: str = PASSWORD, **fields: Any) -> User:
    """A person who may log in with `password` and is a member of `teams`."""
    user = User.objects.create_user(name, f"{name}@example.org", password, **fields)
    for team in teams:
        Membership.objects.create(team=team, user=user)
    return user


def make_admin(name: str = "root_admin") -> User:
    return make_user(name, is_staff=True, is_superuser=True)


def make_team(name: str = "vision", **quota: Any) -> Team:
    """A team, with a quota when limits are given."""
    team, _ = Team.objects.get_or_create(name=name)
    if quota:
        Quota.objects.create(team=team, **quota)
    return team


def make_node(name: str = "alpha", *, gpus: int = 4, memory_mib: int = 40960, **fields: Any) -> Node:
    """A node that was heard of just now, with healthy free GPUs."""
    defaults = {
        "millicpus": 32000, "memory_mib": 131072, "last_seen": timezone.now(), "gpu_status": Node.GpuStatus.SIMULATED,
        "engine_id": f"engine-of-{name}", "engine_version": "20.10.24",
    }  # fmt: skip
    node = Node.objects.create(name=name, **{**defaults, **fields})
    for index in range(gpus):
        make_gpu(node, index, memory_mib=memory_mib)
    return node


def make_gpu(node: Node, index: int, **fields: Any) -> GPU:
    """A healthy GPU with a fresh reading and nobody on it."""
    defaults = {
        "uuid": f"GPU-{node.name}-{index:04d}", "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "model": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "health": GPU.Health.OK,
        "sampled_at": timezone.now(), "clean_samples": 2,
    }  # fmt: skip
    return GPU.objects.create(node=node, index=index, **{**defaults, **fields})


def make_job(owner: User, team: Team | None = None, **fields: Any) -> Job:
    """A queued job of one hour that asks for one GPU."""
    defaults: dict[str, Any] = {
        "name": f"job {next(_numbers)}", "image": "dockyard-test/busybox:latest", "script": "true", "gpus": 1,
        "millicpus": 1000, "memory_mib": 1024, "shm_mib": 64, "limit_seconds": 3600,
    }  # fmt: skip
    team = team or owner.teams.first() or make_team()
    return Job.objects.create(owner=owner, team=team, **{**defaults, **fields})


def make_run(
    job: Job, node: Node, *, gpus: tuple[GPU, ...] | None = None, state: RunState = RunState.RUNNING, **fields: Any
) -> Run:
    """A live run of the job in `state`, holding these GPUs, or the first free ones that the job asks for."""
    now = timezone.now()
    times: dict[str, Any] = {"placed_at": now - timedelta(seconds=2)}
    if state is not RunState.PLACED:
        times["starting_at"] = now - timedelta(seconds=1)
    if state in (RunState.RUNNING, RunState.STOPPING):
        times["started_at"] = now
        times["deadline"] = now + timedelta(seconds=job.limit_seconds) if job.limit_seconds else None
    number = job.runs.count() + 1
    run = Run.objects.create(job=job, node=node, number=number, state=state, **{**times, **fields})
    allocation = Allocation.objects.create(
        run=run, node=node, user=job.owner, team=job.team, gpus=job.gpus,
        gpu_milli=quotas.milli(job.gpus, job.gpu_milli), millicpus=job.millicpus, memory_mib=job.memory_mib,
    )  # fmt: skip
    for gpu in free_gpus(node)[: job.gpus] if gpus is None else gpus:
        AllocationSlot.objects.create(allocation=allocation, gpu=gpu)
    Job.objects.filter(pk=job.pk).update(state=JOB_STATE_OF_RUN[state], started_at=times.get("started_at"))
    job.refresh_from_db()
    return run


def make_ended_run(owner: User, began: datetime, *, exit_code: int = 0) -> Run:
    """A run of an hour, without GPUs and with an empty log, of a job of its own; on the first node there is."""
    ended = began + timedelta(hours=1)
    end: dict[str, Any] = {
        "end_reason": EndReason.EXIT_CODE if exit_code else EndReason.COMPLETED, "exit_code": exit_code,
        "started_at": began, "ended_at": ended,
    }  # fmt: skip
    with transaction.atomic():
        run = make_run(make_job(owner, gpus=0), Node.objects.order_by("pk")[0])
        Allocation.objects.filter(run=run).update(released_at=ended)
        Run.objects.filter(pk=run.pk).update(state=RunState.ENDED, **end)
        state = JobState.FAILED if exit_code else JobState.SUCCEEDED
        Job.objects.filter(pk=run.job_id).update(state=state, **end)
    run.refresh_from_db()
    return run


def free_gpus(node: Node) -> list[GPU]:
    """The GPUs of a node that no live allocation holds, in order."""
    held = AllocationSlot.objects.filter(released_at=None).values("gpu_id")
    return list(node.gpus.exclude(pk__in=held).order_by("index"))


def broken_invariants() -> list[str]:
    """What must never be true of the database, whatever a test did; empty when all is well."""
    live = AllocationSlot.objects.filter(released_at=None).values_list("gpu__uuid", "slot")
    twice = [f"GPU {gpu} slot {slot} has {n} live holders" for (gpu, slot), n in Counter(live).items() if n > 1]
    ended = Run.objects.filter(state=RunState.ENDED)
    held = [f"{run} has ended and holds its allocation" for run in ended.filter(allocation__released_at=None,
            allocation__isnull=False)]  # fmt: skip
    slots = ended.filter(allocation__slots__isnull=False, allocation__slots__released_at=None).distinct()
    return [*twice, *held, *(f"{run} has ended and holds a GPU" for run in slots)]
