"""When waiting jobs start if the next days are played some times over, with luck drawn from the past. Pure.

In each play runs end, and jobs take, as long as their likes might; such jobs arrive as came in the same hours of one
of the last days; and whenever something has ended, what fits starts in the queue's order, by the plan's own rules in
brief: fair shares move, GPUs are kept by time limits for the first blocked job and for those blocked for long, quotas
of GPUs and of running jobs hold. Preemption, neighbours, other quotas and the worth of what stays free are left out.
The early and late starts are quantiles over all plays. A job's luck is its own, so ranges do not flicker.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from jobs.policy.past import quantile
from jobs.policy.stage import PLAYS, Job, Line, Run, Stage
from jobs.policy.view import WHOLE, Expected, Plan, Share, Snapshot, Waiting
from jobs.quotas import Limits

MOST_NODES = 100  # on more, all plays would take too long
WORK = 100_000  # looks at jobs and at kept GPUs, in all plays
FEWEST = 6  # plays; where fewer were finished with that work, nothing is told
HORIZON = 7 * 86400.0  # seconds
MOMENT = 1.0  # what happens within so many seconds happens at once
EARLY, LATE = 0.2, 0.8  # quantiles
PLAYED = frozenset({"QUOTA_GPUS", "QUOTA_RUNNING"})
TOLD = 0.85  # a start is told if so many of the plays have it

_Entry = tuple[tuple[float, int], Job]  # its place in its line


def rehearse(
    snapshot: Snapshot, plan: Plan, only: Collection[int], recent: Sequence[Waiting] = ()
) -> dict[int, Expected]:
    """The plan's ranges, drawn anew for those of these jobs that nearly all plays have started.

    `recent` are the jobs of the last days as they were submitted, oldest first: such may come again. Where the plan
    names no latest start, there is none, and where a quota that is not played holds the job back, it stays. The same
    input gives the same.
    """
    dated = {
        job for job in only
        if job in plan.expected and plan.expected[job].latest is not None and not _unplayed(plan, job)
    }  # fmt: skip
    found = starts(snapshot, plan, dated, recent)
    return {job: _range(snapshot, found[job]) if job in found else told for job, told in plan.expected.items()}


def _unplayed(plan: Plan, job: int) -> bool:
    codes = (reason["code"] for reason in plan.reasons.get(job, ()))
    return any(code.startswith(("QUOTA_", "BUDGET_")) and code not in PLAYED for code in codes)


def _range(snapshot: Snapshot, ats: list[float]) -> Expected:
    early, late = (snapshot.now + timedelta(seconds=quantile(ats, part)) for part in (EARLY, LATE))
    return Expected(earliest=early, latest=late)


def starts(
    snapshot: Snapshot, plan: Plan, only: Collection[int], recent: Sequence[Waiting] = ()
) -> dict[int, list[float]]:
    """In how many seconds each job starts in the plays, in order; the horizon where a play has no start."""
    if not only or len(snapshot.nodes) > MOST_NODES:
        return {}
    stage = Stage(snapshot, plan, recent)
    targets = {job.id for job in stage.waiting}.intersection(only)
    found: dict[int, list[float]] = {job: [] for job in targets}
    work, plays = WORK, 0
    while targets and plays < PLAYS:
        play = _Play(stage, plays, targets, work)
        begun = play.run()
        work = play.work
        if work <= 0:
            break
        plays += 1
        for job, at in begun.items():
            found[job].append(at)
    if plays < FEWEST:
        return {}
    return {
        job: [*sorted(ats), *[HORIZON] * (plays - len(ats))] for job, ats in found.items() if len(ats) >= TOLD * plays
    }


class _Kept(NamedTuple):
    """GPUs of a group that are kept: others may have them for so long, and some of them for longer."""

    seconds: float
    left: int


class _Play:
    """One way that things may go."""

    def __init__(self, stage: Stage, number: int, targets: Collection[int], work: int) -> None:
        self.number, self.work, self.rules = number, work, stage.snapshot.rules
        hosts = stage.hosts
        self.node_of = hosts.node_of
        self.free, self.millicpus, self.memory_mib = hosts.free[:], hosts.millicpus[:], hosts.memory_mib[:]
        self.shares, self.quotas = _Shares(stage.snapshot), _Quotas(stage.snapshot)
        self.coming = stage.arrivals(number)
        self.left, self.found = set(targets), dict[int, float]()
        self.now = 0.0
        self.due: dict[int, list[tuple[float, int, int]]] = defaultdict(list)  # by group: when, thousandths, a number
        self.events: list[tuple[float, int, Run | Job]] = []
        self.lines: dict[Line, list[_Entry]] = defaultdict(list)
        self.blocked = {job.id: job.blocked for job in stage.waiting if job.blocked is not None}
        self.made = 0
        for run in stage.runs:
            self._begin(run)
        for job in stage.waiting:
            self._come(job)

    def run(self) -> dict[int, float]:
        """When the targets start, of those that do before the work is used up or the horizon is reached."""
        arriving = next(self.coming, None)
        while self.left and self.work > 0:
            self.now = min(self.events[0][0] if self.events else inf, arriving.comes if arriving else inf)
            if self.now > HORIZON:
                break
            until = self.now + MOMENT
            while self.events and self.events[0][0] <= until:
                what = heappop(self.events)[2]
                if isinstance(what, Run):
                    self._end(what)
                else:
                    insort(self.lines[what.line], (what.place, what))
            while arriving and arriving.comes <= until:
                insort(self.lines[arriving.line], (arriving.place, arriving))
                arriving = next(self.coming, None)
            self._pass()
        return self.found

    def _come(self, job: Job) -> None:
        if job.comes > 0:
            self._at(job.comes, job)
        else:
            insort(self.lines[job.line], (job.place, job))

    def _at(self, when: float, what: Run | Job) -> None:
        self.made += 1
        heappush(self.events, (when, self.made, what))

    # --- what holds something ---

    def _begin(self, run: Run) -> None:
        """What it holds is taken already."""
        self.shares.promise(run, run.likely - self.now)
        self.quotas.take(run.user, run.team, run.milli)
        for group, milli in run.holds:
            insort(self.due[group], (run.due, milli, run.number))
        end = run.ends[self.number]
        if end < inf:
            self._at(end, run)

    def _end(self, run: Run) -> None:
        self.shares.promise(run, self.now - run.likely)
        self.quotas.take(run.user, run.team, -run.milli, runs=-1)
        for group, milli in run.holds:
            self.free[group] += milli
            self.due[group].remove((run.due, milli, run.number))
        if run.node is not None:
            self.millicpus[run.node] += run.millicpus
            self.memory_mib[run.node] += run.memory_mib

    def _start(self, job: Job, group: int) -> None:
        node = self.node_of[group]
        self.free[group] -= job.need
        self.millicpus[node] -= job.millicpus
        self.memory_mib[node] -= job.memory_mib
        if job.id in self.left:
            self.left.discard(job.id)
            self.found[job.id] = self.now
        end = self.now + job.takes[self.number]
        self._begin(Run(
            number=job.id, team=job.line[2], user=job.line[3], node=node, millicpus=job.millicpus,
            memory_mib=job.memory_mib, milli=job.need, holds=((group, job.need),) if job.need else (),
            due=self.now + job.limit, likely=self.now + job.likely, ends=(end,) * (self.number + 1),
        ))  # fmt: skip

    # --- who starts now ---

    def _pass(self) -> None:
        most = max(self.free, default=0)
        if not any(job.need <= most for line in self.lines.values() for _place, job in line):
            return
        look = _Look()
        for key in sorted((key for key, line in self.lines.items() if line), key=self._turn):
            line = self.lines[key]
            self.work -= len(line)
            self.lines[key] = [entry for entry in line if not self._try(entry[1], look)]

    def _turn(self, key: Line) -> tuple[bool, int, float, float, tuple[float, int]]:
        return key[0], key[1], *self.shares.loads(key[2], key[3]), self.lines[key][0][0]

    def _try(self, job: Job, look: "_Look") -> bool:
        """Start the job if it fits; else keep GPUs for it, if it is its turn to have some kept."""
        if not self.quotas.allow(job):
            return False
        if job.limit < look.refused.get(job.shape, inf):
            group = self._best(job, look)
            if group is not None:
                self._start(job, group)
                look.use(group, job)
                return True
            look.refused[job.shape] = job.limit
        since = self.blocked.setdefault(job.id, self.now)
        patient = self.now - since >= self.rules.reserve_after
        if (patient or not look.first_served) and job.need and len(look.kept) < self.rules.most_kept:
            self._keep(job, look)
        return False

    def _best(self, job: Job, look: "_Look") -> int | None:
        """The fullest group with room for it."""
        best, least = None, inf
        for group in job.where:
            free = self.free[group]
            if job.need <= free < least and look.open_to(group, job):
                node = self.node_of[group]
                if job.millicpus <= self.millicpus[node] and job.memory_mib <= self.memory_mib[node]:
                    best, least = group, free
        return best

    def _keep(self, job: Job, look: "_Look") -> None:
        """Keep GPUs of the group that has enough soonest, by the limits of what holds them."""
        found = [(*self._enough(job.need, group), group) for group in job.where if group not in look.kept]
        self.work -= len(found)
        seconds, free, group = min(found, default=(inf, 0, 0))
        if seconds < inf:
            look.kept[group] = _Kept(seconds, free - job.need)
            look.first_served = True

    def _enough(self, need: int, group: int) -> tuple[float, int]:
        """In how many seconds, at the latest, a group has so much free, and what it has free then."""
        free = self.free[group]
        if free >= need:
            return 0.0, free
        for due, milli, _number in self.due[group]:
            free += milli
            if free >= need:
                return max(due - self.now, 0.0), free
        return inf, free


class _Look:
    """What one pass of a play knows so far."""

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}  # by group
        self.refused: dict[int, float] = {}  # by shape: the shortest limit
        self.first_served = False

    def open_to(self, group: int, job: Job) -> bool:
        kept = self.kept.get(group)
        return kept is None or job.limit <= kept.seconds or job.need <= kept.left

    def use(self, group: int, job: Job) -> None:
        kept = self.kept.get(group)
        if kept is not None and job.limit > kept.seconds:
            self.kept[group] = kept._replace(left=kept.left - job.need)


class _Shares:
    """Usage per share of teams and their members, promises too, as the queue's order compares it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._of_teams, self._of_members = snapshot.team_shares, snapshot.member_shares
        self._teams = {team: _per_share(share, share.used) for team, share in self._of_teams.items()}
        self._members = {both: _per_share(share, share.used) for both, share in self._of_members.items()}

    def loads(self, team: int, user: int) -> tuple[float, float]:
        return self._teams.get(team, 0.0), self._members.get((team, user), 0.0)

    def promise(self, run: Run, seconds: float) -> None:
        """It will hold its GPUs so much longer, or less long, than was known. What it has held counts on."""
        team, member = run.team, (run.team, run.user)
        used = run.milli * seconds / WHOLE if seconds < inf else 0.0
        self._teams[team] = self._teams.get(team, 0.0) + _per_share(self._of_teams.get(team, _ONE), used)
        share = self._of_members.get(member, _ONE)
        self._members[member] = self._members.get(member, 0.0) + _per_share(share, used)


_ONE = Share()


def _per_share(share: Share, used: float) -> float:
    return used / share.shares if share.shares else inf


class _Quotas:
    """What users and teams hold, against their quotas of GPUs and running jobs."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._users = _bounds(snapshot.user_limits)
        self._teams = _bounds(snapshot.team_limits)

    def allow(self, job: Job) -> bool:
        for left in (self._users.get(job.line[3]), self._teams.get(job.line[2])):
            if left is not None and (left[0] < job.need or left[1] < 1):
                return False
        return True

    def take(self, user: int, team: int, milli: int, runs: int = 1) -> None:
        for bound in (self._users.get(user), self._teams.get(team)):
            if bound is not None:
                bound[0] -= milli
                bound[1] -= runs


def _bounds(limits: Mapping[int, Limits]) -> dict[int, list[float]]:
    """By user or team: how many thousandths, and how many runs, are left, before anything runs."""
    return {
        pk: [inf if limit.gpus is None else limit.gpus * WHOLE,
             inf if limit.running_jobs is None else limit.running_jobs]
        for pk, limit in limits.items() if limit.gpus is not None or limit.running_jobs is not None
    }  # fmt: skip
