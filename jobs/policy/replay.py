"""Play a trace through the scheduler's own `make_plan`: arrivals, holds, ends, limits, jobs that make way. Pure.

Time jumps from event to event. Events within `Setup.tick` share one pass, as wishes for a pass do in the
scheduler. A preempted job goes back to its place and begins anew; one that is moved goes on with what it has left.
The same trace gives the same report. Times in seconds where they are no datetimes.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum

from jobs.policy import meters
from jobs.policy.explain import is_final
from jobs.policy.holdings import Holdings
from jobs.policy.past import Like, Past
from jobs.policy.plan import make_plan
from jobs.policy.view import Move, Placement, Plan, Preemption, Reason, Running, Snapshot, Waiting

NAMED = 5  # jobs that could never start
BUDGET_BEAT = timedelta(hours=1)  # a window of GPU-hours moves on: look again


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job of a trace. It arrives at `job.queued_at` and, let alone, runs `seconds`; None: it never ends."""

    job: Waiting
    seconds: float | None
    image: str = ""
    name: str = ""
    preemptible: bool = False
    movable: bool = False
    grace_seconds: float = 30.0
    counts: bool = True  # whether its wait is measured
    holds: tuple[tuple[datetime, datetime], ...] = ()  # from, until: while it waits it does not start then

    @property
    def like(self) -> Like:
        return Like(self.job.user, self.image, self.name, self.job.limit_seconds)

    def runs_for(self, gpus: int) -> timedelta | None:
        """How long it runs on so many GPUs: an elastic one on fewer takes longer in proportion, its limit ends it."""
        if self.seconds is None:
            return None
        seconds, limit = self.seconds * self._slower(gpus), self.job.limit_seconds
        return timedelta(seconds=seconds if limit is None else min(seconds, limit))

    def _slower(self, gpus: int) -> float:
        return self.job.gpus / gpus if gpus else 1.0

    def rest(self, ran: float, gpus: int) -> "Task":
        """What is left of it, and of its limit, once it ran so many seconds on so many GPUs."""
        limit = self.job.limit_seconds
        left = None if self.seconds is None else max(self.seconds - ran / self._slower(gpus), 0.0)
        job = self.job if limit is None else replace(self.job, limit_seconds=max(round(limit - ran), 1))
        return replace(self, job=job, seconds=left)

    def held_until(self, now: datetime) -> datetime | None:
        """When the hold ends that it has now; None: it is not on hold."""
        return next((until for since, until in self.holds if since <= now < until), None)

    def held_for(self, until: datetime) -> float:
        """Seconds that it was on hold until then, from its arrival on."""
        came = self.job.queued_at
        spans = ((min(end, until) - max(since, came)).total_seconds() for since, end in self.holds)
        return sum(span for span in spans if span > 0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the trace is played on: hosts, limits, shares and rules of `picture`, which nobody uses yet.

    With `past` every arrival is told when it should start: `past` learns from runs as they end, and tells the plan
    how long others may run. `watch` is shown every pass: its snapshot, its plan, and the jobs that arrived.
    """

    picture: Snapshot
    tick: float = 1.0
    half_life: float = 7 * 86400.0
    past: Past | None = None
    watch: Callable[[Snapshot, Plan, frozenset[int]], None] | None = None
    samples: int = 50  # of fragmentation


class _Kind(IntEnum):
    ENDS = 0  # before arrivals of the same moment
    ARRIVES = 1
    HOLD = 2  # begins, or ends


@dataclass
class _Live:
    """A run that holds something, and when it ends by itself; `stops` is the end that it was asked for."""

    task: Task
    running: Running
    ends: datetime | None
    stops: datetime | None = None


@dataclass
class _Record:
    """What became of a task."""

    task: Task
    started: datetime | None = None  # for the first time
    ended: datetime | None = None


@dataclass
class _State:
    now: datetime
    waiting: dict[int, Waiting] = field(default_factory=dict)
    new: set[int] = field(default_factory=set)  # jobs that arrived since the last pass
    live: dict[int, _Live] = field(default_factory=dict)  # by run
    preemptions: int = 0
    moves: int = 0
    passes: int = 0


def replay(tasks: Iterable[Task], setup: Setup, *, progress: Callable[[float], None] | None = None) -> meters.Report:
    """Play all tasks to their ends and measure. `progress` is told the part of the events that are done."""
    return _Replay(sorted(tasks, key=lambda task: (task.job.queued_at, task.job.id)), setup).run(progress)


class _Replay:
    def __init__(self, tasks: list[Task], setup: Setup) -> None:
        self.setup = setup
        self.records = {task.job.id: _Record(task) for task in tasks}
        begin = tasks[0].job.queued_at if tasks else setup.picture.now
        self.state = _State(now=begin)
        self.holdings = Holdings(setup.picture, begin, half_life=setup.half_life)
        self.meter = meters.Meter(setup.picture, [task.job for task in tasks], samples=setup.samples)
        self.events: list[tuple[datetime, int, int]] = [(t.job.queued_at, _Kind.ARRIVES, t.job.id) for t in tasks]
        self.events += [(at, _Kind.HOLD, task.job.id) for task in tasks for hold in task.holds for at in hold]
        heapq.heapify(self.events)
        self.window = self.holdings.longest_window
        self.runs = 0
        self.whole = max(2 * len(tasks), 1)
        self.done = 0

    def run(self, progress: Callable[[float], None] | None) -> meters.Report:
        idle_since: datetime | None = None  # nothing is to come but looking again
        while (at := self._next()) is not None:
            came = self._advance(at)
            placed = self._pass() if self.state.waiting else 0
            idle_since = None if came or placed or self.events else (idle_since or self.state.now)
            if idle_since and (self.state.now - idle_since).total_seconds() > (self.window or 0.0):
                break
            if progress is not None:
                progress(min(self.done / self.whole, 1.0))
        return self._report()

    # --- time ---

    def _next(self) -> datetime | None:
        """The next moment at which anything can change; None when nothing ever will."""
        moments = [self.events[0][0]] if self.events else []
        if self.state.waiting:
            moments += self._alarms()
        return min(moments, default=None)

    def _alarms(self) -> list[datetime]:
        """Moments at which waiting alone changes what the plan would say."""
        now, rules = self.state.now, self.setup.picture.rules
        keeping = timedelta(seconds=rules.reserve_after)
        moments = [now + BUDGET_BEAT] if self.window is not None else []
        for job in self.state.waiting.values():
            if job.start_after is not None:
                moments.append(job.start_after)
            if job.blocked_since is not None:
                moments.append(job.blocked_since + keeping)
            if rules.lift_after:
                since = max(job.queued_at, job.start_after or job.queued_at)
                lifts = int((now - since).total_seconds() // rules.lift_after) + 1
                moments.append(since + timedelta(seconds=lifts * rules.lift_after))
        if rules.preempt_lower or rules.defragment or self.holdings.guarantees:
            protected = timedelta(seconds=rules.protected_for)
            moments += [live.running.since + protected for live in self.state.live.values()]
        return [moment for moment in moments if moment > now]

    def _advance(self, at: datetime) -> int:
        """Move to `at` and let everything within a tick of it happen. Returns how many events did."""
        until, came = at + timedelta(seconds=self.setup.tick), 0
        batch = []
        while self.events and self.events[0][0] <= until:
            batch.append(heapq.heappop(self.events))
        now = max(at, batch[-1][0]) if batch else at
        self.state.now = now
        self.meter.advance(now, gpus=self.holdings.gpus, nodes=self.holdings.nodes)
        self.holdings.advance(now)
        happens = {_Kind.ARRIVES: self._arrive, _Kind.HOLD: self._look_for_holds}
        for moment, kind, number in batch:
            came += self._end(number, moment) if kind == _Kind.ENDS else happens[_Kind(kind)](number)
        return came

    def _arrive(self, job_id: int) -> int:
        self.state.waiting[job_id] = self.records[job_id].task.job
        self.state.new.add(job_id)
        self._look_for_holds(job_id)
        self.done += 1
        return 1

    def _look_for_holds(self, job_id: int) -> int:
        """Whether the job is on hold is as it was then, if it waits."""
        job = self.state.waiting.get(job_id)
        if job is None:
            return 0
        held = self.records[job_id].task.held_until(self.state.now) is not None
        self.state.waiting[job_id] = replace(job, held_by=("user",) if held else ())
        return 1

    def _end(self, run: int, at: datetime) -> int:
        """A run's end, its own or the one it was asked for; nothing when it has ended already."""
        live = self.state.live.get(run)
        if live is None:
            return 0
        del self.state.live[run]
        self.holdings.release(live.running)
        record = self.records[live.task.job.id]
        self._learn(live, at)
        if live.ends is not None and at >= live.ends:
            record.ended = at
            self.done += 1
        else:
            self._wait_again(live, at)
        return 1

    def _wait_again(self, live: _Live, at: datetime) -> None:
        """Back to its old place, but not before the job that it made way for."""
        record, run = self.records[live.task.job.id], live.running
        if run.goes_on:
            record.task = live.task.rest((at - run.since).total_seconds(), run.gpus)
        job = replace(record.task.job, yields_to=run.makes_way_for if run.makes_way_for in self.state.waiting else None)
        if run.goes_on:
            job = replace(job, moved=True, pinned=True, avoid=frozenset(run.slots))
        self.state.waiting[job.id] = job
        self._look_for_holds(job.id)

    def _learn(self, live: _Live, at: datetime) -> None:
        """What the run's end says of others: one that its limit or another job cut off lasts at least so long."""
        if self.setup.past is not None:
            limit = live.running.ends_by
            stopped = live.ends is None or at < live.ends or (limit is not None and live.ends >= limit)
            self.setup.past.add(live.task.like, (at - live.running.since).total_seconds(), stopped=stopped)

    # --- a pass ---

    def _pass(self) -> int:
        new = frozenset(self.state.new & self.state.waiting.keys())
        expect = new if self.setup.past is not None else frozenset()
        picture = self._picture(likely=bool(expect))
        plan = make_plan(picture, explain=False, expect=expect)
        self.state.passes += 1
        self.state.new.clear()
        if self.setup.watch is not None:
            self.setup.watch(picture, plan, new)
        for placement in plan.placements:
            self._start(placement)
        for job_id, job in self.state.waiting.items():
            since = (job.blocked_since or picture.now) if job_id in plan.blocked else None
            if since != job.blocked_since:
                self.state.waiting[job_id] = replace(job, blocked_since=since)
        for preemption in plan.preemptions:
            self._make_way(preemption)
        for move in plan.moves:
            self._make_way(move)
        return len(plan.placements) + len(plan.preemptions) + len(plan.moves)

    def _picture(self, *, likely: bool) -> Snapshot:
        past, now, lives = self.setup.past, self.state.now, self.state.live.values()
        waiting, running = tuple(self.state.waiting.values()), tuple(live.running for live in lives)
        if likely and past is not None:
            likes = [self.records[job.id].task.like for job in waiting]
            waiting = tuple(
                replace(job, likely_seconds=past.seconds(like)) for job, like in zip(waiting, likes, strict=True)
            )
            running = tuple(
                replace(live.running, likely=past.ends(live.task.like, since=live.running.since, now=now))
                for live in lives
            )
        return self.holdings.picture(waiting=waiting, running=running)

    def _start(self, placement: Placement) -> None:
        job = self.state.waiting.pop(placement.job)
        self._yield_no_more(job.id)
        record = self.records[placement.job]
        now = self.state.now
        if record.started is None:
            record.started = now
            self.meter.started(job, now, counts=record.task.counts, held=record.task.held_for(now))
        self.runs += 1
        taken = self.holdings.take(placement, job, run=self.runs)
        movable = record.task.movable
        running = replace(taken, preemptible=record.task.preemptible, movable=movable, ask=job if movable else None)
        length = record.task.runs_for(len(placement.gpu_uuids))
        ends = None if length is None else now + length
        self.state.live[self.runs] = _Live(record.task, running, ends)
        if ends is not None:
            heapq.heappush(self.events, (ends, _Kind.ENDS, self.runs))

    def _yield_no_more(self, winner: int) -> None:
        for job in [job for job in self.state.waiting.values() if job.yields_to == winner]:
            self.state.waiting[job.id] = replace(job, yields_to=None)

    def _make_way(self, way: Preemption | Move) -> None:
        live = self.state.live.get(way.run)
        if live is None or live.stops is not None:
            return
        moves = isinstance(way, Move)
        self.state.moves += moves
        self.state.preemptions += not moves
        live.stops = self.state.now + timedelta(seconds=live.task.grace_seconds)
        run = replace(live.running, stopping=True, makes_way_for=way.job, goes_on=moves)
        live.running = run if run.ask is None else replace(run, ask=replace(run.ask, avoid=frozenset(run.slots)))
        heapq.heappush(self.events, (live.stops, _Kind.ENDS, way.run))

    def _report(self) -> meters.Report:
        ends = [record.ended for record in self.records.values() if record.ended is not None]
        return self.meter.report(
            tasks=len(self.records), ended=len(ends), last_end=max(ends, default=self.state.now),
            preemptions=self.state.preemptions, moves=self.state.moves, passes=self.state.passes, never=self._never(),
        )  # fmt: skip

    def _never(self) -> list[tuple[int, Reason]]:
        """The first jobs that never started, each with its first reason, a final one where there is any."""
        left = [job for job in self.state.waiting if self.records[job].started is None]
        if not left:
            return []
        told = make_plan(self._picture(likely=False), expect=frozenset()).reasons
        return [(job, min(told[job], key=lambda r: not is_final(r))) for job in left[:NAMED] if told.get(job)]
