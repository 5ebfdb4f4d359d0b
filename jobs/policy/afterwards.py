"""Whether jobs would fit in what a pass has left over, asked thousands of times. Pure."""

from bisect import bisect_left

from jobs.policy.fleet import Fleet
from jobs.policy.hardware import Hardware
from jobs.policy.ledger import Ledger
from jobs.policy.view import Waiting


class Afterwards:
    """A fleet that nothing is given away of any more: what fitted once fits again."""

    def __init__(self, fleet: Fleet, hardware: Hardware) -> None:
        self._fleet, self._hardware = fleet, hardware
        kept = [ledger.kept for ledger in hardware.kept if ledger.kept is not None]
        self.untils = sorted(found.seconds for found in kept if found.seconds is not None)
        self._kept_for = {found.job.id for found in kept}
        self._bare = [(ledger, ledger.copy()) for ledger in hardware.kept]
        self._kept_with_room: dict[object, list[Ledger]] = {}
        self._found: dict[object, bool] = {}

    def alike(self, job: Waiting) -> object:
        """Jobs for which this is the same fit alike: one shape, done before the same reservations, and none kept."""
        limit = job.limit_seconds
        in_time_for = 0 if limit is None else len(self.untils) - bisect_left(self.untils, limit)
        return job.shape, in_time_for, job.id if job.id in self._kept_for else None

    def fits(self, job: Waiting) -> bool:
        """Whether the job could start now."""
        key = self.alike(job)
        if key not in self._found:
            self._found[key] = self._hardware.might_fit(job) and self._fleet.fits_anywhere(job)
        return self._found[key]

    def kept_with_room(self, job: Waiting) -> list[Ledger]:
        """The nodes that have room for the job, but keep it, perhaps for another."""
        if job.shape not in self._kept_with_room:
            self._kept_with_room[job.shape] = [ledger for ledger, bare in self._bare if bare.fits(job)]
        return self._kept_with_room[job.shape]
