"""Read the database into the frozen picture that the policy plans from: a fixed number of queries."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Exists, OuterRef, Q, Subquery

from gpus.availability import why_unavailable
from gpus.models import GPU
from gpus.models import Node as NodeRow
from jobs import elsewhere, likely, timeleft, usage
from jobs.images import Allowed
from jobs.models import Allocation, AllocationSlot, Cluster, Job, JobEvent, Run, Team
from jobs.policy import Gpu, Node, Reason, Rules, Running, Share, Snapshot, Waiting
from jobs.policy.past import Like, Past, extended
from jobs.policy.view import WHOLE
from jobs.quotas import Limits
from jobs.states import CHARGED_TO, FOR_OTHERS, WAITING, EndReason, JobState, RunState, Wish

SICK_DRIVER = frozenset({"driver_mismatch", "hung", "error"})


# What job and `Waiting` name alike.
_COLUMNS = (
    "priority", "queued_at", "gpus", "gpu_model", "gpu_memory_mib", "gpu_milli", "gpu_profile", "least_gpus",
    "millicpus", "memory_mib", "limit_seconds", "start_after", "released_at", "blocked_since", "interactive",
)  # fmt: skip
# What it makes the rest of: see `_waiting`.
_MORE = (
    "owner_id", "team_id", "image", "name", "held_by_user", "held_by_admin", "pinned", "end_reason", "avoid_gpus",
    "node_labels",
)  # fmt: skip


def take(now: datetime, *, cluster: Cluster, extra: Sequence[Job] = (), brief: bool = False) -> Snapshot:
    """The picture now. `extra` are jobs not yet submitted, for a preview; they need `owner` and `team` set.

    A `brief` one takes limits and shares as they were a moment ago: placing decides again by those of now.
    """
    past = likely.past()
    jobs = (*waiting_jobs(past, cluster, now), *(waiting(job, past) for job in extra))
    if brief and not jobs:
        return Snapshot(now=now, nodes=(), waiting=(), user_limits={}, team_limits={}, user_usage={}, team_usage={})
    runs = running(now, past)
    hosts = nodes(now, runs)
    return _picture(now, cluster, hosts, runs, elsewhere.narrowed(jobs, hosts), brief=brief)


def queue(now: datetime, *, cluster: Cluster) -> Snapshot:
    """The picture without the hosts: enough to know the order of the queue by."""
    past = likely.past()
    return _picture(now, cluster, (), running(now, past), tuple(waiting_jobs(past, cluster, now)), brief=True)


def holdings(now: datetime, *, cluster: Cluster) -> Snapshot:
    """The picture without the hosts and without what waits: enough to know who has had how much."""
    return _picture(now, cluster, (), running(now, likely.past()), (), brief=True)


def _picture(
    now: datetime, cluster: Cluster, hosts: tuple[Node, ...], runs: tuple[Running, ...], jobs: tuple[Waiting, ...], *,
    brief: bool,
) -> Snapshot:  # fmt: skip
    held = usage.of_running(runs, {gpu.uuid: gpu.model for host in hosts for gpu in host.gpus})
    people = {job.user for job in jobs} | {run.user for run in runs}
    terms = _terms(people, {job.team for job in jobs} | {run.team for run in runs}, now, cluster, brief=brief)
    users, teams = terms.users, terms.teams
    return Snapshot(
        now=now, nodes=hosts, waiting=jobs, running=runs, user_limits=users, team_limits=teams,
        user_usage=usage.in_use("user", users, held, now, returns=not brief),
        team_usage=usage.in_use("team", teams, held, now, returns=not brief),
        team_shares=terms.team_shares, member_shares=terms.member_shares, rules=rules(cluster, terms.all_teams),
        paused={"code": "PAUSED", "reason": cluster.pause_reason} if cluster.paused else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """On what terms people and teams use the hosts: limits and shares, by primary key."""

    all_teams: tuple[Team, ...]
    users: dict[int, Limits]
    teams: dict[int, Limits]
    team_shares: Mapping[int, Share]
    member_shares: Mapping[tuple[int, int], Share]


_Spans = tuple[tuple[datetime, datetime], ...]
# What a waiting job is made of: its row, what it makes way for, whether its image is allowed, what it failed on, what
# it has left of its limit if that is not all of it, and when it ran.
_Facts = tuple[tuple[Any, ...], int | None, bool, frozenset[str], float | None, _Spans]


class _Kept:
    """What this process read last, by the monotonic clock."""

    terms: Terms | None = None
    read_at = float("-inf")
    hardware: tuple[Node, ...] = ()
    seen_at = float("-inf")
    waiting: tuple[Past | None, dict[int, tuple[_Facts, Waiting]]] = None, {}


_kept = _Kept()


def _terms(people: set[int], teams: set[int], now: datetime, cluster: Cluster, *, brief: bool) -> Terms:
    """Of these people and of all teams; a `brief` picture takes what is at most `TERMS_REREAD` seconds old."""
    kept = _kept.terms if brief and time.monotonic() - _kept.read_at < settings.TERMS_REREAD else None
    if kept is None or not (people <= kept.users.keys() and teams <= kept.teams.keys()):
        kept = _kept.terms = _read_terms(people, now, cluster)
        _kept.read_at = time.monotonic()
    return kept


def _read_terms(people: set[int], now: datetime, cluster: Cluster) -> Terms:
    teams = tuple(Team.objects.all())
    team_shares, member_shares = usage.shares(teams, now, cluster.half_life_days, cluster.weights)
    return Terms(
        all_teams=teams,
        users=usage.user_limits(get_user_model().objects.filter(pk__in=people).only("username")),
        teams=usage.team_limits(teams), team_shares=team_shares, member_shares=member_shares,
    )  # fmt: skip


def rules(cluster: Cluster, teams: Iterable[Team]) -> Rules:
    """The admin's choices, as the policy reads them."""
    return Rules(
        reserve_after=settings.RESERVE_AFTER, preempt_lower=cluster.preempt_lower,
        lift_after=cluster.lift_after_hours * 3600.0 if cluster.lift_after_hours else None,
        protected_for=cluster.protected_minutes * 60.0, defragment=cluster.defragment, weights=cluster.weights,
        spread=frozenset(team.pk for team in teams if team.placement == Team.Placement.SPREAD),
    )  # fmt: skip


_READ = ("pk", *_MORE, *_COLUMNS)
_IMAGE, _END = _READ.index("image"), _READ.index("end_reason")


def waiting_jobs(past: Past, cluster: Cluster, now: datetime) -> list[Waiting]:
    """All jobs that wait, read by the columns that matter: there may be thousands, many times a minute.

    Those that are as they were the last time are made of the same: nothing else goes into them.
    """
    rows = list(Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD]).order_by().values_list(*_READ))
    made_way = any(row[_END] in FOR_OTHERS for row in rows)
    yields, allowed = _yields() if made_way else {}, Allowed(cluster.image_patterns)
    left = timeleft.left([row[0] for row in rows if row[_END] == EndReason.REBOUND])
    ran = timeleft.spans([row[0] for row in rows if row[_END]]) if cluster.lift_after_hours else {}
    failed = elsewhere.blamed([row[0] for row in rows if row[_END] in CHARGED_TO], now)
    by, known = _kept.waiting
    found: dict[int, tuple[_Facts, Waiting]] = {}
    for row in rows:
        avoids = failed.get(row[0], frozenset())
        facts = (row, yields.get(row[0]), allowed(row[_IMAGE]), avoids, left.get(row[0]), ran.get(row[0], ()))
        kept = known.get(row[0]) if by is past else None
        found[row[0]] = kept if kept is not None and kept[0] == facts else (facts, _made_of(facts, past))
    _kept.waiting = past, found
    return [job for _facts, job in found.values()]


def _made_of(facts: _Facts, past: Past) -> Waiting:
    row, yields_to, allowed, failed, left, ran = facts
    job = _waiting(dict(zip(_READ, row, strict=True)), past, yields_to, allowed=allowed, failed=failed)
    job = job if left is None else _with_rest(job, left)
    return replace(job, released_at=_waits_since(job, ran)) if ran else job


def _waits_since(job: Waiting, ran: _Spans) -> datetime:
    """From when on lifts count: later by as long as it ran since, which is no waiting."""
    since = max(job.queued_at, job.start_after or job.queued_at, job.released_at or job.queued_at)
    return since + sum((max(end - max(begin, since), timedelta()) for begin, end in ran), timedelta())


def _with_rest(job: Waiting, seconds: float) -> Waiting:
    """The job, which goes on elsewhere with so much of its limit."""
    if job.limit_seconds is None:
        return job
    return replace(job, limit_seconds=min(max(round(seconds), 1), job.limit_seconds))


def submitted(most: int, past: Past) -> Iterator[Waiting]:
    """The newest jobs as they were when they were submitted, oldest first, whatever became of them."""
    rows = Job.objects.order_by("-pk").values("pk", "created_at", *_MORE, *_COLUMNS)[:most]
    for row in reversed(rows):
        yield replace(
            _waiting(row, past), queued_at=row["created_at"], held_by=(), pinned=False, moved=False, begun=False,
            avoid=frozenset(), released_at=None, start_after=None, blocked_since=None,
        )  # fmt: skip


def waiting(job: Job, past: Past | None = None) -> Waiting:
    """The part of a job that the policy looks at."""
    return _waiting({"pk": job.pk or 0, **{name: getattr(job, name) for name in (*_MORE, *_COLUMNS)}}, past)


def _waiting(
    row: Mapping[str, Any], past: Past | None, yields_to: int | None = None, *, allowed: bool = True,
    failed: frozenset[str] = frozenset(),
) -> Waiting:  # fmt: skip
    like = Like(row["owner_id"], row["image"], row["name"], row["limit_seconds"])
    moved = row["end_reason"] == EndReason.REBOUND  # of a waiting job: how its last run ended
    return Waiting(
        id=row["pk"], user=row["owner_id"], team=row["team_id"],
        held_by=_holders(row["held_by_user"], row["held_by_admin"], not allowed),
        pinned=row["pinned"] or moved, moved=moved, begun=bool(row["end_reason"]),
        avoid=frozenset(row["avoid_gpus"]) | failed, labels=frozenset(row["node_labels"]), yields_to=yields_to,
        likely_seconds=past.seconds(like) if past is not None else None, **{name: row[name] for name in _COLUMNS},
    )  # fmt: skip


def _yields() -> dict[int, int]:
    """Waiting job → the waiting job that its last run made way for, as long as that has not had the room."""
    since = Run.objects.filter(job=OuterRef("makes_way_for"), placed_at__gte=OuterRef("ended_at"))
    rows = Run.objects.filter(
        ~Exists(since), state=RunState.ENDED, end_reason__in=FOR_OTHERS, job__state__in=WAITING,
        makes_way_for__state=JobState.QUEUED,
    )  # fmt: skip
    last = {job: (run, winner) for job, run, winner in rows.order_by("pk").values_list("job_id", "pk", "makes_way_for")}
    newest = dict(
        Run.objects.filter(job__in=last).order_by("pk").values_list("job_id", "pk")
    )  # the last of each job wins
    return {job: winner for job, (run, winner) in last.items() if newest[job] == run}


# What of an allocation, its run and its job `_running` looks at.
_HELD = (
    "run_id", "user_id", "team_id", "node__name", "gpus", "gpu_milli", "millicpus", "memory_mib", "created_at",
    "run__placed_at", "run__started_at", "run__deadline", "run__wish", "run__makes_way_for_id", "run__job_id",
    "run__job__owner_id", "run__job__image", "run__job__name", "run__job__priority", "run__job__limit_seconds",
    "run__job__preemptible", "run__job__interactive", "run__job__movable",
)  # fmt: skip


def running(now: datetime, past: Past) -> tuple[Running, ...]:
    """Every live run with what it holds."""
    slots: dict[int, dict[str, int]] = defaultdict(dict)
    models: dict[int, str] = {}
    rows = AllocationSlot.objects.filter(released_at=None).values_list("allocation__run_id", "gpu__uuid", "gpu__model")
    for (run, uuid, model), count in Counter(rows).items():
        slots[run][uuid] = count
        models.setdefault(run, model)
    found = _held(*_HELD)
    asks = _asks([row["run__job_id"] for row in found if _may_go_on(row)], past)
    return tuple(
        _running(
            row, slots[row["run_id"]], _likely(row, now, past), _going_on(asks.get(row["run__job_id"]), row, now),
            model=models.get(row["run_id"], ""),
        )
        for row in found
    )  # fmt: skip


# What of them `_likely` looks at.
_ENDING = (
    "run_id", "created_at", "run__deadline", "run__job__owner_id", "run__job__image", "run__job__name",
    "run__job__limit_seconds",
)  # fmt: skip


def likely_ends(now: datetime, past: Past) -> dict[int, tuple[datetime, datetime]]:
    """Live run → when it should end, early and late, as in `running`."""
    ends = {row["run_id"]: _likely(row, now, past) for row in _held(*_ENDING)}
    return {run: end for run, end in ends.items() if end is not None}


def _held(*columns: str) -> list[dict[str, Any]]:
    """What is held now, with `more`: what time its run was last given in addition."""
    given = JobEvent.objects.filter(kind="EXTENDED", run=OuterRef("run")).order_by("-pk").values("params")
    held = Allocation.objects.filter(released_at=None).order_by("pk")
    return list(held.values(*columns, more=Subquery(given[:1])))


def _may_go_on(held: Mapping[str, Any]) -> bool:
    """Whether the run may be moved: then what its job asked for matters."""
    return bool(held["run__job__movable"]) or held["run__wish"] == Wish.REBIND


def _asks(jobs: Sequence[int], past: Past) -> dict[int, Waiting]:
    rows = Job.objects.filter(pk__in=jobs).order_by().values("pk", *_MORE, *_COLUMNS) if jobs else ()
    return {row["pk"]: _waiting(row, past) for row in rows}


def _going_on(ask: Waiting | None, held: Mapping[str, Any], now: datetime) -> Waiting | None:
    """What the job of a run would ask for, should it go on elsewhere now."""
    if ask is None:
        return None
    deadline: datetime | None = held["run__deadline"]
    ask = replace(ask, begun=True, moved=True)
    return ask if deadline is None else _with_rest(ask, (deadline - now).total_seconds())


def _likely(held: Mapping[str, Any], now: datetime, past: Past) -> tuple[datetime, datetime] | None:
    """When the run should end: by how its owner has extended it, else by its likes."""
    if held["more"] is not None and held["run__deadline"] is not None:
        return extended(held["run__deadline"], held["more"]["seconds"], now)
    like = Like(
        held["run__job__owner_id"], held["run__job__image"], held["run__job__name"], held["run__job__limit_seconds"]
    )
    return past.ends(like, since=held["created_at"], now=now)


def _running(
    held: Mapping[str, Any], slots: Mapping[str, int], expected: tuple[datetime, datetime] | None,
    ask: Waiting | None, *, model: str,
) -> Running:  # fmt: skip
    return Running(
        run=held["run_id"], job=held["run__job_id"], user=held["user_id"], team=held["team_id"],
        priority=held["run__job__priority"], node=held["node__name"], gpus=held["gpus"], slots=slots,
        millicpus=held["millicpus"], memory_mib=held["memory_mib"], since=held["run__started_at"] or held["created_at"],
        ends_by=_ends_by(held), likely=expected, gpu_milli=held["gpu_milli"] if held["gpus"] == 1 else WHOLE,
        preemptible=held["run__job__preemptible"], stopping=bool(held["run__wish"]),
        makes_way_for=held["run__makes_way_for_id"], interactive=held["run__job__interactive"],
        movable=held["run__job__movable"], goes_on=held["run__wish"] == Wish.REBIND, model=model, ask=ask,
    )  # fmt: skip


def _ends_by(held: Mapping[str, Any]) -> datetime | None:
    """By when its limit ends it: as a run that has not started could still use all of it."""
    deadline: datetime | None = held["run__deadline"]
    limit: int | None = held["run__job__limit_seconds"]
    if deadline is not None or limit is None:
        return deadline
    placed: datetime = held["run__placed_at"]
    return placed + timedelta(seconds=limit)


def _holders(by_user: bool, by_admin: bool, by_image: bool) -> tuple[str, ...]:
    return tuple(who for who, holds in (("user", by_user), ("admin", by_admin), ("image", by_image)) if holds)


def nodes(now: datetime, held: Iterable[Running]) -> tuple[Node, ...]:
    """Every host with its GPUs, what is allocated there, and why it is closed, if it is."""
    hosts = {row.pk: row for row in NodeRow.objects.filter(left_at=None)}
    gpus: dict[int, list[GPU]] = defaultdict(list)
    for gpu in GPU.objects.exclude(health=GPU.Health.SPLIT).order_by("node_id", "index"):
        if gpu.node_id in hosts:  # else its host has come just now
            gpu.node = hosts[gpu.node_id]
            gpus[gpu.node_id].append(gpu)
    taken: Counter[str] = Counter()
    used: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for run in held:
        taken.update(run.slots)
        used[run.node][0] += run.millicpus
        used[run.node][1] += run.memory_mib
    return tuple(_node(row, gpus[row.pk], taken, used[row.name], now) for row in hosts.values())


def hardware(now: datetime) -> tuple[Node, ...]:
    """Every host as if nothing ran there; empty as long as one of them has not told what it has.

    At most `TERMS_REREAD` seconds old: each submission asks.
    """
    if time.monotonic() - _kept.seen_at >= settings.TERMS_REREAD:
        _kept.hardware, _kept.seen_at = _read_hardware(now), time.monotonic()
    return _kept.hardware


def _read_hardware(now: datetime) -> tuple[Node, ...]:
    if NodeRow.objects.filter(left_at=None).filter(Q(millicpus=0) | Q(gpu_status=NodeRow.GpuStatus.UNKNOWN)).exists():
        return ()
    return nodes(now, ())


def _node(row: NodeRow, gpus: Iterable[GPU], taken: Counter[str], used: list[int], now: datetime) -> Node:
    return Node(
        name=row.name,
        millicpus=max(row.millicpus - row.reserved_millicpus, 0),
        memory_mib=max(row.memory_mib - row.reserved_memory_mib, 0),
        used_millicpus=used[0],
        used_memory_mib=used[1],
        gpus=tuple(_gpu(gpu, taken[gpu.uuid], now) for gpu in gpus),
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
    """Why a host takes no new job: silent or gone, cordoned, its engine or driver does not work. None: it does."""
    if row.left_at is not None or not row.is_alive(now):
        return {"code": "NODES_SILENT", "nodes": [row.name]}
    if row.declared_dead_at is not None:
        return {"code": "NODES_RETURNING", "nodes": [row.name]}
    if row.cordoned:
        return cordoned(row)
    if row.engine_error:
        return {"code": "ENGINE", "node": row.name, "message": row.engine_error[:200]}
    if row.gpu_status in SICK_DRIVER:
        return {"code": "DRIVER", "node": row.name, "status": row.gpu_status}
    return full(row)


def full(row: NodeRow) -> Reason | None:
    """That one of a host's disks has no room for jobs."""
    disk = row.full_disk()
    if disk is None:
        return None
    return {"code": "DISK", "node": row.name, "path": disk["path"], "least_mib": settings.DISK_RESERVE_MIB}


def cordoned(row: NodeRow) -> Reason:
    """That an admin has closed the host, and what was written down as the reason, if anything."""
    why = {"why": {row.name: row.cordon_reason}} if row.cordon_reason else {}
    return {"code": "NODES_CORDONED", "nodes": [row.name], **why}
