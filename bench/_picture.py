"""A cluster as the policy sees it in the midst of a day: most of it allocated, and a long queue."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.policy import Gpu, Node, Rules, Running, Share, Snapshot, Waiting, place
from jobs.policy.fleet import Fleet
from jobs.policy.ledger import slots_of
from jobs.policy.trace import SLOTS, read_nodes, read_trace
from jobs.quotas import WHOLE, Limits, Usage

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = 3600
USERS, TEAMS = 60, 8
RICH = 0  # the team with guaranteed GPUs that it does not use: it takes some back in the pass
LIMITS = (HOUR // 2, HOUR, 2 * HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, 72 * HOUR)


@dataclass(frozen=True)
class Trace:
    """The hosts, and the tasks as they came. `source` says whose they are."""

    source: str
    nodes: Sequence[Node]
    tasks: Sequence[Waiting]


def openb(folder: Path) -> Trace:
    """A production cluster of 1,213 hosts and 6,212 GPUs."""
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as lines:
        nodes = read_nodes(lines)
    with (folder / "openb_pod_list_gpuspec33.csv").open(newline="") as lines:
        tasks = [task.job for task in read_trace(lines, timed=False).tasks]
    return Trace("openb", nodes, tasks)


def made_up(seed: int = 7) -> Trace:
    """As many hosts and GPUs, of a mix like that of the production cluster."""
    dice = random.Random(seed)
    sizes = [8] * 550 + [4] * 300 + [2] * 249 + [1] * 114
    nodes = [_host(f"host-{n:04}", gpus, dice.choice(("A100", "V100", "T4"))) for n, gpus in enumerate(sizes)]
    tasks = [_task(dice, number) for number in range(1, 8001)]
    return Trace("made up", nodes, tasks)


def _host(name: str, gpus: int, model: str) -> Node:
    cards = tuple(Gpu(uuid=f"{name}/{i}", index=i, model=model, memory_mib=None, slots=SLOTS) for i in range(gpus))
    return Node(name=name, millicpus=16_000 * gpus, memory_mib=65_536 * gpus, gpus=cards)


def _task(dice: random.Random, number: int) -> Waiting:
    gpus = dice.choices((1, 2, 4, 8), (85, 6, 4, 5))[0]
    share = dice.choice((WHOLE, WHOLE, 460, 300, 800)) if gpus == 1 else WHOLE
    return Waiting(
        id=number, user=0, team=0, priority=1, queued_at=NOW, gpus=gpus, gpu_milli=share,
        gpu_model=dice.choice(("", "", "A100", "V100|T4")), millicpus=dice.choice((2000, 4000, 6000, 8000)) * gpus,
        memory_mib=dice.choice((8192, 16_384, 32_768)) * gpus, limit_seconds=None,
    )  # fmt: skip


def lab(seed: int = 7) -> Trace:
    """Fifty hosts of eight GPUs, and jobs as people of one lab write them: so many GPUs, and what goes with them."""
    dice = random.Random(seed)
    tasks = [
        Waiting(
            id=number, user=0, team=0, priority=1, queued_at=NOW, gpus=gpus, millicpus=cpus * max(gpus, 1),
            memory_mib=8192 * max(gpus, 1), limit_seconds=None, gpu_milli=dice.choice((WHOLE, WHOLE, 500)),
        )
        for number in range(1, 2001)
        for gpus, cpus in [(dice.choices((0, 1, 2, 4, 8), (5, 60, 15, 12, 8))[0], dice.choice((2000, 4000)))]
    ]  # fmt: skip
    return Trace("lab", [_host(f"host-{number:02}", 8, "A100") for number in range(50)], tasks)


def fill(nodes: Sequence[Node], tasks: Sequence[Waiting], share: float, dice: random.Random) -> tuple[Snapshot, int]:
    """Tasks placed one after the other until such a share of the GPUs is allocated, and how many tasks that took."""
    fleet = Fleet(nodes)
    goal = share * WHOLE * sum(len(node.gpus) for node in nodes)
    running: list[Running] = []
    refused: set[object] = set()
    taken = used = 0
    while taken < goal:
        task = tasks[used % len(tasks)]
        used += 1
        ledger = None if task.shape in refused else place.choose(task, fleet)
        if ledger is None:
            refused.add(task.shape)
            continue
        running.append(_run(len(running) + 1, task, ledger.node.name, fleet.take(ledger, task), dice))
        taken += running[-1].milli
    return _with_usage(_used(nodes, running), running), used


def _run(number: int, task: Waiting, node: str, gpus: tuple[Gpu, ...], dice: random.Random) -> Running:
    user = dice.randrange(USERS)
    since = NOW - timedelta(seconds=dice.uniform(60, 48 * HOUR))
    left = timedelta(seconds=dice.uniform(60, 48 * HOUR))
    return Running(
        run=number, job=1_000_000 + number, user=user, team=_team(user, dice), priority=dice.choice((0, 1, 1, 1, 2)),
        node=node, gpus=len(gpus), slots={gpu.uuid: slots_of(task, gpu) for gpu in gpus}, gpu_milli=task.gpu_milli,
        millicpus=task.millicpus, memory_mib=task.memory_mib, since=since,
        ends_by=None if dice.random() < 0.02 else NOW + left, preemptible=dice.random() < 0.3,
        likely=(NOW + left * 0.2, NOW + left * 0.8) if dice.random() < 0.7 else None,
    )  # fmt: skip


def _team(user: int, dice: random.Random) -> int:
    """Runs of the rich team are rare."""
    team = user % TEAMS
    return team if team != RICH or dice.random() < 0.02 else 1


def _used(nodes: Sequence[Node], running: Sequence[Running]) -> tuple[Node, ...]:
    """The hosts with what the runs hold."""
    slots: dict[str, int] = defaultdict(int)
    millicpus: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    for run in running:
        millicpus[run.node] += run.millicpus
        memory[run.node] += run.memory_mib
        for uuid, count in run.slots.items():
            slots[uuid] += count
    return tuple(
        replace(
            node, used_millicpus=millicpus[node.name], used_memory_mib=memory[node.name],
            gpus=tuple(replace(gpu, used_slots=slots[gpu.uuid]) for gpu in node.gpus),
        )
        for node in nodes
    )  # fmt: skip


def _with_usage(nodes: tuple[Node, ...], running: Sequence[Running]) -> Snapshot:
    users, teams = ({pk: Usage() for pk in range(count)} for count in (USERS, TEAMS))
    for run in running:
        for usage, pk in ((users, run.user), (teams, run.team)):
            held = usage[pk]
            usage[pk] = replace(
                held, gpu_milli=held.gpu_milli + run.milli, millicpus=held.millicpus + run.millicpus,
                memory_mib=held.memory_mib + run.memory_mib, running_jobs=held.running_jobs + 1,
            )  # fmt: skip
    gpus = sum(len(node.gpus) for node in nodes)
    return Snapshot(
        now=NOW, nodes=nodes, waiting=(), running=tuple(running), user_usage=users, team_usage=teams,
        user_limits={pk: Limits(scope="user", name=f"user-{pk}", gpus=_quota(users[pk], pk)) for pk in users},
        team_limits={
            pk: Limits(scope="team", name=f"team-{pk}", gpus=gpus, guaranteed_gpus=gpus // TEAMS if pk == RICH else 0)
            for pk in teams
        },
        team_shares={pk: Share(shares=1 + pk % 3, used=3600.0 * usage.gpus) for pk, usage in teams.items()},
        member_shares={(pk % TEAMS, pk): Share(used=1800.0 * usage.gpus) for pk, usage in users.items()},
        rules=Rules(preempt_lower=True, defragment=True),
    )  # fmt: skip


def _quota(usage: Usage, pk: int) -> int:
    """Every fourth user's is nearly used up."""
    return int(usage.gpus) + (2 if pk % 4 == 0 else 200)


def queue(tasks: Sequence[Waiting], count: int, dice: random.Random) -> tuple[Waiting, ...]:
    """So many waiting jobs drawn from the tasks."""
    return tuple(_waiting(number, dice.choice(tasks), dice) for number in range(1, count + 1))


def _waiting(number: int, task: Waiting, dice: random.Random) -> Waiting:
    user = dice.randrange(USERS)
    ago = dice.uniform(0, 48 * HOUR)
    limit = dice.choice(LIMITS)
    return replace(
        task, id=number, user=user, team=user % TEAMS, priority=dice.choice((0, 1, 1, 1, 1, 2, 3)),
        queued_at=NOW - timedelta(seconds=ago), limit_seconds=limit,
        blocked_since=NOW - timedelta(seconds=ago / 2) if dice.random() < 0.8 else None,
        likely_seconds=(limit * 0.1, limit * 0.7) if dice.random() < 0.7 else None,
        held_by=("user",) if dice.random() < 0.01 else (),
    )  # fmt: skip
