"""One scheduling pass: every waiting job is placed or gets its reasons, and is told when to expect its start. Pure.

order → place → preempt → reserve → explain → estimate. A job starts where it fits. One that only room holds back
is blocked: runs are stopped for it where that is allowed (`preempt`), else a node is kept for it (`reserve`).
"""

import gc
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, cached_property
from math import inf

from jobs.policy import estimate, place, reserve
from jobs.policy.account import Account
from jobs.policy.alike import Alike
from jobs.policy.explain import Explain
from jobs.policy.gates import Gates
from jobs.policy.guarantee import Guarantees
from jobs.policy.hardware import Hardware
from jobs.policy.kinds import Kinds, as_charged
from jobs.policy.ledger import Ledger, charged, least, slots_of
from jobs.policy.places import Places
from jobs.policy.preempt import Preempting, Way
from jobs.policy.slack import Tight
from jobs.policy.turns import Turns
from jobs.policy.view import (
    Expected,
    Gpu,
    Move,
    Placement,
    Plan,
    Preemption,
    Reason,
    Reservation,
    Running,
    Snapshot,
    Waiting,
    changed,
)

_MOST_MOVERS = 4  # blocked jobs that runs to move are looked for, first in the queue first

# Gates whose end the estimate sees.
_FORESEEN = frozenset({
    "START_AFTER", "QUOTA_GPUS", "QUOTA_CPUS", "QUOTA_MEMORY", "QUOTA_RUNNING", "QUOTA_INTERACTIVE", "QUOTA_MODEL",
    "BUDGET_USED",
})  # fmt: skip


def make_plan(snapshot: Snapshot, *, explain: bool = True, expect: Collection[int] | None = None) -> Plan:
    """What starts now, what ends for it, and why and how long the rest waits. The same snapshot gives the same plan.

    Without `explain` each job that waits has but one reason, which says nothing. `expect` are the jobs whose start
    is estimated; None: all that wait.
    """
    with _collector_at_rest():
        return _planned(snapshot, explain, expect)


def _planned(snapshot: Snapshot, explain: bool, expect: Collection[int] | None) -> Plan:
    now = _Pass(snapshot)
    now.keep_places()
    for job in now.turns:
        _settled = now.start(job) or now.hold_way(job) or now.make_way(job) or now.reserve(job)
    now.defragment()
    reasons = now.explain() if explain else {job.id: _UNEXPLAINED for job in now.left}
    expected = now.estimate(reasons, expect) if expect is None or expect else {}
    return now.plan(reasons, expected)


_UNEXPLAINED: tuple[Reason, ...] = ({"code": "BUSY_TOGETHER"},)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A long pass makes very many objects and no cycle: looking for cycles would take a fifth of its time.

    What it made is gone by the end, but for the plan; were there a cycle, all of it would have to be looked at then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Pass:
    """What has been given away so far, and to whom."""

    def __init__(self, snapshot: Snapshot) -> None:
        kinds = Kinds(snapshot.nodes)
        self.snapshot = snapshot = as_charged(snapshot, kinds)
        self.account = Account(snapshot)
        self.tight = Tight(snapshot)
        self.gates = Gates(snapshot, self.account, kinds, self.tight)
        self.guarantees = Guarantees(snapshot)
        self.preempting = Preempting(snapshot, self.account.nodes, self.guarantees, kinds)
        self.ends = reserve.Ends(snapshot.running, snapshot.now)
        self.freed = _freed(snapshot)
        self.places = Places(self.account)
        self.turns = Turns(snapshot, self.account.teams, self.guarantees)
        self.order: list[int] = []
        self.left: list[Waiting] = []
        self.placements: list[Placement] = []
        self.started: list[Running] = []
        self.blocked: list[Waiting] = []
        self.ways: dict[int, Way] = {}
        self.preemptions: list[Preemption] = []
        self.moves: list[Move] = []
        self._no_room: dict[object, float] = {}  # by shape: the shortest limit that was refused
        self._no_node: set[object] = set()  # shapes that no node can be kept for
        self._kept = 0
        self._patient_since = snapshot.now - timedelta(seconds=snapshot.rules.reserve_after)
        self._first_is_served = False

    def keep_places(self) -> None:
        """For those that go on elsewhere as people wished; see `hold_way` for those that make way."""
        for run in self.snapshot.running:
            if run.goes_on and run.makes_way_for is None:
                self.places.keep(run)

    def start(self, job: Waiting) -> bool:
        """Place the job if it fits. Whether no more is to be done for it: it starts, or a gate holds it back."""
        self.order.append(job.id)
        if self.gates.again(job):
            self.left.append(job)
            return True
        asked = self.gates.as_allowed(job)
        if self.gates.by_model and asked.least_gpus is not None:
            asked = self._largest(self.gates.sizes(asked))
        limit = inf if asked.limit_seconds is None else asked.limit_seconds
        refused = self._no_room.get(asked.shape)
        if refused is None or limit < refused:  # room only gets less: what was refused stays so, and what takes longer
            ledger = place.choose(asked, self.account.fleet)
            if ledger is not None:
                self._place(job, asked, ledger)
                return True
            self._no_room[asked.shape] = limit
        self.left.append(job)
        self.blocked.append(job)
        return False

    def _largest(self, sizes: Sequence[Waiting]) -> Waiting:
        """The size of an elastic job that gets the most GPUs now."""

        def given(asked: Waiting) -> int:
            ledger = place.choose(asked, self.account.fleet)
            return 0 if ledger is None else len(ledger.choice(asked))

        return sizes[0] if len(sizes) == 1 else max(sizes, key=given)

    def _place(self, job: Waiting, asked: Waiting, ledger: Ledger) -> None:
        gpus = self.account.fleet.take(ledger, asked)
        self.placements.append(Placement(job=job.id, node=ledger.node.name, gpu_uuids=tuple(g.uuid for g in gpus)))
        given = charged(job, gpus)
        run = _as_running(given, asked, ledger, gpus, self.snapshot)
        self.started.append(run)
        self.ends.add(run)
        self._charge(given, gpus)

    def _charge(self, job: Waiting, gpus: Collection[Gpu]) -> None:
        """Users, teams and the queue take the job as started, with the share that it is charged for."""
        taken = job
        if gpus:
            models = {gpu.model for gpu in gpus}
            model = job.gpu_model if len(models) > 1 else models.pop()
            taken = changed(job, gpus=len(gpus), least_gpus=None, gpu_model=model)
        self.account.charge(taken)
        self.turns.charge(taken, taken.gpus)

    def hold_way(self, job: Waiting) -> bool:
        """Keep what is being freed for the job while the runs that make way for it are stopping."""
        runs = self.freed.get(job.id)
        if not runs:
            return False
        ledger = next((ledger for ledger in self.account.nodes if ledger.node.name == runs[0].node), None)
        if ledger is None:
            return False
        self._keep_way(job, Way(ledger, tuple(runs)))
        for run in runs:
            self.places.keep(run)
        return True

    def make_way(self, job: Waiting) -> bool:
        """Stop runs for the job, if there are any that may be stopped for it and it fits once they have."""
        if self.preempting.is_over:
            return False
        entitled = self._is_entitled(job)
        if not entitled and not self.snapshot.rules.preempt_lower:
            return False
        way = self.preempting.way(self.gates.as_allowed(job), entitled=entitled)
        if way is None:
            return False
        self.preempting.take(way)
        self.preemptions += [Preemption(run=run.run, job=job.id, why=way.why) for run in way.victims]
        self._keep_way(job, way)
        return True

    def _keep_way(self, job: Waiting, way: Way) -> None:
        """From now on the job has what is being freed, and its quotas: its victims must not go for nothing."""
        asked = self._least(job)
        self.ways[job.id] = way
        self.account.charge(asked)
        gpus = self.account.fleet.hold(way.ledger, asked, way.victims)
        if gpus is not None:
            self.ends.drop(way.victims)
            self.ends.add(_as_running(charged(job, gpus), asked, way.ledger, gpus, self.snapshot))

    def _is_entitled(self, job: Waiting) -> bool:
        return self.guarantees.entitled(job, self.account.teams.get(job.team))

    def _protected(self, job: Waiting) -> Running | None:
        """The run that would be stopped for the job if it were not protected still."""
        if not self.preempting.tells_of(job):
            return None
        return self.preempting.protected(job, entitled=self._is_entitled(job))

    def reserve(self, job: Waiting) -> bool:
        """Keep a node for the first blocked job, and for others once they have been blocked for long."""
        if self._kept >= self.snapshot.rules.most_kept:
            return False
        patient = self._has_waited(job)
        if self._first_is_served and not patient:
            return False
        asked = self._least(job)
        if asked.shape in self._no_node:
            return False
        able = self.alike.able(asked)
        dated = reserve.soonest(asked, able, self.ends)
        ledger = dated[0] if dated else place.choose_to_keep(asked, able)
        if ledger is None:
            self._no_node.add(asked.shape)
            return False
        self._first_is_served = True
        if dated or patient:
            self._keep(asked, ledger, dated[1] if dated else None)
        return True

    def _has_waited(self, job: Waiting) -> bool:
        return (job.blocked_since or self.snapshot.now) <= self._patient_since

    def _keep(self, job: Waiting, ledger: Ledger, seconds: float | None) -> None:
        ended = [] if seconds is None else reserve.ended_by(seconds, self.ends.of(ledger.node.name))
        self.account.fleet.keep(ledger, job, seconds=seconds, runs=ended)
        self._kept += 1

    def _least(self, job: Waiting) -> Waiting:
        """The job as small as it can start, on such models as quotas leave room for."""
        allowed = self.gates.as_allowed(job)
        return allowed if job.least_gpus is None else changed(allowed, gpus=least(job))

    def defragment(self) -> None:
        """Move runs so that one blocked job can start, one at a time: no more while some are on their way."""
        if not self.snapshot.rules.defragment or self.freed or self.ways:
            return
        for job in self.blocked[:_MOST_MOVERS]:
            way = self.preempting.moves(self._least(job))
            if way is not None:
                self.moves += [Move(run=run.run, job=job.id) for run in way.victims]
                self._keep_way(job, way)
                return

    @cached_property
    def alike(self) -> Alike:
        return Alike(self.account.nodes)

    @cached_property
    def hardware(self) -> Hardware:
        """What is free once all is given away."""
        return Hardware(self.account.nodes)

    def explain(self) -> dict[int, tuple[Reason, ...]]:
        """Why each job that is left waits, by what is free once all is given away."""
        freed = {pk: (way.ledger.node.name, len(way.victims)) for pk, way in self.ways.items()}
        explained = Explain(
            self.snapshot, self.account, self.gates, self.hardware, freed=freed, in_the_way=self.places.in_the_way,
            protected=self._protected if self.preempting.some_protected else None,
        )  # fmt: skip
        return {job.id: explained.of(job) for job in self.left}

    def estimate(self, reasons: dict[int, tuple[Reason, ...]], only: Collection[int] | None) -> dict[int, Expected]:
        """When each job that is left should start."""
        unsure = {job.id for job in self.left for reason in reasons[job.id] if _is_unforeseen(reason["code"])}
        begun = (*self.started, *self.places.runs())
        return estimate.expected(self.snapshot, self.left, begun, self.hardware, self.tight, only=only, unsure=unsure)

    def plan(self, reasons: dict[int, tuple[Reason, ...]], expected: dict[int, Expected]) -> Plan:
        return Plan(
            placements=tuple(self.placements), reasons=reasons, blocked=frozenset(job.id for job in self.blocked),
            order=tuple(self.order), reservations=tuple(self._reservations()),
            preemptions=tuple(self.preemptions), moves=tuple(self.moves), going_on=self.places.runs(),
            expected=expected,
        )  # fmt: skip

    def _reservations(self) -> Iterator[Reservation]:
        for pk, way in self.ways.items():
            yield Reservation(job=pk, node=way.ledger.node.name, at=None)
        for ledger in self.account.nodes:
            kept = ledger.kept
            if kept is not None:
                at = None if kept.seconds is None else self.snapshot.now + timedelta(seconds=kept.seconds)
                yield Reservation(job=kept.job.id, node=ledger.node.name, at=at)


@cache
def _is_unforeseen(code: str) -> bool:
    return code.startswith(("HELD_", "QUOTA_", "BUDGET_", "PAUSED")) and code not in _FORESEEN


def _freed(snapshot: Snapshot) -> dict[int, list[Running]]:
    """By job: the runs that are ending for it."""
    found: dict[int, list[Running]] = defaultdict(list)
    for run in snapshot.running:
        if run.makes_way_for is not None:
            found[run.makes_way_for].append(run)
    return dict(found)


def _as_running(job: Waiting, asked: Waiting, ledger: Ledger, gpus: Collection[Gpu], snapshot: Snapshot) -> Running:
    """The job, with the share that it is charged for, as a run that begins now; it has no number yet."""
    now = snapshot.now
    likely = job.likely_seconds
    run = object.__new__(Running)  # in a fraction of the time that the constructor takes; defaults are the class's
    vars(run).update(
        run=0, job=job.id, user=job.user, team=job.team, priority=job.priority, node=ledger.node.name,
        gpus=len(gpus), slots={gpu.uuid: slots_of(asked, gpu) for gpu in gpus}, millicpus=job.millicpus,
        memory_mib=job.memory_mib, since=now, gpu_milli=job.gpu_milli, interactive=job.interactive,
        ends_by=None if job.limit_seconds is None else now + timedelta(seconds=job.limit_seconds),
        likely=None if likely is None else (now + timedelta(seconds=likely[0]), now + timedelta(seconds=likely[1])),
    )  # fmt: skip
    return run
