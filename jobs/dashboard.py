"""How one person's things are, and whether there is room."""

import time
from collections import defaultdict
from typing import Any

from django.db.models import Q

from gpus import history
from jobs import formhelp, gpustrip
from jobs.board import in_full, places
from jobs.models import Job, Team
from jobs.states import ENDED, LIVE, WAITING, JobState

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
    held = gpustrip.holders()
    hosts = gpustrip.strip(user, held)
    kinds = [cell.kind for _host, cells in hosts for cell in cells]
    live = list(mine.filter(state__in=LIVE).order_by("-id")[:MOST])
    return {
        "live": live, "sparks": sparks({job.pk for job in live}, held), "waiting": waiting,
        "ended": list(mine.filter(state__in=ENDED, ended_at__isnull=False).order_by("-ended_at", "-id")[:8]),
        "standing": standing, "queued": queued,
        "quotas": [(name, name == "user", bars) for name, level in levels.items()
                   if (bars := formhelp.quota_bars(level))],
        "hosts": hosts, "gpus": len(kinds), "free": kinds.count("free"), "unknown": kinds.count("unknown"),
        "teams": teams,
    }  # fmt: skip


def sparks(jobs: set[int], held: gpustrip.Held) -> dict[int, str]:
    """Job to an SVG path: the mean utilisation of its GPUs since it started, over the last minutes, in 100 by 100."""
    gpus: dict[int, list[str]] = defaultdict(list)
    since: dict[int, float] = {}
    for holder in (holder for holders in held.values() for holder in holders):
        if holder.job in jobs and holder.since is not None:
            gpus[holder.job].append(holder.uuid)
            since[holder.job] = holder.since.timestamp()
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
