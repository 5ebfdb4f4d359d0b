"""Which GPUs are borrowed from other teams, and may be taken back: for people, by the policy's own rule."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Coalesce

from jobs import quotas
from jobs.models import Allocation, Cluster, Job, Quota, Run
from jobs.policy.guarantee import borrowed
from jobs.quotas import WHOLE


@dataclass(frozen=True, kw_only=True)
class Loan:
    """What a job holds, or would hold, beyond the `guaranteed` GPUs of its team. `protected` in seconds."""

    team: str
    guaranteed: int
    milli: int
    protected: float


@dataclass(frozen=True)
class _Held:
    run: int | None  # None: would start now
    team: int
    name: str  # of the team
    milli: int


def of_run(run: Run) -> Loan | None:
    """What the live run has borrowed; None where it has not, or no other team is guaranteed GPUs."""
    return of_runs([run.pk]).get(run.pk)


def of_runs(runs: Collection[int]) -> dict[int, Loan]:
    """Those of the live runs, by id, that have borrowed something, with what: three queries however many they are."""
    guaranteed = _guaranteed() if runs else {}
    if not guaranteed:
        return {}
    teams = Allocation.objects.filter(run__in=runs, released_at=None).values("team")
    loans = _loans(_held(team__in=teams), guaranteed)
    return {run: loan for run, loan in loans.items() if run is not None and run in runs}


def of_job(job: Job, gpus: int) -> Loan | None:
    """What the job would borrow if it started now with so many GPUs."""
    milli = quotas.milli(gpus, job.gpu_milli)
    guaranteed = _guaranteed() if milli else {}
    if not guaranteed:
        return None
    held = [_Held(None, job.team_id, job.team.name, milli), *_held(team=job.team)]
    return _loans(held, guaranteed).get(None)


def _guaranteed() -> dict[int, int]:
    """Guaranteed GPUs by team, of those that have some."""
    rows = Quota.objects.filter(team__isnull=False, guaranteed_gpus__gt=0)
    return {team: gpus or 0 for team, gpus in rows.values_list("team_id", "guaranteed_gpus") if team is not None}


def _held(**whose: Any) -> list[_Held]:
    """What runs hold, but for those that are stopped already, youngest first."""
    rows = Allocation.objects.filter(released_at=None, gpu_milli__gt=0, **whose)
    rows = rows.filter(run__wish="", run__makes_way_for=None)
    rows = rows.order_by(Coalesce("run__started_at", "created_at").desc(), "-run_id")  # as in `jobs.snapshot`
    return [_Held(*row) for row in rows.values_list("run_id", "team_id", "team__name", "gpu_milli")]


def _loans(held: Sequence[_Held], guaranteed: dict[int, int]) -> dict[int | None, Loan]:
    """What of it is borrowed: nothing is from a team that alone is guaranteed something."""
    protected = Cluster.get().protected_minutes * 60.0
    return {
        one.run: Loan(team=one.name, guaranteed=guaranteed.get(one.team, 0), milli=one.milli, protected=protected)
        for one in borrowed(held, lambda team: guaranteed.get(team, 0) * WHOLE) if set(guaranteed) - {one.team}
    }  # fmt: skip
