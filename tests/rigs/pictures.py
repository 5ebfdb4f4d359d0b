"""Pictures for the policy, in short; and a cluster in memory that does what plans say, for tests that play time."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.policy import Gpu, Node, Plan, Rules, Running, Snapshot, Waiting, make_plan
from jobs.policy.ledger import charge, charged, least, shares, slots_of
from jobs.quotas import WHOLE, Limits, Usage

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
A100, L4 = "NVIDIA A100", "NVIDIA L4"
HOUR = 3600


def gpu(node: str, index: int, **fields: Any) -> Gpu:
    defaults: dict[str, Any] = {"model": A100, "memory_mib": 40960, "used_slots": 0}
    return Gpu(uuid=f"GPU-{node}-{index}", index=index, **{**defaults, **fields})


def node(name: str = "a", gpus: int = 4, **fields: Any) -> Node:
    defaults: dict[str, Any] = {"millicpus": 32_000, "memory_mib": 131_072}
    cards = fields.pop("cards", None) or tuple(gpu(name, index) for index in range(gpus))
    return Node(name=name, gpus=cards, **{**defaults, **fields})


def job(pk: int, **fields: Any) -> Waiting:
    defaults: dict[str, Any] = {
        "user": 1, "team": 1, "priority": 1, "queued_at": NOW - timedelta(minutes=60 - pk), "gpus": 1,
        "gpu_model": "", "gpu_memory_mib": 0, "millicpus": 1000, "memory_mib": 1024, "limit_seconds": 3600,
    }  # fmt: skip
    return Waiting(id=pk, **{**defaults, **fields})


def run(
    number: int, host: str = "a", cards: Iterable[int] = (0,), *, hours: float | None = 1.0, **fields: Any
) -> Running:
    """A run that has been there for two hours and has `hours` left (None: no limit), on these GPUs of the host."""
    slots = {f"GPU-{host}-{index}": 1 for index in cards}
    defaults: dict[str, Any] = {
        "job": 1000 + number, "user": 9, "team": 9, "priority": 1, "millicpus": 1000, "memory_mib": 1024,
        "since": NOW - timedelta(hours=2), "ends_by": None if hours is None else NOW + timedelta(hours=hours),
    }  # fmt: skip
    return Running(run=number, node=host, gpus=len(slots), slots=slots, **{**defaults, **fields})


def snapshot(
    *waiting: Waiting, nodes: tuple[Node, ...] = (), running: Iterable[Running] = (), **fields: Any
) -> Snapshot:
    """The hosts hold what the runs take, and teams use it, unless told otherwise."""
    runs = tuple(running)
    defaults: dict[str, Any] = {
        "user_limits": {}, "team_limits": {}, "user_usage": usage(runs, "user"), "team_usage": usage(runs, "team"),
    }  # fmt: skip
    found = tuple(holding(host, runs) for host in nodes or (node(),))
    return Snapshot(now=NOW, nodes=found, waiting=waiting, running=runs, **{**defaults, **fields})


def holding(host: Node, runs: Iterable[Running]) -> Node:
    """The host with what these runs take of it."""
    here = [run for run in runs if run.node == host.name]
    slots: Counter[str] = Counter()
    for run in here:
        slots.update(run.slots)
    return replace(
        host, used_millicpus=host.used_millicpus + sum(run.millicpus for run in here),
        used_memory_mib=host.used_memory_mib + sum(run.memory_mib for run in here),
        gpus=tuple(replace(card, used_slots=card.used_slots + slots[card.uuid]) for card in host.gpus),
    )  # fmt: skip


def usage(runs: Iterable[Running], level: str) -> dict[int, Usage]:
    found: dict[int, Usage] = {}
    for run in runs:
        held = found.get(getattr(run, level), Usage())
        found[getattr(run, level)] = replace(
            held, gpu_milli=held.gpu_milli + run.milli, millicpus=held.millicpus + run.millicpus,
            memory_mib=held.memory_mib + run.memory_mib, running_jobs=held.running_jobs + 1,
        )  # fmt: skip
    return found


def team(pk: int, **fields: Any) -> dict[int, Limits]:
    return {pk: Limits(scope="team", name=f"team-{pk}", **fields)}


def placed(plan: Plan) -> dict[int, str]:
    return {p.job: p.node for p in plan.placements}


def codes(plan: Plan, pk: int) -> list[str]:
    return [reason["code"] for reason in plan.reasons[pk]]


def stopped(plan: Plan) -> dict[int, int]:
    """By run: the job that it is to end for."""
    return {p.run: p.job for p in plan.preemptions}


@dataclass
class Cluster:
    """Does at once what plans say: starts, stops, moves. Ends come from outside, by `end` or by limits."""

    nodes: tuple[Node, ...]
    rules: Rules = field(default_factory=Rules)
    user_limits: dict[int, Limits] = field(default_factory=dict)
    team_limits: dict[int, Limits] = field(default_factory=dict)
    now: datetime = NOW
    waiting: dict[int, Waiting] = field(default_factory=dict)
    runs: dict[int, Running] = field(default_factory=dict)
    asks: dict[int, Waiting] = field(default_factory=dict)  # by run: the job as it waited
    started: dict[int, datetime] = field(default_factory=dict)  # by job, the last time
    count: int = 0

    def submit(self, waiting: Waiting) -> None:
        self.waiting[waiting.id] = replace(waiting, queued_at=self.now)

    def snapshot(self) -> Snapshot:
        picture = snapshot(
            *self.waiting.values(), nodes=self.nodes, running=self.runs.values(), rules=self.rules,
            user_limits=self.user_limits, team_limits=self.team_limits,
        )  # fmt: skip
        return replace(picture, now=self.now)

    def step(self) -> Plan:
        """One pass, and all that it says."""
        picture = self.snapshot()
        plan = make_plan(picture)
        check(picture, plan)
        for placement in plan.placements:
            self._start(self.waiting.pop(placement.job), placement.node, placement.gpu_uuids)
        for way in (*plan.preemptions, *plan.moves):
            moves = way in plan.moves
            self.runs[way.run] = replace(self.runs[way.run], stopping=True, makes_way_for=way.job, goes_on=moves)
        for pk, item in self.waiting.items():
            since = item.blocked_since or self.now if pk in plan.blocked else None
            self.waiting[pk] = replace(item, blocked_since=since)
        return plan

    def _start(self, item: Waiting, host: str, uuids: tuple[str, ...]) -> None:
        self.count += 1
        cards = {card.uuid: card for place in self.nodes for card in place.gpus}
        limit = item.limit_seconds
        taken = charged(item, [cards[uuid] for uuid in uuids]).gpu_milli
        self.runs[self.count] = Running(
            run=self.count, job=item.id, user=item.user, team=item.team, priority=item.priority, node=host,
            gpus=len(uuids), slots={uuid: slots_of(item, cards[uuid]) for uuid in uuids}, millicpus=item.millicpus,
            memory_mib=item.memory_mib, since=self.now, preemptible=item.id % 2 == 0,
            ends_by=None if limit is None else self.now + timedelta(seconds=limit),
            movable=item.id % 3 == 0, ask=item, gpu_milli=taken,
        )  # fmt: skip
        self.asks[self.count] = item
        self.started[item.id] = self.now
        for pk, other in self.waiting.items():
            if other.yields_to == item.id:
                self.waiting[pk] = replace(other, yields_to=None)

    def end(self, number: int) -> None:
        """The run ends; one that makes way waits again, at its old place."""
        ended, item = self.runs.pop(number), self.asks.pop(number)
        if ended.makes_way_for is not None:
            winner = ended.makes_way_for if ended.makes_way_for in self.waiting else None
            self.waiting[item.id] = replace(item, yields_to=winner, blocked_since=None)

    def pass_time(self, seconds: float) -> None:
        """Runs end by their limits, and those that are stopping."""
        self.now += timedelta(seconds=seconds)
        over = [n for n, run in self.runs.items() if run.stopping or (run.ends_by and run.ends_by <= self.now)]
        for number in over:
            self.end(number)


def check(picture: Snapshot, plan: Plan) -> None:
    """What every plan promises, whatever the picture."""
    by_id = {item.id: item for item in picture.waiting}
    hosts = {host.name: host for host in picture.nodes}
    cards = {card.uuid: card for host in picture.nodes for card in host.gpus}
    used = Counter({card.uuid: card.used_slots for card in cards.values()})
    assert not {p.job for p in plan.placements} & set(plan.reasons)
    assert {p.job for p in plan.placements} | set(plan.reasons) == set(by_id)
    assert sorted(plan.order) == sorted(by_id)
    assert set(plan.expected) == set(plan.reasons)
    assert all(plan.reasons.values()), "no job waits without a reason"
    for placement in plan.placements:
        item, host = by_id[placement.job], hosts[placement.node]
        assert not item.held_by
        assert host.closed is None
        assert item.labels <= host.labels
        assert least(item) <= len(placement.gpu_uuids) <= item.gpus, "all or nothing"
        assert len(set(placement.gpu_uuids)) == len(placement.gpu_uuids)
        for uuid in placement.gpu_uuids:
            card = cards[uuid]
            assert card in host.gpus
            assert card.unavailable is None
            assert uuid not in item.avoid
            assert not item.gpu_model or card.model in item.gpu_model.split("|")
            assert card.profile == item.gpu_profile
            assert card.slots > 1 or not shares(item), "no share of a GPU that is not cut"
            used[uuid] += slots_of(item, card)
    assert all(used[uuid] <= max(card.slots, card.used_slots) for uuid, card in cards.items()), "no slot twice"
    _check_hosts(picture, plan, by_id)
    _check_quotas(picture, plan, by_id)
    _check_victims(picture, plan, by_id)


def _check_hosts(picture: Snapshot, plan: Plan, by_id: dict[int, Waiting]) -> None:
    for host in picture.nodes:
        here = [by_id[p.job] for p in plan.placements if p.node == host.name]
        assert not here or host.used_millicpus + sum(item.millicpus for item in here) <= host.millicpus
        assert not here or host.used_memory_mib + sum(item.memory_mib for item in here) <= host.memory_mib


def _check_quotas(picture: Snapshot, plan: Plan, by_id: dict[int, Waiting]) -> None:
    cards = {card.uuid: card for host in picture.nodes for card in host.gpus}
    for level, limits, used in (
        ("user", picture.user_limits, picture.user_usage), ("team", picture.team_limits, picture.team_usage),
    ):  # fmt: skip
        for pk, limit in limits.items():
            mine = [p for p in plan.placements if getattr(by_id[p.job], level) == pk]
            before = used.get(pk, Usage())
            milli = sum(charge(by_id[p.job], cards[uuid]) for p in mine for uuid in p.gpu_uuids)
            if milli and limit.gpus is not None:
                assert before.gpu_milli + milli <= limit.gpus * WHOLE
            for p in mine:  # each by itself: of GPUs of several models a pass counts none
                models = Counter(cards[uuid].model for uuid in p.gpu_uuids)
                assert all(models[model] <= most for model, most in limit.gpus_by_model.items())
            if mine and limit.running_jobs is not None:
                assert before.running_jobs + len(mine) <= limit.running_jobs


def _check_victims(picture: Snapshot, plan: Plan, by_id: dict[int, Waiting]) -> None:
    """Victims may be stopped, are of one host a job, and the job fits there once they have gone."""
    runs = {item.run: item for item in picture.running}
    hosts = {host.name: host for host in picture.nodes}
    ways = [*plan.preemptions, *plan.moves]
    assert len({way.run for way in ways}) == len(ways)
    for winner in {way.job for way in ways}:
        victims = [runs[way.run] for way in ways if way.job == winner]
        assert winner in plan.reasons
        assert not any(item.makes_way_for == winner for item in picture.running), "no second set of victims"
        assert len({victim.node for victim in victims}) == 1
        for victim in victims:
            assert not victim.stopping
            assert picture.now - victim.since >= timedelta(seconds=picture.rules.protected_for)
        assert fits_without(hosts[victims[0].node], victims, plan, by_id, by_id[winner]), (
            "victims only if the winner fits"
        )


def fits_without(
    host: Node, victims: list[Running], plan: Plan, by_id: dict[int, Waiting], winner: Waiting
) -> bool:  # fmt: skip
    """Whether the winner fits on the host beside what stays and what this plan starts there, counted by hand."""
    starts = [p for p in plan.placements if p.node == host.name]
    millicpus = host.used_millicpus - sum(v.millicpus for v in victims) + sum(by_id[p.job].millicpus for p in starts)
    memory = host.used_memory_mib - sum(v.memory_mib for v in victims) + sum(by_id[p.job].memory_mib for p in starts)
    free = 0
    for card in host.gpus:
        used = card.used_slots - sum(victim.slots.get(card.uuid, 0) for victim in victims)
        used += sum(slots_of(by_id[p.job], card) for p in starts if card.uuid in p.gpu_uuids)
        suits = card.unavailable is None and (not winner.gpu_model or card.model in winner.gpu_model.split("|"))
        suits = suits and (card.slots > 1 or not shares(winner))
        free += suits and card.slots - used >= slots_of(winner, card)
    return (
        free >= least(winner) and millicpus + winner.millicpus <= host.millicpus
        and memory + winner.memory_mib <= host.memory_mib
    )  # fmt: skip
