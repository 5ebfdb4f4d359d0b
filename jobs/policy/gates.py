"""What holds a job back whatever room there is: holds, pause, start time, quotas, budget. Pure."""

from collections.abc import Iterator
from functools import partial

from jobs.policy.account import Account
from jobs.policy.kinds import Kinds
from jobs.policy.ledger import least, shares
from jobs.policy.slack import Slacks, Tight
from jobs.policy.view import Reason, Snapshot, Waiting, changed
from jobs.quotas import (
    Limits,
    Refusal,
    Usage,
    closed_models,
    least_milli,
    left_by_model,
    most_gpus,
    never,
    start,
    still_asked,
)

Level = tuple[Limits, Usage]

_NOTHING = Usage()


class Gates:
    """The gates of one pass, by what the account says has been given away until the moment of asking."""

    def __init__(self, snapshot: Snapshot, account: Account, kinds: Kinds, tight: Tight) -> None:
        self._snapshot = snapshot
        self._account = account
        self._kinds, self._tight = kinds, tight
        limits = (*snapshot.user_limits.values(), *snapshot.team_limits.values())
        self.by_model = any(limit.gpus_by_model for limit in limits)
        self._slacks = Slacks(snapshot.user_limits, account.users), Slacks(snapshot.team_limits, account.teams)
        self._idle = Slacks(snapshot.user_limits, {}), Slacks(snapshot.team_limits, {})
        self._found_never: dict[object, list[Refusal]] = {}
        self._asked: dict[int, tuple[Usage | None, Usage | None, list[Reason]]] = {}

    def of(self, job: Waiting) -> list[Reason]:
        """Every gate that is shut for the job; empty when nothing but room can hold it back."""
        quotas = [] if self._has_room(job, self._slacks) else self._quotas(job)
        if not job.held_by and job.start_after is None and self._snapshot.paused is None:
            return quotas
        return [*self._holds(job), *self._switches(job), *quotas]

    def _none_is_shut(self, job: Waiting) -> bool:
        """Whether a glance tells, for all of the pass, that nothing but room can hold the job back."""
        tight = self._tight
        return (
            job.user not in tight.users and job.team not in tight.teams
            and not job.held_by and job.start_after is None and self._snapshot.paused is None
        )  # fmt: skip

    def again(self, job: Waiting) -> list[Reason]:
        """As `of`, worked out anew only if a user or team with tight quotas was charged since it was last asked."""
        if self._none_is_shut(job):
            return []
        tight, account = self._tight, self._account
        user = account.users.get(job.user) if job.user in tight.users else None
        team = account.teams.get(job.team) if job.team in tight.teams else None
        asked = self._asked.get(job.id)
        if asked is None or asked[0] is not user or asked[1] is not team:
            asked = self._asked[job.id] = user, team, self.of(job)
        return asked[2]

    def shut(self, job: Waiting) -> bool:
        """Whether the job waits for more than quotas: a person, a pause, a time."""
        return bool(job.held_by) or self._snapshot.paused is not None or self._too_early(job)

    def as_allowed(self, job: Waiting) -> Waiting:
        """The job on such models as quotas leave room for at its least, an elastic one as large as they do in all."""
        if job.least_gpus is not None:
            job = changed(job, gpus=max(min(most_gpus(job, *self._levels(job)), job.gpus), job.least_gpus))
        if self.by_model:
            job = self.narrowed(job)[0]
        return self._affordable(job) if self._kinds.cut_differently and shares(job) else job

    def sizes(self, job: Waiting) -> list[Waiting]:
        """The elastic job, as it is allowed, in each size that quotas leave room for on some models; the largest first.

        They may leave more of one model than of another: then it is larger on the one alone than on both.
        """
        left = left_by_model(job, *self._levels(job), models=self._kinds.models(job))
        sizes = sorted({size for size in left.values() if size >= least(job)}, reverse=True)
        if not sizes or min(left.values()) == job.gpus:
            return [job]
        return [
            changed(job, gpus=size, gpu_model="|".join(model for model, most in left.items() if most >= size))
            for size in sizes
        ]

    def _affordable(self, job: Waiting) -> Waiting:
        """A share kept off the GPUs where more would be charged for it than quotas leave: not all are cut alike."""
        charges = self._kinds.charges(job)
        if len(charges) < 2:
            return job
        if self._has_room(job, self._slacks, charges[-1]):
            return job if job.most_milli == charges[-1] else changed(job, most_milli=charges[-1])
        levels, models = self._levels(job), self._kinds.models(job)
        open_to = [milli for milli in charges if not start(changed(job, gpu_milli=milli), *levels, models=models)]
        return changed(job, most_milli=max(open_to, default=charges[0]))

    def narrowed(self, job: Waiting) -> tuple[Waiting, list[Reason]]:
        """The job on the models that quotas leave room for, and why not on the others. Some must be left."""
        if not job.gpus or not self.by_model or self._has_room(job, self._slacks):
            return job, []
        levels = self._levels(job)
        wanted = self._kinds.models(job)
        closed = closed_models(job, *levels, models=wanted)
        left = [model for model in wanted if model not in closed]
        if not closed or not left:
            return job, []
        return changed(job, gpu_model="|".join(left)), [refusal.as_dict() for refusal in closed.values()]

    def _holds(self, job: Waiting) -> Iterator[Reason]:
        for who in job.held_by:
            yield {"code": f"HELD_BY_{who.upper()}"}

    def _switches(self, job: Waiting) -> Iterator[Reason]:
        if self._snapshot.paused is not None:
            yield self._snapshot.paused
        if job.start_after is not None and self._too_early(job):
            yield {"code": "START_AFTER", "at": job.start_after.isoformat()}

    def _too_early(self, job: Waiting) -> bool:
        return job.start_after is not None and job.start_after > self._snapshot.now

    def _has_room(self, job: Waiting, slacks: tuple[Slacks, Slacks], milli: int | None = None) -> bool:
        """Whether a glance tells that no quota is in the way of the job, with so much of GPUs, else the least."""
        asked = least_milli(job) if milli is None else milli
        users, teams = slacks
        return users.have_room(job.user, job, asked) and teams.have_room(job.team, job, asked)

    def _quotas(self, job: Waiting) -> list[Reason]:
        """Asked where a glance does not tell that there are none."""
        levels = self._levels(job)
        asked = partial(still_asked, begun=job.begun, moved=job.moved)
        refusals = asked(self._never(job, levels)) or asked(start(job, *levels, models=self._kinds.models(job)))
        return [refusal.as_dict() for refusal in refusals]

    def _never(self, job: Waiting, levels: list[Level]) -> list[Refusal]:
        """Limits stay the same in a pass: jobs that ask for the same need not be looked at twice."""
        if self._has_room(job, self._idle):
            return []
        key = job.user, job.team, job.shape, job.limit_seconds, job.priority, job.interactive
        if key not in self._found_never:
            self._found_never[key] = never(job, *(limits for limits, _usage in levels), models=self._kinds.models(job))
        return self._found_never[key]

    def _levels(self, job: Waiting) -> list[Level]:
        """Those that may hold the job back."""
        levels: list[Level] = []
        if job.user in self._tight.users:
            levels.append((self._snapshot.user_limits[job.user], self._account.users.get(job.user, _NOTHING)))
        if job.team in self._tight.teams:
            levels.append((self._snapshot.team_limits[job.team], self._account.teams.get(job.team, _NOTHING)))
        return levels
