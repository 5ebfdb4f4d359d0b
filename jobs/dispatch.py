"""One scheduling pass: snapshot → plan → commit → enqueue → announce.

One pass at a time by a lease in the database; a second scheduler waits, or takes over when the lease runs
out. Even two passes at once could not give a GPU twice: placing compares, swaps and has a constraint.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Max, Q, Sum
from django.utils import timezone

from gpus.availability import why_unavailable
from gpus.models import GPU
from gpus.models import Node as NodeRow
from jobs import announce, estimates, makeroom, passmeter, quotas, snapshot, usage
from jobs.control import revoke
from jobs.images import Allowed
from jobs.models import Allocation, AllocationSlot, Cluster, Job, Run
from jobs.policy import Placement, Plan, Reason, Snapshot, Waiting, make_plan
from jobs.policy.view import WHOLE, changed
from jobs.queues import send_launch
from jobs.states import EndReason, JobState, RunState
from portal import logs

log = logging.getLogger(__name__)
_turn = threading.Lock()  # within a process the lease is one owner's: the timer and the worker wait for each other


BREATH = 0.02  # seconds at most that a pass which found no room leaves until the next,
FLOOD_PART = 0.2  # and where nothing but more jobs asks for that: such passes take so much of the time at most,
FLOOD_BREATH = 0.25  # but leave no more than seconds
TELL_PERIOD = 0.5  # seconds at least between two passes that also work out why jobs wait and how long,
TELL_PART = 0.06  # which costs most of a pass: so much of the time at most,
TELL_WITHIN = 3.0  # but seconds at most


class _Last:
    """This process's last pass, by the monotonic clock."""

    ended = 0.0
    took = 0.0  # 0 when it was not in vain
    told = float("-inf")
    pause = TELL_PERIOD  # until the next pass that tells
    untold = threading.Event()  # a pass after the last that told may have changed what is true


_last = _Last()


@dataclass(frozen=True)
class Result:
    placed: int
    waiting: int


def breathe(is_urgent: Callable[[], bool]) -> None:
    """After a pass that found no room, leave some time: a flood of wishes then shares the next one.

    Jobs that are only added find no room either, most likely; what is urgent may have made some.
    """
    time.sleep(max(_last.ended + min(_last.took, BREATH) - time.monotonic(), 0))
    until = _last.ended + min(_last.took / FLOOD_PART, FLOOD_BREATH)
    while (left := until - time.monotonic()) > 0 and not is_urgent():
        time.sleep(min(left, BREATH))


def run_pass(*, owner: str = "", tell: bool = True) -> Result | None:
    """QUEUED jobs become PLACED, or learn why not. None when another scheduler has its turn.

    Without `tell` those that wait learn nothing yet: some pass is to tell them soon, see `rest`.
    """
    with _turn:
        begun = time.monotonic()
        if tell:
            _last.untold.clear()
        result = _pass(owner or f"{socket.gethostname()}.{os.getpid()}", tell=tell)
        _last.ended = time.monotonic()
        took = _last.ended - begun
        if tell:
            _last.told = _last.ended
            _last.pause = min(max(took / TELL_PART, TELL_PERIOD), TELL_WITHIN)
        elif result is not None and result.waiting:
            _last.untold.set()
        in_vain = result is None or (result.waiting and not result.placed)
        _last.took = took if in_vain else 0
    if result is not None:
        passmeter.note(took, full=tell)  # Redis may be slow: nobody else waits for that
    return result


def run_brief_pass() -> Result | None:
    """A pass that tells those who wait only when the last one that did is long enough ago."""
    return run_pass(tell=time.monotonic() - _last.told >= _last.pause)


def rest(seconds: float) -> None:
    """Wait so long, and tell those who wait meanwhile what brief passes have left untold."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and _last.untold.wait(left):
        time.sleep(_last.pause)
        run_pass()


def _pass(owner: str, *, tell: bool) -> Result | None:
    cluster, now = Cluster.get(), timezone.now()
    if not _take_lease(owner, now):
        return None
    try:
        picture = snapshot.take(now, cluster=cluster, brief=not tell)
        if not picture.waiting:
            return Result(placed=0, waiting=0)
        plan, told = _plan(picture, tell=tell)
        jobs = {job.id: job for job in picture.waiting}
        refused = [placed.job for placed in plan.placements if _commit(placed, jobs[placed.job]) is None]
        makeroom.make_room(plan)
        if told:
            _write_reasons(picture, plan)
        _write_refused(refused)
        started = len(plan.placements) - len(refused)
        return Result(placed=started, waiting=len(plan.reasons) + len(refused))
    finally:
        _give_lease_back(owner)


def _plan(picture: Snapshot, *, tell: bool) -> tuple[Plan, bool]:
    """The plan, and whether it tells those that wait. Where that fails, what it starts must not wait for the mend."""
    if tell:
        try:
            return make_plan(picture), True
        except Exception:
            log.exception("nobody is told why jobs wait and how long")
    return make_plan(picture, explain=False, expect=()), False


def _take_lease(owner: str, now: datetime) -> bool:
    mine_or_free = Q(scheduler_owner=owner) | Q(scheduler_lease_until=None) | Q(scheduler_lease_until__lt=now)
    until = now + timedelta(seconds=settings.SCHEDULER_LEASE)
    row = Cluster.objects.filter(mine_or_free, pk=1)
    return bool(row.update(scheduler_owner=owner, scheduler_lease_until=until, last_pass_at=now))


def _give_lease_back(owner: str) -> None:
    Cluster.objects.filter(pk=1, scheduler_owner=owner).update(scheduler_lease_until=None)


def _commit(placement: Placement, planned: Waiting) -> Run | None:
    """QUEUED → PLACED with a run and its allocation, or None when the picture was out of date: next pass.

    `planned` is the job in that picture.
    """
    try:
        with logs.about(job=placement.job), transaction.atomic():
            run = _place(placement, planned)
            if run is not None:
                node, pk = placement.node, run.pk
                transaction.on_commit(lambda: send_launch(node, pk), robust=True)
            return run
    except IntegrityError as error:
        log.info("job %d: its GPUs went elsewhere meanwhile: %s", placement.job, error)
        return None


def _place(placement: Placement, planned: Waiting) -> Run | None:
    """Decide again under locks, by what is true now: quotas, room, GPUs, the job's own state."""
    cluster = Cluster.objects.select_for_update(no_key=True).get(pk=1)  # all placing waits in line
    now = timezone.now()
    node = NodeRow.objects.select_for_update(no_key=True).get(name=placement.node)
    rows = Job.objects.select_related("owner", "team").select_for_update(no_key=True, of=("self",))
    job = rows.get(pk=placement.job)
    gpus = list(node.gpus.filter(uuid__in=placement.gpu_uuids).order_by("index"))
    if not Allowed(cluster.image_patterns)(job.image) or _was_amended(job, planned):
        return None
    slots = _slots(job, gpus)
    if slots is None or any(why_unavailable(gpu, now) for gpu in gpus) or not _has_room(node, job):
        return None
    job.gpus = len(gpus)  # an elastic job is charged for what it gets; its row keeps what it could use
    job.least_gpus = None
    if job.gpu_milli < WHOLE:  # a share is charged for the slots that it takes
        job.gpu_milli = sum(quotas.milli_of_slots(len(taken), gpu.slots) for gpu, taken in slots)
    if snapshot.why_closed(node, now) is not None or _over_quota(job, gpus, now):
        return None
    run = _allocate(job, node, slots, now)
    moved = job.advance(
        JobState.QUEUED, JobState.PLACED, run=run, event="PLACED", wait_reasons=[], blocked_since=None, avoid_gpus=[],
        params={"node": node.name, "gpus": [gpu.index for gpu in gpus]}, expected_earliest=None, expected_latest=None,
    )  # fmt: skip
    estimates.started(job.pk, now)
    if not moved:
        transaction.set_rollback(True)  # cancelled or held meanwhile: nothing of this may stay
        return None
    return run


def _was_amended(job: Job, planned: Waiting) -> bool:
    """Whether it asks for something else than was planned for: its owner was told that this holds.

    What it avoids is not amended, and the picture forgets it where nothing else would do. One that is moved goes on
    with the rest of its limit.
    """
    if changed(snapshot.waiting(job), avoid=planned.avoid).shape != planned.shape:
        return True
    return job.limit_seconds != planned.limit_seconds and not planned.moved


def _allocate(job: Job, node: NodeRow, slots: Iterable[tuple[GPU, Sequence[int]]], now: datetime) -> Run:
    """The job's next run, PLACED, with all that it holds."""
    run = Run.objects.create(
        job=job, node=node, placed_at=now, number=(job.runs.aggregate(n=Max("number"))["n"] or 0) + 1
    )
    allocation = Allocation.objects.create(
        run=run, node=node, user_id=job.owner_id, team_id=job.team_id, gpus=job.gpus,
        gpu_milli=quotas.milli(job.gpus, job.gpu_milli), millicpus=job.millicpus, memory_mib=job.memory_mib,
        created_at=now,
    )  # fmt: skip
    AllocationSlot.objects.bulk_create(
        AllocationSlot(allocation=allocation, gpu=gpu, slot=slot) for gpu, taken in slots for slot in taken
    )
    return run


def _slots(job: Job, gpus: list[GPU]) -> list[tuple[GPU, Sequence[int]]] | None:
    """Each GPU with the slots of it that the job takes: all of them, or of a shared one as many as its share needs.

    None when the GPUs are not what the job asks for, or its share is not, or no longer, to be had.
    """
    least = job.gpus if job.least_gpus is None else job.least_gpus
    if not least <= len(gpus) <= job.gpus or any(gpu.profile != job.gpu_profile for gpu in gpus):
        return None
    if job.gpu_milli == WHOLE or not gpus:
        return [(gpu, range(gpu.slots)) for gpu in gpus]
    (gpu,) = gpus
    if gpu.slots == 1:
        return None
    held = AllocationSlot.objects.filter(gpu=gpu, released_at=None).values_list("slot", flat=True)
    free = sorted(set(range(gpu.slots)) - set(held))
    needed = quotas.slots_needed(job.gpu_milli, gpu.slots)
    return [(gpu, free[:needed])] if needed <= len(free) else None


def _over_quota(job: Job, gpus: Sequence[GPU], now: datetime) -> bool:
    limits = usage.limits_of(job.owner, job.team)
    asked = partial(quotas.still_asked, begun=bool(job.end_reason), moved=job.end_reason == EndReason.REBOUND)
    if asked(quotas.never(job, *limits)):
        return True
    if not any(level.counts for level in limits):
        return False
    levels = usage.levels_under(limits, job.owner, job.team, now)
    given = usage.by_model(quotas.milli(job.gpus, job.gpu_milli), [gpu.model for gpu in gpus])
    return bool(asked(quotas.start(job, *levels)) or quotas.above_models(given, *levels))


def _has_room(node: NodeRow, job: Job) -> bool:
    used = Allocation.objects.filter(node=node, released_at=None).aggregate(c=Sum("millicpus"), m=Sum("memory_mib"))
    return (
        job.millicpus + (used["c"] or 0) <= node.millicpus - node.reserved_millicpus
        and job.memory_mib + (used["m"] or 0) <= node.memory_mib - node.reserved_memory_mib
    )


def _write_reasons(picture: Snapshot, plan: Plan) -> None:
    """Write only what changed, in one transaction."""
    expected = estimates.planned(picture, plan)
    rows = Job.objects.filter(pk__in=plan.reasons).order_by()
    told, ranges = dict[int, list[Reason]](), dict[int, estimates.Range]()
    for pk, reasons, earliest, latest in rows.values_list("pk", "wait_reasons", "expected_earliest", "expected_latest"):
        told[pk], ranges[pk] = reasons, (earliest, latest)
    with transaction.atomic():
        for job in picture.waiting:
            if job.id not in told:
                continue
            reasons = list(plan.reasons[job.id])
            since = (job.blocked_since or picture.now) if job.id in plan.blocked else None
            if told[job.id] == reasons and job.blocked_since == since:
                continue
            Job.objects.filter(pk=job.id, state__in=[JobState.QUEUED, JobState.HELD]).update(
                wait_reasons=reasons, blocked_since=since
            )
            announce.job_changed(job.id)
        estimates.write(expected, ranges, picture.waiting, picture.now)
        _write_kept(plan)


def _write_refused(jobs: Iterable[int]) -> None:
    """Of jobs that were to start and could not: the next pass tells more, but none waits without any word."""
    for pk in jobs:
        unaware = Job.objects.filter(pk=pk, state=JobState.QUEUED, wait_reasons=[])
        if unaware.update(wait_reasons=[{"code": "BUSY_TOGETHER"}]):
            announce.job_changed(pk)


def _write_kept(plan: Plan) -> None:
    """Which hosts are kept for which jobs, for people: the next pass finds that out anew."""
    nodes = dict(NodeRow.objects.values_list("name", "pk")) if plan.reservations else {}
    wanted = {kept.job: (nodes[kept.node], kept.at) for kept in plan.reservations}
    rows = Job.objects.filter(state=JobState.QUEUED, kept_node__isnull=False).order_by()
    told = {pk: (node, at) for pk, node, at in rows.values_list("pk", "kept_node_id", "kept_from")}
    Job.objects.filter(pk__in=told.keys() - wanted.keys()).update(kept_node=None, kept_from=None)
    for pk, (node, at) in wanted.items():
        if told.get(pk) != (node, at):
            Job.objects.filter(pk=pk, state=JobState.QUEUED).update(kept_node=node, kept_from=at)


def resend_lost_starts(now: datetime) -> int:
    """Enqueue again the start of each run that was placed a while ago and not taken up: its message was lost."""
    late = now - timedelta(seconds=settings.START_RESEND)
    runs = Run.objects.filter(state=RunState.PLACED, placed_at__lt=late).select_related("node")
    for run in runs:
        send_launch(run.node.name, run.pk)
    return len(runs)


def take_back_unbegun(now: datetime) -> int:
    """PLACED → ENDED for each run whose host is silent and did not begin in PLACED_TIMEOUT: its job waits again.

    No engine call has been made for it, and the host, should it come back, finds the run ended and drops it.
    """
    late = now - timedelta(seconds=settings.PLACED_TIMEOUT)
    runs = Run.objects.filter(state=RunState.PLACED, placed_at__lt=late).select_related("node", "job")
    return sum(revoke(run, EndReason.START_TIMEOUT) for run in runs if not run.node.is_alive(now))
