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
        self._fits_now: dict[object, bool] = {}

    def alike(self, job: Waiting) -> object:
        """Jobs for which this is the same fit alike: one shape, done before the same reservations, and none kept."""
        limit = job.limit_seconds
        in_time_for = 0 if limit is None else len(self.untils) - bisect_left(self.untils, limit)
        return job.shape, in_time_for, job.id if job.id in self._kept_for else None

    def fits(self, job: Waiting) -> bool:
        """Whether the job could start now."""
        return self.fits_beside(job) or any(ledger.fits(job) for ledger in self.kept_with_room(job))

    def fits_beside(self, job: Waiting) -> bool:
        """Whether it could on one of the nodes that are kept for nobody; jobs of one shape fit alike there."""
        found = self._fits_now.get(job.shape)
        if found is None:
            found = self._hardware.might_fit(job) and any(here.kept is None for here in self._fleet.fitting(job))
            self._fits_now[job.shape] = found
        return found

    def kept_with_room(self, job: Waiting) -> list[Ledger]:
        """The nodes that have room for the job, but keep it, perhaps for another."""
        found = self._kept_with_room.get(job.shape)
        if found is None:
            found = self._kept_with_room[job.shape] = [ledger for ledger, bare in self._bare if bare.fits(job)]
        return found
