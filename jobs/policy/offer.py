"""Placement alone: tasks are offered one by one to hosts, placed at once or dropped, and never end. Pure.

The placing is the scheduler's own: `place.choose` over the account of a pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jobs.policy import meters, place
from jobs.policy.account import Account
from jobs.policy.explain import why_not
from jobs.policy.hardware import Hardware
from jobs.policy.ledger import charged
from jobs.policy.replay import NAMED
from jobs.policy.view import WHOLE, Reason, Snapshot, Waiting

MARKS = 100  # points of the curve


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What came of it. Shares are parts of all GPUs that are there."""

    tasks: int
    placed: int
    gpus: float
    asked: float  # share of GPUs asked for altogether; may be above one
    allocated: float  # share of GPUs given
    curve: tuple[tuple[float, float], ...]  # share asked so far, share allocated then
    fragmentation: float | None  # as in `meters.Report`, at the end
    dropped: tuple[int, ...] = ()  # the jobs that did not fit, in the order offered
    never: tuple[tuple[int, Reason], ...] = ()  # the first of them, each with what was in the way when it was offered


def offer(jobs: Sequence[Waiting], picture: Snapshot, *, progress: Callable[[float], None] | None = None) -> Offered:
    """Offer the jobs in this order. The first of them is the first to be placed."""
    account = Account(replace(picture, waiting=tuple(jobs)))  # whose shapes say what is scarce
    whole = sum(1 for node in picture.nodes for gpu in node.gpus if gpu.unavailable is None) * WHOLE or 1
    asked = given = placed = 0
    curve, dropped, never = list[tuple[float, float]](), list[int](), list[tuple[int, Reason]]()
    for number, job in enumerate(jobs, 1):
        asked += job.milli_of()
        ledger = place.choose(job, account.fleet)
        if ledger is not None:
            gpus = account.fleet.take(ledger, job)
            given += charged(job, gpus).milli_of(len(gpus))
            placed += 1
        else:
            dropped.append(job.id)
            if len(never) < NAMED:
                never.append((job.id, why_not(job, Hardware(account.nodes))))
        if number * MARKS // len(jobs) > (number - 1) * MARKS // len(jobs):
            curve.append((asked / whole, given / whole))
            if progress is not None:
                progress(number / len(jobs))
    return Offered(
        tasks=len(jobs), placed=placed, gpus=whole / WHOLE, asked=asked / whole, allocated=given / whole,
        curve=tuple(curve), fragmentation=_fragmentation(account, jobs, whole / WHOLE),
        dropped=tuple(dropped), never=tuple(never),
    )  # fmt: skip


def _fragmentation(account: Account, jobs: Sequence[Waiting], gpus: float) -> float | None:
    shapes = meters.usual(jobs)
    return sum(meters.wasted(ledger, shapes) for ledger in account.nodes) / gpus if shapes else None
