"""What quotas surely leave to one more job, as a few bounds: most jobs need no closer look. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from jobs.policy.view import WHOLE, Snapshot, Waiting
from jobs.quotas import Limits, Usage

_NOTHING = Usage()
_UNLIMITED = Limits(scope="user", name="")


@dataclass(slots=True)
class Slack:
    """Of one level: the least of all that its limits leave, whatever for; inf where none bounds it."""

    milli: float = inf  # of GPUs, in thousandths, of whatever model
    rest: "_Rest | None" = None  # None: nothing but GPUs is bounded


@dataclass(slots=True)
class _Rest:
    """Of what is not GPUs alone."""

    millicpus: float = inf
    memory_mib: float = inf
    limit_seconds: float = inf
    milli_seconds: float = inf  # thousandths of GPUs, times seconds
    runs: bool = True  # whether one more may run
    interactive: bool = True  # whether one more of those may

    def has_room(self, job: Waiting, asked: int) -> bool:
        seconds = inf if job.limit_seconds is None else job.limit_seconds
        return (
            job.millicpus <= self.millicpus and job.memory_mib <= self.memory_mib
            and seconds <= self.limit_seconds and self.runs and (self.interactive or not job.interactive)
            and (self.milli_seconds == inf or asked * seconds <= self.milli_seconds)
        )  # fmt: skip


def slack(limits: Limits, usage: Usage) -> Slack:
    milli = inf if limits.gpus is None else _left(limits.gpus * WHOLE, usage.gpu_milli)
    if limits.job_gpus is not None:
        milli = min(milli, limits.job_gpus * WHOLE)
    for model, most in limits.gpus_by_model.items():
        milli = min(milli, _left(most * WHOLE, usage.milli_by_model.get(model, 0)))
    return Slack(milli, None if limits.of_gpus_alone else _rest(limits, usage))


def _rest(limits: Limits, usage: Usage) -> _Rest:
    found = _Rest()
    if limits.millicpus is not None:
        found.millicpus = _left(limits.millicpus, usage.millicpus)
    if limits.memory_mib is not None:
        found.memory_mib = _left(limits.memory_mib, usage.memory_mib)
    if limits.limit_seconds is not None:
        found.limit_seconds = limits.limit_seconds
    if limits.gpu_seconds is not None:
        found.milli_seconds = WHOLE * _left(limits.gpu_seconds, usage.gpu_seconds)
    found.runs = limits.running_jobs is None or _left(limits.running_jobs, usage.running_jobs) > 0
    found.interactive = limits.interactive_jobs is None or _left(limits.interactive_jobs, usage.interactive_jobs) > 0
    return found


def _left(limit: int, used: int) -> int:
    return limit - max(used, 0)


class Tight:
    """The users and teams whose quotas may hold jobs back in a pass: not all of theirs could start at once."""

    def __init__(self, snapshot: Snapshot) -> None:
        users, teams = defaultdict[int, int](int), defaultdict[int, int](int)
        for job in snapshot.waiting:
            users[job.user] += job.gpus
            teams[job.team] += job.gpus
        self.users = _tight(snapshot.user_limits, snapshot.user_usage, users)
        self.teams = _tight(snapshot.team_limits, snapshot.team_usage, teams)


def _tight(limits: Mapping[int, Limits], usage: Mapping[int, Usage], gpus: Mapping[int, int]) -> frozenset[int]:
    return frozenset(
        pk for pk, asked in gpus.items()
        if pk in limits and not _is_ample(limits[pk], usage.get(pk, _NOTHING), asked)
    )  # fmt: skip


def _is_ample(limits: Limits, usage: Usage, gpus: int) -> bool:
    """Whether so many GPUs more are within the limits, in jobs of whatever size."""
    if not limits.of_gpus_alone or limits.job_gpus is not None or limits.gpus_by_model:
        return False
    return limits.gpus is None or usage.gpu_milli + gpus * WHOLE <= limits.gpus * WHOLE


class Slacks:
    """Of all users, or all teams: `usage` is read anew at each question."""

    def __init__(self, limits: Mapping[int, Limits], usage: Mapping[int, Usage]) -> None:
        self._limits, self._usage = limits, usage
        self._known: dict[int, tuple[Usage | None, Slack]] = {}

    def have_room(self, pk: int, job: Waiting, asked: int) -> bool:
        """True only where no limit of this one is in the way of the job, now or ever, with so much of GPUs."""
        usage, known = self._usage.get(pk), self._known.get(pk)
        if known is None or known[0] is not usage:
            known = self._known[pk] = usage, slack(self._limits.get(pk, _UNLIMITED), usage or _NOTHING)
        found = known[1]
        return asked <= found.milli and (found.rest is None or found.rest.has_room(job, asked))
