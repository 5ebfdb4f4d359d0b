"""Which GPUs are borrowed from other teams, and may be taken back: for people, by the policy's own rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs import quotas
from jobs.models import Allocation, Cluster, Job, Quota, Run, Team
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
    milli: int


def of_run(run: Run) -> Loan | None:
    """What the live run has borrowed; None where it has not, or no other team is guaranteed GPUs."""
    allocation = run.allocation
    if not allocation.gpu_milli or not _is_lent_to(allocation.team):
        return None
    return _loan(allocation.team, _held(allocation.team), run.pk)


def of_job(job: Job, gpus: int) -> Loan | None:
    """What the job would borrow if it started now with so many GPUs."""
    milli = quotas.milli(gpus, job.gpu_milli)
    if not milli or not _is_lent_to(job.team):
        return None
    return _loan(job.team, [_Held(None, job.team_id, milli), *_held(job.team)], None)


def _is_lent_to(team: Team) -> bool:
    return Quota.objects.filter(team__isnull=False, guaranteed_gpus__gt=0).exclude(team=team).exists()


def _held(team: Team) -> list[_Held]:
    """What the team's runs hold, but for those that are stopped already, youngest first."""
    rows = Allocation.objects.filter(team=team, released_at=None, gpu_milli__gt=0)
    rows = rows.filter(run__wish="", run__makes_way_for=None).order_by("-created_at", "-run_id")
    return [_Held(run, team.pk, milli) for run, milli in rows.values_list("run_id", "gpu_milli")]


def _loan(team: Team, held: Sequence[_Held], run: int | None) -> Loan | None:
    guaranteed = Quota.objects.filter(team=team).values_list("guaranteed_gpus", flat=True).first() or 0
    found = next((one for one in borrowed(held, lambda _team: guaranteed * WHOLE) if one.run == run), None)
    if found is None:
        return None
    protected = Cluster.get().protected_minutes * 60.0
    return Loan(team=team.name, guaranteed=guaranteed, milli=found.milli, protected=protected)
