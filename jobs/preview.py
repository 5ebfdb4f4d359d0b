"""What would happen if the button were pressed: asked of the same policy that decides later."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from django.utils import timezone

from jobs import borrowing, estimates, snapshot, usage
from jobs.board import in_line
from jobs.borrowing import Loan
from jobs.models import Cluster, Team
from jobs.policy import Expected, Reason, make_plan
from jobs.policy.explain import NEVER
from jobs.policy.kinds import Kinds
from jobs.policy.turns import whole
from jobs.quotas import WHOLE, Refusal
from jobs.request import JobRequest
from jobs.submit import beyond_limits, build


@dataclass(frozen=True, kw_only=True)
class Preview:
    """`verdict`: starts now on `node`; waits for `reasons` at `position` of the queue; or never, and why."""

    verdict: Literal["now", "waits", "never"]
    node: str = ""
    gpus: int = 0  # of an elastic job: how many there are for it now
    reasons: tuple[Reason, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    position: int = 0  # among those that could start now; 0: it is not to start before some time
    loan: Loan | None = None  # what of it would be borrowed from other teams
    gpu_milli: int = WHOLE  # what a share of one GPU is charged: the slots it takes, at least
    expected: Expected | None = None  # None: it starts now, or never, or nobody can say


def preview(request: JobRequest, *, owner: Any, team: Team) -> Preview:
    """Plan with the job as if it were in the queue; nothing is stored. The request must have no problems."""
    limits = usage.limits_of(owner, team)
    job = build(request, owner=owner, team=team)
    now = timezone.now()
    picture = snapshot.take(now, cluster=Cluster.get(), extra=[job])
    hosts = Kinds(snapshot.hardware(now))
    refusals = tuple(beyond_limits(job, hosts, *limits))
    milli = job.gpu_milli = hosts.charged(snapshot.waiting(job)).gpu_milli
    plan = make_plan(picture)
    placed = next((p for p in plan.placements if p.job == 0), None)
    if placed is not None and not refusals:
        count = len(placed.gpu_uuids)
        loan = borrowing.of_job(job, count)
        return Preview(verdict="now", node=placed.node, gpus=count, loan=loan, gpu_milli=milli)
    reasons = tuple(map(_not_yet, plan.reasons.get(0, ())))
    if refusals or any(reason["code"] in NEVER for reason in reasons):
        return Preview(verdict="never", reasons=tuple(_beside(refusals, reasons)), refusals=refusals, gpu_milli=milli)
    ahead = {p.job for p in plan.placements}
    line = [w.id for w in whole(picture) if w.id not in ahead and in_line(w, now)]
    planned = estimates.planned(picture, plan, [0])
    expected = estimates.shown({0: planned[0]}, {0: job.gpus}, now)[0] if 0 in planned else None
    return Preview(
        verdict="waits", reasons=reasons, position=line.index(0) + 1 if 0 in line else 0, expected=expected,
        loan=borrowing.of_job(job, job.gpus), gpu_milli=milli,
    )  # fmt: skip


def _not_yet(reason: Reason) -> Reason:
    """Of a job that nobody has submitted: nothing happens for it yet."""
    return {**reason, "code": "WOULD_MAKE_WAY"} if reason["code"] == "MAKING_WAY" else reason


def _beside(refusals: tuple[Refusal, ...], reasons: Iterable[Reason]) -> Iterator[Reason]:
    """What is to be said besides the refusals: not the same again, nor what would fit if the limits allowed it."""
    refused = {refusal.code for refusal in refusals}
    for reason in reasons:
        if reason["code"] not in refused and not (refused and reason["code"].startswith("FITS_")):
            yield reason
