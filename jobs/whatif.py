"""The jobs of the last days played once more, as things are and as an admin would have them, side by side.

Asked by a page, worked out by a process of its own that the scheduler starts, one at a time. Nothing is applied.
A job comes when it was submitted and runs as long as it did; one that runs still is taken to run to its limit.
"""

import dataclasses
import logging
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Q
from django.utils import timezone

from jobs import replays, snapshot, usage
from jobs.models import Cluster, Job, JobEvent, Run, Team, WhatIf
from jobs.policy.changes import Changes
from jobs.policy.meters import Report, Waits, waits
from jobs.policy.replay import Setup, Task, replay
from jobs.policy.view import Share, Snapshot

log = logging.getLogger(__name__)
MOST_JOBS = 10_000  # the newest
MOST_DAYS = 90
SILENT_AFTER = 60  # seconds without a word from who works on it
DAY = 86400.0
Hold = tuple[datetime, datetime | None]  # from, until; None: still


class TookTooLong(Exception):
    """A what-if passed its limit of time."""


# --- asking ---


def ask(changes: Changes, *, days: int, by: Any) -> WhatIf:
    """A question for the scheduler's host to work out."""
    return WhatIf.objects.create(asked_by=by, days=days, changes=changes.as_json())


def start_next(now: datetime) -> "subprocess.Popen[bytes] | None":
    """ASKED → RUNNING for the oldest question, in a process of its own; None when there is none, or one is at work."""
    running = WhatIf.objects.filter(state=WhatIf.State.RUNNING)
    lost = running.filter(Q(heard_at=None) | Q(heard_at__lt=now - timedelta(seconds=SILENT_AFTER)))
    lost.update(state=WhatIf.State.FAILED, message="LOST")
    found = None if running.exists() else WhatIf.objects.filter(state=WhatIf.State.ASKED).order_by("pk").first()
    if found is None or not _take(found.pk, now):
        return None
    return subprocess.Popen([sys.executable, "-m", "django", "whatif", str(found.pk)], cwd=settings.BASE_DIR)


def _take(pk: int, now: datetime) -> bool:
    asked = WhatIf.objects.filter(pk=pk, state=WhatIf.State.ASKED)
    return bool(asked.update(state=WhatIf.State.RUNNING, heard_at=now))


# --- working it out ---


def work_out(pk: int) -> None:
    """RUNNING → DONE with its result, or FAILED with why: TOO_LONG, NO_JOBS, NO_HOSTS or an error's own words."""
    asked = WhatIf.objects.get(pk=pk)
    try:
        result = compare(asked, _Progress(pk).tell)
    except TookTooLong:
        _end(pk, WhatIf.State.FAILED, message="TOO_LONG")
    except Exception as error:
        log.exception("what-if %d failed", pk)
        _end(pk, WhatIf.State.FAILED, message=f"{type(error).__name__}: {error}"[:500])
    else:
        why = str(result.pop("why", ""))
        _end(pk, WhatIf.State.FAILED if why else WhatIf.State.DONE, message=why, result=result, progress=100)


def _end(pk: int, state: str, **changes: Any) -> None:
    WhatIf.objects.filter(pk=pk, state=WhatIf.State.RUNNING).update(state=state, **changes)


class _Progress:
    """Writes the percent about once a second, and ends what takes too long."""

    def __init__(self, pk: int) -> None:
        self.pk = pk
        self.begun = self.written = time.monotonic()

    def tell(self, part: float) -> None:
        now = time.monotonic()
        if now - self.begun > settings.WHAT_IF_TIMEOUT:
            raise TookTooLong
        if now - self.written >= 1:
            self.written = now
            WhatIf.objects.filter(pk=self.pk).update(progress=int(part * 100), heard_at=timezone.now())


def compare(asked: WhatIf, tell: Callable[[float], None]) -> dict[str, Any]:
    """Both replays as JSON: facts and waits as things are (`now`) and with the changes (`then`), and as it was."""
    end = asked.asked_at
    begin = end - timedelta(days=asked.days)
    tasks, actual = history(begin, end)
    changes = Changes.from_json(asked.changes)
    before = picture(begin, tasks)
    after = changes.picture(before)
    if not actual or not before.nodes or not after.nodes:
        return {"why": "NO_HOSTS" if actual else "NO_JOBS"}
    half_life = Cluster.get().half_life_days * DAY
    now = replay(tasks, Setup(picture=before, half_life=half_life), progress=lambda part: tell(part / 2))
    then = replay(
        changes.tasks(tasks), Setup(picture=after, half_life=changes.half_life or half_life),
        progress=lambda part: tell((1 + part) / 2),
    )  # fmt: skip
    names = {task.job.id: task.name for task in tasks}
    teams = dict(Team.objects.values_list("pk", "name"))
    users = dict(get_user_model().objects.filter(pk__in=now.by_user).values_list("pk", "username"))
    return {
        "begin": begin.isoformat(), "end": end.isoformat(), "jobs": len(tasks), "cut": len(tasks) >= MOST_JOBS,
        "actual": _waits(waits(actual)), "now": _facts(now, names), "then": _facts(then, names),
        "teams": _side_by_side(now.by_team, then.by_team, teams),
        "users": _side_by_side(now.by_user, then.by_user, users),
    }  # fmt: skip


def _facts(report: Report, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "waits": _waits(report.waits), "makespan": report.makespan, "utilisation": report.utilisation,
        "fragmentation": report.mean_fragmentation, "preemptions": report.preemptions, "gpus": report.gpus,
        "moves": report.moves,
        "never": report.tasks - report.started,
        "never_first": [{"job": job, "name": names[job], "reason": reason} for job, reason in report.never],
    }  # fmt: skip


def _waits(found: Waits) -> dict[str, Any]:
    return dataclasses.asdict(found)


def _side_by_side(
    now: Mapping[int, Waits], then: Mapping[int, Waits], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """One row for each, by name."""
    rows = [
        {"name": names.get(pk, str(pk)), "now": _waits(now.get(pk, waits(()))), "then": _waits(then.get(pk, waits(())))}
        for pk in now.keys() | then.keys()
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


# --- what is played ---


def picture(begin: datetime, tasks: Iterable[Task]) -> Snapshot:
    """Hosts, limits, shares and rules as they are now, with nothing running."""
    people = {task.job.user for task in tasks}
    cluster, teams = Cluster.get(), list(Team.objects.all())
    team_shares, member_shares = usage.shares(teams, begin, cluster.half_life_days, cluster.weights)
    return Snapshot(
        now=begin, nodes=replays.own_nodes(begin), waiting=(), user_usage={}, team_usage={},
        user_limits=usage.user_limits(get_user_model().objects.filter(pk__in=people)),
        team_limits=usage.team_limits(teams), rules=snapshot.rules(cluster, teams),
        team_shares={team: Share(shares=share.shares) for team, share in team_shares.items()},
        member_shares={both: Share(shares=share.shares) for both, share in member_shares.items()},
    )  # fmt: skip


def history(begin: datetime, end: datetime) -> tuple[list[Task], list[float]]:
    """The jobs submitted between and run, with their true lengths, and how long they really waited, in seconds.

    Those that held something at the begin come then, with the rest of their lengths, and their waits do not count.
    """
    rows = Run.objects.filter(job__created_at__lt=end, placed_at__lt=end).exclude(ended_at__lt=begin)
    rows = rows.order_by("-job_id", "number")
    first, last = dict[int, datetime](), dict[int, tuple[datetime, datetime | None]]()
    for job, placed, ended in rows.values_list("job_id", "placed_at", "ended_at"):
        if job not in first and len(first) == MOST_JOBS:
            break
        first.setdefault(job, placed)
        last[job] = placed, ended
    tasks, actual = list[Task](), list[float]()
    held = holds(first)
    for row in Job.objects.filter(pk__in=first).defer(*Job.BODY):
        task = replace(_task(row, *last[row.pk], begin=begin, end=end), holds=_before(held[row.pk], last[row.pk][0]))
        tasks.append(task)
        if task.counts:
            waited = first[row.pk] - task.job.queued_at
            actual.append(waited.total_seconds() - task.held_for(first[row.pk]))
    return tasks, actual


def holds(jobs: Iterable[int]) -> dict[int, list[Hold]]:
    """When each of the jobs was on hold, by its owner or an admin or both, by the journal."""
    found = defaultdict[int, list[Hold]](list)
    holders = defaultdict[int, set[str]](set)
    events = JobEvent.objects.filter(job__in=list(jobs), kind__in=("HELD", "RELEASED")).order_by("pk")
    for job, kind, by, at in events.values_list("job_id", "kind", "params__by", "at"):
        was = bool(holders[job])
        (holders[job].add if kind == "HELD" else holders[job].discard)(by)
        if not was and holders[job]:
            found[job].append((at, None))
        elif was and not holders[job]:
            found[job][-1] = found[job][-1][0], at
    return found


def _before(found: Iterable[Hold], start: datetime) -> tuple[tuple[datetime, datetime], ...]:
    """The holds that were over when its last run was placed: what came later held back nothing that is played."""
    return tuple((since, min(until or start, start)) for since, until in found if since < start)


def _task(row: Job, placed: datetime, ended: datetime | None, *, begin: datetime, end: datetime) -> Task:
    came = row.created_at if row.start_after is None else max(row.created_at, row.start_after)
    if ended is None:
        limit = row.limit_seconds
        ended = max(end, placed + timedelta(seconds=limit)) if limit is not None else end
    carried = placed < begin
    length = (ended - max(placed, begin)).total_seconds()
    job = replace(
        snapshot.waiting(row), queued_at=begin if carried else came, held_by=(), pinned=False, blocked_since=None,
        moved=False, avoid=frozenset(), start_after=None, yields_to=None,
    )  # fmt: skip
    return Task(
        job=job, seconds=max(length, 0.0), image=row.image, name=row.name, preemptible=row.preemptible,
        movable=row.movable, grace_seconds=row.grace_seconds, counts=not carried and row.created_at >= begin,
    )  # fmt: skip
