"""Read the database into the frozen picture that the policy plans from: a fixed number of queries."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.conf import settings

from gpus.availability import why_unavailable
from gpus.models import GPU
from gpus.models import Node as NodeRow
from jobs import usage
from jobs.models import Allocation, AllocationSlot, Cluster, Job
from jobs.policy import Gpu, Node, Reason, Snapshot, Waiting
from jobs.states import JobState

SICK_DRIVER = frozenset({"driver_mismatch", "hung", "error"})


def take(now: datetime, *, cluster: Cluster, extra: Sequence[Job] = ()) -> Snapshot:
    """The picture now. `extra` are jobs not yet submitted, for a preview; they need `owner` and `team` set."""
    jobs = [
        *Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD]).select_related("owner", "team"), *extra,
    ]  # fmt: skip
    users = usage.user_limits({job.owner for job in jobs})
    teams = usage.team_limits({job.team for job in jobs})
    return Snapshot(
        now=now, nodes=nodes(now), waiting=tuple(waiting(job) for job in jobs), user_limits=users, team_limits=teams,
        user_usage=usage.usages("user", users, now, budgets=[k for k, v in users.items() if v.gpu_seconds is not None]),
        team_usage=usage.usages("team", teams, now, budgets=[k for k, v in teams.items() if v.gpu_seconds is not None]),
        reserve_after_seconds=settings.RESERVE_AFTER,
        paused={"code": "PAUSED", "reason": cluster.pause_reason} if cluster.paused else None,
    )  # fmt: skip


def waiting(job: Job) -> Waiting:
    """The part of a job that the policy looks at."""
    held = [who for who, is_held in (("user", job.held_by_user), ("admin", job.held_by_admin)) if is_held]
    return Waiting(
        id=job.pk or 0, user=job.owner_id, team=job.team_id, priority=job.priority, queued_at=job.queued_at,
        gpus=job.gpus, gpu_model=job.gpu_model, gpu_memory_mib=job.gpu_memory_mib, millicpus=job.millicpus,
        memory_mib=job.memory_mib, limit_seconds=job.limit_seconds, start_after=job.start_after,
        held_by=tuple(held), blocked_since=job.blocked_since,
    )  # fmt: skip


def nodes(now: datetime) -> tuple[Node, ...]:
    """Every host with its GPUs, what is allocated there, and why it is closed, if it is."""
    gpus: dict[int, list[GPU]] = defaultdict(list)
    for gpu in GPU.objects.select_related("node").order_by("node_id", "index"):
        gpus[gpu.node_id].append(gpu)
    taken = set(AllocationSlot.objects.filter(released_at=None).values_list("gpu_id", flat=True))
    used: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for node, cpus, memory in Allocation.objects.filter(released_at=None).values_list(
        "node_id", "millicpus", "memory_mib"
    ):
        used[node][0] += cpus
        used[node][1] += memory
    return tuple(_node(row, gpus[row.pk], taken, used[row.pk], now) for row in NodeRow.objects.all())


def _node(row: NodeRow, gpus: Iterable[GPU], taken: set[int], used: list[int], now: datetime) -> Node:
    return Node(
        name=row.name,
        millicpus=max(row.millicpus - row.reserved_millicpus, 0),
        memory_mib=max(row.memory_mib - row.reserved_memory_mib, 0),
        used_millicpus=used[0],
        used_memory_mib=used[1],
        gpus=tuple(_gpu(gpu, gpu.pk in taken, now) for gpu in gpus),
        closed=why_closed(row, now),
    )


def _gpu(gpu: GPU, taken: bool, now: datetime) -> Gpu:
    return Gpu(
        uuid=gpu.uuid, index=gpu.index, model=gpu.model, memory_mib=gpu.memory_mib, taken=taken,
        unavailable=why_unavailable(gpu, now),
    )  # fmt: skip


def why_closed(row: NodeRow, now: datetime) -> Reason | None:
    """Why a host takes no new job: silent, cordoned, its engine or its driver does not work. None when it does."""
    if not row.is_alive(now):
        return {"code": "NODES_SILENT", "nodes": [row.name]}
    if row.cordoned:
        return {"code": "NODES_CORDONED", "nodes": [row.name]}
    if row.engine_error:
        return {"code": "ENGINE", "node": row.name, "message": row.engine_error[:200]}
    if row.gpu_status in SICK_DRIVER:
        return {"code": "DRIVER", "node": row.name, "status": row.gpu_status}
    return None
