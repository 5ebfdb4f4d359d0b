"""Runs whose GPUs do nothing: told to who may see them and by e-mail to the owner, and stopped only where
IDLE_STOP_AFTER says so.

Only what was read counts: of a GPU that tells no load (a MIG instance, a driver that cannot) nobody knows that it is
idle. The load of a shared GPU is that of all who share it: when it does nothing, none of them does.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.conf import settings

from gpus.minutes import BUSY_PERCENT
from gpus.models import GPUMinute
from jobs.control import wish
from jobs.models import AllocationSlot, Run
from jobs.queues import send_idle_mail
from jobs.states import RunState, Wish
from jobs.watch import take_back, warn

MINUTE = timedelta(minutes=1)
_TOLD = 0.9  # of the time, at least, must a load have been told before a GPU is called idle

Load = tuple[datetime, float | None]  # a minute's start, and the mean load in percent; None: not known


@dataclass(frozen=True)
class Idleness:
    """Of a run: "idle" since a time; "works", when one of its GPUs does; or "unknown"."""

    state: Literal["idle", "works", "unknown"]
    since: datetime | None = None


def watch_idle(node_name: str, now: datetime) -> None:
    """Warn of each running run of a node whose GPUs have all been idle for IDLE_AFTER; unwarn those that work again.

    Where IDLE_STOP_AFTER is on, raise IDLE_RECLAIM on a run so long after its warning, which tells when.
    """
    gpus_of = _holdings(node_name, now)
    loads = _loads({gpu for gpus in gpus_of.values() for gpu in gpus}, now)
    for run, gpus in gpus_of.items():
        found = idleness([loads[gpu] for gpu in gpus], run.started_at or now, settings.IDLE_AFTER)
        if found.state == "works":
            if run.idle_warning is not None:
                take_back(run, Run.IDLE, "WORKS_AGAIN")
        elif found.state == "idle" and found.since is not None:
            _tell(run, found.since, now)


def idleness(gpus: Iterable[Iterable[Load]], started_at: datetime, seconds: float) -> Idleness:
    """What the minutes of a run's GPUs, oldest first, say; `seconds` is how long all must have been idle."""
    firsts: list[datetime | None] = []
    for minutes in gpus:
        told = [(minute, load) for minute, load in minutes if load is not None and minute >= started_at - MINUTE]
        if any(load >= BUSY_PERCENT for minute, load in told if minute >= started_at):
            return Idleness("works")
        if len(told) < _TOLD * seconds / 60:
            firsts.append(None)
        else:
            firsts.append(max(told[0][0], started_at))
    known = [first for first in firsts if first is not None]
    return Idleness("idle", min(known)) if known and len(known) == len(firsts) else Idleness("unknown")


def _holdings(node_name: str, now: datetime) -> dict[Run, list[int]]:
    """Keys of the GPUs of each run that has run for long enough."""
    slots = AllocationSlot.objects.filter(
        released_at=None, allocation__node__name=node_name, allocation__run__state=RunState.RUNNING,
        allocation__run__started_at__lte=now - timedelta(seconds=settings.IDLE_AFTER),
    )  # fmt: skip
    found: dict[Run, list[int]] = defaultdict(list)
    for slot in slots.select_related("allocation__run__job", "allocation__run__node"):
        found[slot.allocation.run].append(slot.gpu_id)
    return found


def _loads(gpus: Iterable[int], now: datetime) -> dict[int, list[Load]]:
    """The minutes of about the last IDLE_AFTER; the newest is written a moment after its end."""
    since = now - timedelta(seconds=settings.IDLE_AFTER) - 2 * MINUTE
    rows = GPUMinute.objects.filter(gpu__in=gpus, minute__gte=since, minute__lte=now).order_by("minute")
    found: dict[int, list[Load]] = defaultdict(list)
    for gpu, minute, load in rows.values_list("gpu", "minute", "utilisation"):
        found[gpu].append((minute, load))
    return found


def _tell(run: Run, since: datetime, now: datetime) -> None:
    known = run.idle_warning
    after = settings.IDLE_STOP_AFTER
    if known is not None and bool(known["stops_at"]) != bool(after):  # it was switched on or off meanwhile
        since = datetime.fromisoformat(known["since"])
        take_back(run, Run.IDLE, None)
        known = None
    stops_at = now + timedelta(seconds=after) if after else None
    if known is None:
        if warn(run, Run.IDLE, since=since.isoformat(), stops_at=stops_at.isoformat() if stops_at else None):
            send_idle_mail(run.pk)
    elif known["stops_at"] and datetime.fromisoformat(known["stops_at"]) <= now:
        wish(run, Wish.IDLE_RECLAIM)
