"""How one person's things are, and whether there is room."""

import time
from collections import defaultdict
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from gpus import history
from gpus.availability import why_unavailable
from gpus.models import GPU, Node
from jobs import formhelp
from jobs.access import visible_jobs
from jobs.board import in_full, places
from jobs.models import AllocationSlot, Job, Team
from jobs.snapshot import cordoned
from jobs.states import ENDED, LIVE, WAITING, JobState

Held = dict[int, list[AllocationSlot]]  # by GPU primary key
MOST = 12
SPARK_SECONDS = 600
SPARK_STEP = 10
SPARK_GAP = 2  # steps without a reading that a line may bridge


def dashboard_of(user: Any) -> dict[str, Any]:
    """The template context of a person's dashboard, in a fixed number of queries."""
    mine = in_full(Job.objects.filter(owner=user))
    standing, queued = places(mine.filter(state__in=WAITING).values_list("pk", flat=True))
    foremost = sorted(standing, key=lambda pk: standing[pk])[:MOST]
    waiting = sorted(
        mine.filter(Q(state=JobState.HELD) | Q(pk__in=foremost)).order_by("queued_at"),
        key=lambda job: standing.get(job.pk, queued + 1),
    )[:MOST]
    teams = list(Team.objects.filter(memberships__user=user))
    levels = formhelp.levels_of(user, teams)
    holders = _holders()
    hosts = gpu_strip(user, holders)
    kinds = [cell["kind"] for _host, cells in hosts for cell in cells]
    live = list(mine.filter(state__in=LIVE).order_by("-id")[:MOST])
    return {
        "live": live, "sparks": sparks({job.pk for job in live}, holders), "waiting": waiting,
        "ended": list(mine.filter(state__in=ENDED).order_by("-ended_at", "-id")[:8]),
        "standing": standing, "queued": queued,
        "quotas": [(name, name == "user", bars) for name, level in levels.items()
                   if (bars := formhelp.quota_bars(level))],
        "hosts": hosts, "gpus": len(kinds), "free": kinds.count("free"), "unknown": kinds.count("unknown"),
        "teams": teams,
    }  # fmt: skip


def gpu_strip(user: Any, holders: Held) -> list[tuple[Node, list[dict[str, Any]]]]:
    """Each host with one cell per GPU: `kind` (mine, taken, free, closed, unknown), its jobs, percent busy or None.

    A shared GPU is mine if one of its jobs is; `job` is that one, and `seen` whether the reader may see it.
    """
    now = timezone.now()
    held = {pk: _jobs(slots, user) for pk, slots in holders.items()}
    shown = [job.pk for jobs in held.values() for job in jobs]
    seen = set(visible_jobs(user).filter(pk__in=shown).values_list("pk", flat=True))
    busy = _utilisation()
    gpus = GPU.objects.filter(Q(hidden=False) | Q(pk__in=held)).select_related("node")
    hosts: dict[int, tuple[Node, list[dict[str, Any]]]] = {}
    for gpu in gpus.order_by("node__name", "index"):
        jobs = held.get(gpu.pk, [])
        holder = jobs[0] if jobs else None
        cells = hosts.setdefault(gpu.node_id, (gpu.node, []))[1]
        closed = None if holder else _closed(gpu, now)
        cells.append({
            "gpu": gpu, "job": holder, "jobs": jobs, "seen": holder is not None and holder.pk in seen, "closed": closed,
            "kind": _kind(holder, closed, gpu.uuid in busy, user), "busy": busy.get(gpu.uuid),
        })  # fmt: skip
    return list(hosts.values())


def _closed(gpu: GPU, now: datetime) -> dict[str, Any] | None:
    """Why no job may have the GPU, as a reason to wait."""
    if not gpu.node.is_alive(now):
        return {"code": "NODES_SILENT", "nodes": gpu.node.name}
    if gpu.node.cordoned:
        return cordoned(gpu.node)
    return why_unavailable(gpu, now)


def _kind(holder: Job | None, closed: dict[str, Any] | None, read: bool, user: Any) -> str:
    """Free is only what was read to be free."""
    if holder is not None:
        return "mine" if holder.owner_id == user.pk else "taken"
    if closed and closed["code"] != "GPU_UNSAMPLED":
        return "closed"
    return "unknown" if closed or not read else "free"


def _holders() -> Held:
    """GPU to one slot of each allocation that holds it or a share of it, with its job."""
    slots = AllocationSlot.objects.filter(released_at=None).select_related("gpu", "allocation__run__job__owner")
    found: Held = defaultdict(list)
    for slot in {(slot.gpu_id, slot.allocation_id): slot for slot in slots.order_by("gpu_id", "slot")}.values():
        found[slot.gpu_id].append(slot)
    return found


def _jobs(slots: list[AllocationSlot], user: Any) -> list[Job]:
    """Whose slots they are, the user's own first."""
    return sorted((slot.allocation.run.job for slot in slots), key=lambda job: (job.owner_id != user.pk, job.pk))


def sparks(jobs: set[int], holders: Held) -> dict[int, str]:
    """Job to an SVG path: the mean utilisation of its GPUs since it started, over the last minutes, in 100 by 100."""
    gpus: dict[int, list[str]] = defaultdict(list)
    since: dict[int, float] = {}
    for slot in (slot for slots in holders.values() for slot in slots):
        run = slot.allocation.run
        if run.job_id in jobs and run.started_at is not None:
            gpus[run.job_id].append(slot.gpu.uuid)
            since[run.job_id] = run.started_at.timestamp()
    read = {uuid for uuids in gpus.values() for uuid in uuids}
    found = history.recent_of(sorted(read), SPARK_SECONDS) if read else {}
    lines = {
        job: _line([sample for uuid in uuids for sample in found[uuid] if sample["at"] >= since[job]])
        for job, uuids in gpus.items()
    }
    return {job: line for job, line in lines.items() if line}


def _line(samples: list[dict[str, Any]]) -> str:
    """A path with one point for each 10 s, broken where there are no readings; empty with fewer than two points."""
    now = time.time()
    slots: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.get("utilisation") is not None:
            slots[round((now - sample["at"]) / SPARK_STEP)].append(sample["utilisation"])
    if len(slots) < 2:
        return ""
    last = SPARK_SECONDS / SPARK_STEP
    points, before = [], SPARK_SECONDS  # no slot is that old: the first point begins a line
    for age, values in sorted(slots.items(), reverse=True):
        pen = "L" if before - age <= SPARK_GAP else "M"
        points.append(f"{pen}{100 * (1 - age / last):.1f},{100 - sum(values) / len(values):.0f}")
        before = age
    return "".join(points)


def _utilisation() -> dict[str, int | None]:
    """GPU UUID to its utilisation in percent, of the fresh readings; nothing when Redis is away."""
    found = [history.latest(name) for name in Node.objects.values_list("name", flat=True)]
    readings = [reading for reading in found if time.time() - reading.get("at", 0) <= settings.SAMPLE_FRESH]
    return {gpu["uuid"]: gpu.get("utilisation") for reading in readings for gpu in reading.get("gpus", ())}
