"""Read the database into the frozen picture that the policy plans from: a fixed number of queries."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Q

from gpus.availability import why_unavailable
from gpus.models import GPU
from gpus.models import Node as NodeRow
from jobs import usage
from jobs.models import Allocation, AllocationSlot, Cluster, Job, Run, Team
from jobs.policy import Gpu, Node, Reason, Rules, Running, Snapshot, Waiting
from jobs.quotas import Limits
from jobs.states import FOR_OTHERS, WAITING, EndReason, JobState, RunState

SICK_DRIVER = frozenset({"driver_mismatch", "hung", "error"})


# What job and `Waiting` name alike.
_COLUMNS = (
    "priority", "queued_at", "gpus", "gpu_model", "gpu_memory_mib", "gpu_milli", "gpu_profile", "least_gpus",
    "millicpus", "memory_mib", "limit_seconds", "start_after", "blocked_since", "turn", "interactive",
)  # fmt: skip
# What it makes the rest of: see `_waiting`.
_MORE = ("owner_id", "team_id", "held_by_user", "held_by_admin", "pinned", "end_reason", "avoid_gpus", "node_labels")


def take(now: datetime, *, cluster: Cluster, extra: Sequence[Job] = ()) -> Snapshot:
    """The picture now. `extra` are jobs not yet submitted, for a preview; they need `owner` and `team` set."""
    jobs = (*waiting_jobs(), *(waiting(job) for job in extra))
    held = usage.holdings()
    users = usage.user_limits(get_user_model().objects.filter(pk__in={job.user for job in jobs}).only("username"))
    teams = usage.team_limits(Team.objects.filter(pk__in={job.team for job in jobs}))
    return Snapshot(
        now=now, nodes=nodes(now, held), waiting=jobs, running=running(), user_limits=users, team_limits=teams,
        user_usage=usage.in_use("user", users, held, now, budgets=_with_budget(users)),
        team_usage=usage.in_use("team", teams, held, now, budgets=_with_budget(teams)),
        rules=Rules(reserve_after=settings.RESERVE_AFTER),
        paused={"code": "PAUSED", "reason": cluster.pause_reason} if cluster.paused else None,
    )  # fmt: skip


def _with_budget(limits: Mapping[int, Limits]) -> list[int]:
    return [pk for pk, limit in limits.items() if limit.gpu_seconds is not None]


def waiting_jobs() -> list[Waiting]:
    """All jobs that wait, read by the columns that matter: there may be thousands, many times a minute."""
    rows = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD]).order_by()
    yields = _yields()
    return [_waiting(row, yields.get(row["pk"])) for row in rows.values("pk", *_MORE, *_COLUMNS)]


def waiting(job: Job) -> Waiting:
    """The part of a job that the policy looks at."""
    return _waiting({"pk": job.pk or 0, **{name: getattr(job, name) for name in (*_MORE, *_COLUMNS)}})


def _waiting(row: Mapping[str, Any], yields_to: int | None = None) -> Waiting:
    return Waiting(
        id=row["pk"], user=row["owner_id"], team=row["team_id"],
        held_by=_holders(row["held_by_user"], row["held_by_admin"]),
        pinned=row["pinned"] or row["end_reason"] == EndReason.REBOUND,  # of a waiting job: how its last run ended
        avoid=frozenset(row["avoid_gpus"]), labels=frozenset(row["node_labels"]), yields_to=yields_to,
        **{name: row[name] for name in _COLUMNS},
    )  # fmt: skip


def _yields() -> dict[int, int]:
    """Waiting job → the waiting job that its last run made way for."""
    rows = Run.objects.filter(
        state=RunState.ENDED, end_reason__in=FOR_OTHERS, job__state__in=WAITING, makes_way_for__state=JobState.QUEUED
    )
    last = {job: (run, winner) for job, run, winner in rows.order_by("pk").values_list("job_id", "pk", "makes_way_for")}
    newest = dict(
        Run.objects.filter(job__in=last).order_by("pk").values_list("job_id", "pk")
    )  # the last of each job wins
    return {job: winner for job, (run, winner) in last.items() if newest[job] == run}


def running() -> tuple[Running, ...]:
    """Every live run with what it holds."""
    slots: dict[int, dict[str, int]] = defaultdict(dict)
    rows = AllocationSlot.objects.filter(released_at=None).values_list("allocation__run_id", "gpu__uuid")
    for (run, uuid), count in Counter(rows).items():
        slots[run][uuid] = count
    held = Allocation.objects.filter(released_at=None).select_related("run__job", "node").order_by("pk")
    return tuple(_running(allocation, slots[allocation.run_id]) for allocation in held)


def _running(held: Allocation, slots: Mapping[str, int]) -> Running:
    run, job = held.run, held.run.job
    return Running(
        run=run.pk, job=job.pk, user=held.user_id, team=held.team_id, priority=job.priority, node=held.node.name,
        gpus=held.gpus, slots=slots, millicpus=held.millicpus, memory_mib=held.memory_mib, since=held.created_at,
        ends_by=_ends_by(run, job), preemptible=job.preemptible, stopping=bool(run.wish),
        makes_way_for=run.makes_way_for_id, interactive=job.interactive, movable=job.movable, gpu_milli=job.gpu_milli,
        ask=waiting(job) if job.movable else None,
    )  # fmt: skip


def _ends_by(run: Run, job: Job) -> datetime | None:
    """By when its limit ends it: as a run that has not started could still use all of it."""
    if run.deadline is not None or job.limit_seconds is None:
        return run.deadline
    return run.placed_at + timedelta(seconds=job.limit_seconds)


def _holders(by_user: bool, by_admin: bool) -> tuple[str, ...]:
    return tuple(who for who, holds in (("user", by_user), ("admin", by_admin)) if holds)


def nodes(now: datetime, held: Iterable[usage.Holding]) -> tuple[Node, ...]:
    """Every host with its GPUs, what is allocated there, and why it is closed, if it is."""
    gpus: dict[int, list[GPU]] = defaultdict(list)
    for gpu in GPU.objects.select_related("node").order_by("node_id", "index"):
        gpus[gpu.node_id].append(gpu)
    taken = Counter(AllocationSlot.objects.filter(released_at=None).values_list("gpu_id", flat=True))
    used: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for holding in held:
        used[holding.node][0] += holding.millicpus
        used[holding.node][1] += holding.memory_mib
    return tuple(_node(row, gpus[row.pk], taken, used[row.pk], now) for row in NodeRow.objects.all())


def hardware(now: datetime) -> tuple[Node, ...]:
    """Every host as if nothing ran there; empty as long as one of them has not told what it has."""
    if NodeRow.objects.filter(Q(millicpus=0) | Q(gpu_status=NodeRow.GpuStatus.UNKNOWN)).exists():
        return ()
    return nodes(now, ())


def _node(row: NodeRow, gpus: Iterable[GPU], taken: Counter[int], used: list[int], now: datetime) -> Node:
    return Node(
        name=row.name,
        millicpus=max(row.millicpus - row.reserved_millicpus, 0),
        memory_mib=max(row.memory_mib - row.reserved_memory_mib, 0),
        used_millicpus=used[0],
        used_memory_mib=used[1],
        gpus=tuple(_gpu(gpu, taken[gpu.pk], now) for gpu in gpus),
        labels=frozenset(f"{key}={value}" for key, value in row.labels.items()),
        closed=why_closed(row, now),
    )


def _gpu(gpu: GPU, used_slots: int, now: datetime) -> Gpu:
    return Gpu(
        uuid=gpu.uuid, index=gpu.index, model=gpu.model, memory_mib=gpu.memory_mib, slots=gpu.slots,
        used_slots=used_slots, unavailable=why_unavailable(gpu, now), profile=gpu.profile, numa=gpu.numa,
        island=gpu.island,
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
