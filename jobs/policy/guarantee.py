"""What teams are guaranteed, and what they hold beyond that, in thousandths of GPUs. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from jobs.policy.view import Snapshot, Waiting
from jobs.quotas import WHOLE, Usage, least_milli


class Held(Protocol):
    """A run, as far as borrowing goes."""

    @property
    def team(self) -> int: ...

    @property
    def milli(self) -> int: ...


AnyHeld = TypeVar("AnyHeld", bound=Held)


def borrowed(runs: Sequence[AnyHeld], guaranteed: Callable[[int], int]) -> Iterator[AnyHeld]:
    """The runs that are held beyond what is guaranteed to their teams, of all that hold something, youngest first."""
    held: dict[int, int] = defaultdict(int)
    for run in runs:
        held[run.team] += run.milli
    beyond = {team: milli - guaranteed(team) for team, milli in held.items()}
    for run in runs:
        if 0 < run.milli <= beyond[run.team]:
            beyond[run.team] -= run.milli
            yield run


class Guarantees:
    """The guaranteed GPUs of each team that has some; a team without holds all that it holds borrowed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._milli = {
            team: limits.guaranteed_gpus * WHOLE
            for team, limits in snapshot.team_limits.items() if limits.guaranteed_gpus
        }  # fmt: skip

    @property
    def teams(self) -> Collection[int]:
        """Those that have some."""
        return self._milli.keys()

    def of(self, team: int) -> int:
        return self._milli.get(team, 0)

    def entitled(self, job: Waiting, usage: Usage | None) -> bool:
        """Whether the job's team, with this usage, stays within its guaranteed GPUs when the job starts."""
        guaranteed = self._milli.get(job.team)
        if guaranteed is None:
            return False
        asked = least_milli(job)
        return asked > 0 and (0 if usage is None else usage.gpu_milli) + asked <= guaranteed
