"""A made-up month of a lab, by the same seed always the same: daily waves, users with habits, limits that over-ask."""

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.policy.replay import Task
from jobs.policy.view import Gpu, Node, Share, Snapshot, Waiting

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
HOUR, DAY = 3600.0, 86400.0
STEP = 0.25 * HOUR  # limits are whole quarters of an hour
LONGEST = 72 * HOUR
USERS, TEAMS = 25, 5


@dataclass(frozen=True)
class Habit:
    """What one user runs again and again: its usual length in seconds, its size, and by what factor they over-ask."""

    user: int
    name: str
    image: str
    median: float
    spread: float  # sigma of the logarithm
    gpus: int
    factor: float
    weight: float


def hosts(count: int = 8, gpus: int = 8) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"node-{n}", millicpus=128_000, memory_mib=1 << 20,
             gpus=tuple(Gpu(uuid=f"GPU-{n}-{i}", index=i, model="A100", memory_mib=81920) for i in range(gpus)))
        for n in range(count)
    )  # fmt: skip


def picture(nodes: tuple[Node, ...]) -> Snapshot:
    """The hosts, with five teams of five users who have equal shares and no limits."""
    return Snapshot(
        now=BEGIN, nodes=nodes, waiting=(), user_limits={}, team_limits={}, user_usage={}, team_usage={},
        team_shares={team: Share() for team in range(TEAMS)},
        member_shares={(user % TEAMS, user): Share() for user in range(USERS)},
    )  # fmt: skip


def habits(dice: random.Random) -> list[Habit]:
    found = []
    for user in range(USERS):
        over_asks = 1.2 + dice.lognormvariate(0.7, 0.6)  # by this factor, this user always
        eagerness = dice.lognormvariate(0, 0.8)
        for number in range(dice.randint(2, 5)):
            median = min(max(dice.lognormvariate(math.log(1.2 * HOUR), 1.0), 300), 24 * HOUR)
            spread = dice.uniform(0.2, 0.9)
            found.append(Habit(
                user=user, name=f"script-{number}", image=f"lab/{user % 7}", median=median, spread=spread,
                gpus=dice.choices((1, 2, 4, 8), (60, 15, 15, 10))[0],
                factor=over_asks,
                weight=eagerness * dice.lognormvariate(0, 0.5) / median**0.3,
            ))  # fmt: skip
    return found


def tasks(count: int, *, seed: int, gpus: int, load: float) -> list[Task]:
    """So many jobs, whose GPU time is `load` of what `gpus` GPUs have while they arrive."""
    dice = random.Random(seed)
    known = habits(dice)
    drawn = [_job(dice, habit) for habit in dice.choices(known, [habit.weight for habit in known], k=count)]
    work = sum(habit.gpus * seconds for habit, seconds, _limit in drawn)
    times = _arrivals(dice, count, span=work / (gpus * load))
    return [_task(number, at, *job, dice) for number, (at, job) in enumerate(zip(times, drawn, strict=True), 1)]


def _job(dice: random.Random, habit: Habit) -> tuple[Habit, float, float]:
    """One run of the habit: its length and its limit. One in twenty fails in its first minutes.

    People roughly know how long a run will take, and ask for that by their factor.
    """
    meant = min(dice.lognormvariate(math.log(habit.median), habit.spread), LONGEST / habit.factor)
    limit = min(math.ceil(meant * habit.factor / STEP) * STEP, LONGEST)
    if dice.random() < 1 / 20:
        return habit, dice.uniform(10, 240), limit
    return habit, min(meant * dice.lognormvariate(0, 0.2), limit), limit


def _arrivals(dice: random.Random, count: int, *, span: float) -> list[float]:
    """A Poisson process with daily waves and quiet week-ends, stretched to `span` seconds."""
    peak, found, at = 2.0 * count / span, list[float](), 0.0
    while len(found) < count:
        at += dice.expovariate(peak)
        if dice.random() < wave(at) / 2.0:
            found.append(at)
    return found


def wave(at: float) -> float:
    """How busy that moment is, 1 on average over a week."""
    hour, weekday = at % DAY / HOUR, at // DAY % 7
    daily = 1 + 0.7 * math.sin((hour - 9) / 24 * 2 * math.pi)
    return daily * (0.55 if weekday >= 5 else 1.18)


def _task(number: int, at: float, habit: Habit, seconds: float, limit: float, dice: random.Random) -> Task:
    job = Waiting(
        id=number, user=habit.user, team=habit.user % TEAMS, priority=dice.choices((0, 1, 2), (10, 85, 5))[0],
        queued_at=BEGIN + timedelta(seconds=round(at)), gpus=habit.gpus, millicpus=4000 * habit.gpus,
        memory_mib=32768 * habit.gpus, limit_seconds=round(limit),
    )  # fmt: skip
    return Task(job=job, seconds=round(seconds), image=habit.image, name=habit.name)
