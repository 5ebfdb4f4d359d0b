"""What runs hold in a replay: nodes, users, teams, budgets and fair shares, as time passes. Pure."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from jobs.policy.ledger import charged, shares, slots_of
from jobs.policy.view import WHOLE, Placement, Running, Share, Snapshot, Waiting
from jobs.quotas import Limits, Usage

DAY = 86400.0


@dataclass(frozen=True)
class _Held:
    """One run's part of its user's and team's usage."""

    job: Waiting
    gpus: int
    model: str
    since: datetime


class _Level:
    """Users, or teams: what each holds, and what it used in the window of its budget."""

    def __init__(self, limits: Mapping[int, Limits]) -> None:
        self.limits = limits
        self.held: dict[int, dict[int, _Held]] = defaultdict(dict)  # by user or team, by run
        self.used: dict[int, deque[tuple[datetime, datetime, int]]] = defaultdict(deque)  # begin, end, milli
        self._usage: dict[int, Usage] = {}

    def take(self, who: int, run: int, held: _Held) -> None:
        self.held[who][run] = held
        self._usage.pop(who, None)

    def release(self, who: int, run: int, now: datetime) -> None:
        held = self.held[who].pop(run)
        self._usage.pop(who, None)
        if self._has_budget(who) and held.gpus:
            self.used[who].append((held.since, now, held.job.milli_of(held.gpus)))

    def usage(self, now: datetime) -> dict[int, Usage]:
        """Of everybody who holds something or has a budget."""
        return {who: self._of(who, now) for who in self.held.keys() | self.used.keys()}

    def _of(self, who: int, now: datetime) -> Usage:
        usage = self._usage.get(who)
        if usage is None:
            usage = Usage()
            for held in self.held[who].values():
                usage = usage.plus(held.job, gpus=held.gpus, model=held.model)
            self._usage[who] = usage
        if not self._has_budget(who):
            return usage
        return replace(usage, gpu_seconds=self._budget(who, now), returns=self._returns(who, now))

    def _returns(self, who: int, now: datetime) -> tuple[tuple[datetime, int], ...]:
        window = timedelta(days=self.limits[who].window_days)
        return tuple((end + window, round(milli * (end - max(since, now - window)).total_seconds()) // WHOLE)
                     for since, end, milli in self.used[who])  # fmt: skip

    def _has_budget(self, who: int) -> bool:
        return who in self.limits and self.limits[who].has_budget

    def _budget(self, who: int, now: datetime) -> int:
        """GPU-seconds used in the window, and promised to live runs up to their limits."""
        begin = now - timedelta(days=self.limits[who].window_days)
        used = self.used[who]
        while used and used[0][1] <= begin:
            used.popleft()
        past = sum(milli * (end - max(since, begin)).total_seconds() for since, end, milli in used)
        live = sum(
            held.job.milli_of(held.gpus) * (_promised(held, now) - max(held.since, begin)).total_seconds()
            for held in self.held[who].values()
        )
        return round((past + live) / WHOLE)


def _promised(held: _Held, now: datetime) -> datetime:
    limit = held.job.limit_seconds
    return now if limit is None else max(held.since + timedelta(seconds=limit), now)


class _Decaying:
    """GPU-seconds by half-life: each counts ½ ^ (age / half-life)."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.value: dict[object, float] = defaultdict(float)
        self.rate: dict[object, float] = defaultdict(float)  # GPUs held

    def advance(self, seconds: float) -> None:
        kept = 0.5 ** (seconds / self.half_life)
        grown = self.half_life / math.log(2) * (1 - kept)
        for key in self.value.keys() | self.rate.keys():
            self.value[key] = self.value[key] * kept + self.rate[key] * grown


class Holdings:
    """Nodes, limits and shares of `picture`, and what runs take from them from `begin` on."""

    def __init__(self, picture: Snapshot, begin: datetime, *, half_life: float) -> None:
        self.base = picture
        self.now = begin
        self.nodes = {node.name: node for node in picture.nodes}
        self._gpus = {gpu.uuid: gpu for node in picture.nodes for gpu in node.gpus}
        self._users = _Level(picture.user_limits)
        self._teams = _Level(picture.team_limits)
        self._decaying = _Decaying(half_life)
        self._decaying.value.update({team: share.used for team, share in picture.team_shares.items()})
        self._decaying.value.update({both: share.used for both, share in picture.member_shares.items()})
        self.gpus = 0.0  # held now

    @property
    def guarantees(self) -> bool:
        return any(limits.guaranteed_gpus is not None for limits in self.base.team_limits.values())

    @property
    def longest_window(self) -> float | None:
        """In seconds, of those who have a budget; None when nobody has."""
        levels = (self.base.user_limits, self.base.team_limits)
        days = [limits.window_days for level in levels for limits in level.values() if limits.has_budget]
        return max(days) * DAY if days else None

    def advance(self, now: datetime) -> None:
        self._decaying.advance((now - self.now).total_seconds())
        self.now = now

    def take(self, placement: Placement, job: Waiting, *, run: int) -> Running:
        """The job starts as `run`. Returns it as the next pass sees it."""
        cards = [self._gpus[uuid] for uuid in placement.gpu_uuids]
        gpus, job = len(cards), charged(job, cards)
        slots = {card.uuid: slots_of(job, card) for card in cards}
        running = Running(
            run=run, job=job.id, user=job.user, team=job.team, priority=job.priority, node=placement.node, gpus=gpus,
            slots=slots, millicpus=job.millicpus, memory_mib=job.memory_mib, since=self.now,
            ends_by=None if job.limit_seconds is None else self.now + timedelta(seconds=job.limit_seconds),
            interactive=job.interactive, gpu_milli=job.gpu_milli if shares(job) else WHOLE,
            model=cards[0].model if cards else "",
        )  # fmt: skip
        self._charge(running, +1)
        held = _Held(job, gpus, cards[0].model if gpus else "", self.now)
        self._users.take(job.user, run, held)
        self._teams.take(job.team, run, held)
        return running

    def release(self, run: Running) -> None:
        self._charge(run, -1)
        self._users.release(run.user, run.run, self.now)
        self._teams.release(run.team, run.run, self.now)

    def _charge(self, run: Running, sign: int) -> None:
        node = self.nodes[run.node]
        gpus = tuple(
            replace(gpu, used_slots=gpu.used_slots + sign * run.slots[gpu.uuid]) if gpu.uuid in run.slots else gpu
            for gpu in node.gpus
        )
        self.nodes[run.node] = replace(
            node, gpus=gpus, used_millicpus=node.used_millicpus + sign * run.millicpus,
            used_memory_mib=node.used_memory_mib + sign * run.memory_mib,
        )  # fmt: skip
        self.gpus += sign * run.milli / WHOLE
        counts = self.base.rules.weights.milli(
            run.milli, model=run.model, millicpus=run.millicpus, memory_mib=run.memory_mib
        )
        for key in (run.team, (run.team, run.user)):
            self._decaying.rate[key] += sign * counts / WHOLE

    def picture(self, *, waiting: tuple[Waiting, ...], running: Iterable[Running]) -> Snapshot:
        """The snapshot of a pass now."""
        used = self._decaying.value
        return replace(
            self.base, now=self.now, nodes=tuple(self.nodes.values()), waiting=waiting, running=tuple(running),
            user_usage=self._users.usage(self.now), team_usage=self._teams.usage(self.now),
            team_shares={team: Share(shares=s.shares, used=used[team]) for team, s in self.base.team_shares.items()},
            member_shares={both: Share(shares=s.shares, used=used[both])
                           for both, s in self.base.member_shares.items()},
        )  # fmt: skip
