"""What teams are guaranteed, in thousandths of GPUs. Pure."""

from jobs.policy.view import Snapshot, Waiting
from jobs.quotas import WHOLE, least_milli


class Guarantees:
    """The guaranteed GPUs of each team that has some; a team without holds all that it holds borrowed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._milli = {
            team: limits.guaranteed_gpus * WHOLE
            for team, limits in snapshot.team_limits.items() if limits.guaranteed_gpus
        }  # fmt: skip

    def of(self, team: int) -> int:
        return self._milli.get(team, 0)

    def entitled(self, job: Waiting, held_milli: int) -> bool:
        """Whether the job's team, holding so much, stays within its guaranteed GPUs when the job starts."""
        asked = least_milli(job)
        return asked > 0 and held_milli + asked <= self.of(job.team)
