"""What the jobs side says of a host: which container may use which GPU. Pure."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One run's hold on one GPU; a run with three GPUs makes three claims, one without GPUs one with no UUID.

    Handed over for every live allocation of the node, from placing on (`container_id` empty until there is
    a container), and for FOREIGN_GRACE after the run's end.
    """

    gpu_uuid: str  # empty: the run has no GPU, only its container is measured
    container_id: str  # 64 hex digits, or empty
    job: int
    run: int
    owner: str
    ended: datetime | None = None  # aware; when the run ended

    def explains(self, at: float, grace: float) -> bool:
        """Whether at `at` (seconds since 1970) this run may still have processes: live, or ended under `grace` ago."""
        return self.ended is None or at - self.ended.timestamp() < grace
