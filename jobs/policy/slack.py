"""What quotas surely leave to one more job, as a few bounds: most jobs need no closer look. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from jobs.policy.view import WHOLE, Waiting
from jobs.quotas import Limits, Usage

_NOTHING = Usage()


@dataclass(slots=True)
class Slack:
    """Of one level: the least of all that its limits leave, whatever for; inf where none bounds it."""

    milli: float = inf  # of GPUs, in thousandths, of whatever model
    millicpus: float = inf
    memory_mib: float = inf
    limit_seconds: float = inf
    milli_seconds: float = inf  # thousandths of GPUs, times seconds
    runs: bool = True  # whether one more may run
    interactive: bool = True  # whether one more of those may

    def has_room(self, job: Waiting, asked: int, seconds: float) -> bool:
        """True only where no limit is in the way of the job, now or ever, with so much of GPUs for so long."""
        return (
            asked <= self.milli and job.millicpus <= self.millicpus and job.memory_mib <= self.memory_mib
            and seconds <= self.limit_seconds and self.runs and (self.interactive or not job.interactive)
            and (self.milli_seconds == inf or asked * seconds <= self.milli_seconds)
        )  # fmt: skip


def slack(limits: Limits, usage: Usage) -> Slack:
    found = Slack()
    if limits.gpus is not None:
        found.milli = _left(limits.gpus * WHOLE, usage.gpu_milli)
    if limits.job_gpus is not None:
        found.milli = min(found.milli, limits.job_gpus * WHOLE)
    for model, most in limits.gpus_by_model.items():
        found.milli = min(found.milli, _left(most * WHOLE, usage.milli_by_model.get(model, 0)))
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


class Slacks:
    """Of all users, or all teams: `usage` is read anew at each question."""

    def __init__(self, limits: Mapping[int, Limits], usage: Mapping[int, Usage]) -> None:
        self._limits, self._usage = limits, usage
        self._known: dict[int, tuple[Usage, Slack]] = {}

    def have_room(self, pk: int, job: Waiting, asked: int, seconds: float) -> bool:
        """As `Slack.has_room`, of this one of them; True where there are no limits."""
        limits = self._limits.get(pk)
        if limits is None:
            return True
        usage = self._usage.get(pk, _NOTHING)
        known = self._known.get(pk)
        if known is None or known[0] is not usage:
            known = self._known[pk] = usage, slack(limits, usage)
        return known[1].has_room(job, asked, seconds)
