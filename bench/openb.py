"""Placing alone on a production cluster's hosts and tasks, as in the FGD paper (USENIX ATC 2023), against its results.

OPENB names the folder of the public trace. Tasks never end; one that fits nowhere when it is offered is dropped. The
placing is the scheduler's own, `place.choose`, told of the requests offered so far and never of those to come.
Beside the paper's four workloads, others are derived from the same trace as its authors derive theirs; those have no
published results. WORKLOADS and SEEDS choose some: names, and how many seeds from 42 on. Each row says too what is
allocated where all tasks are known ahead, and hosts, CPUs and models are no matter: about the most there is to gain.
"""

import os
import random
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from bench._report import report, say
from jobs.policy import Node, Waiting, place
from jobs.policy.demand import Demand
from jobs.policy.fleet import Fleet
from jobs.policy.trace import read_nodes, read_trace
from jobs.policy.view import WHOLE

FIRST_SEED, SEEDS, OFFERED = 42, 10, 1.3
# Allocated GPUs in percent by FGD, the best in the paper: when 100% and when 130% of all GPUs were asked for.
FGD = {
    "default": (95.23, 95.39), "multigpu50": (97.09, 97.18), "gpuspec33": (87.84, 94.55), "gpushare100": (86.64, 86.90),
}  # fmt: skip
DERIVED = ("multigpu20", "multigpu30", "multigpu40", "gpushare40", "gpushare60", "gpushare80", "gpuspec10", "gpuspec20",
           "gpuspec25")  # fmt: skip

Tasks = Sequence[Waiting]
Row = TypeVar("Row")


class Shared:
    """GPUs in parts: of each some thousandths are free."""

    def __init__(self) -> None:
        self.free: list[int] = []  # ascending
        self.opened = 0

    def take(self, share: int) -> bool:
        """Into the fullest that has room; False where none has."""
        place = bisect_left(self.free, share)
        if place == len(self.free):
            return False
        if rest := self.free.pop(place) - share:
            insort(self.free, rest)
        return True

    def open(self, share: int) -> None:
        self.opened += 1
        insort(self.free, WHOLE - share)


@dataclass(frozen=True)
class Run:
    """Allocated GPUs in percent at both times, and the seconds of the processor that it took."""

    at_100: float
    at_130: float
    seconds: float


def milli(task: Waiting) -> int:
    return task.milli_of() if task.gpus else 0


def offered(tasks: Tasks, capacity: int, seed: int) -> list[Waiting]:
    """The tasks of one run, in order: copies are added, or some taken away, until 1.3 times the GPUs are asked for."""
    dice = random.Random(seed)
    found, goal = list(tasks), OFFERED * capacity
    total = sum(map(milli, found))
    if total > goal:
        while total > goal:
            total -= milli(found.pop(dice.randrange(len(found))))
    else:
        while total < goal:
            found.append(dice.choice(tasks))
            total += milli(found[-1])
    dice.shuffle(found)
    return found


def run(nodes: Sequence[Node], tasks: Tasks, capacity: int) -> Run:
    """Offer the tasks one by one."""
    fleet, begun = Fleet(nodes, demand=Demand()), time.process_time()
    asked = given = 0
    at_100: int | None = None
    for task in tasks:
        if at_100 is None and asked + milli(task) > capacity:
            at_100 = given
        asked += milli(task)
        fleet.demand.add(task)
        ledger = place.choose(task, fleet)
        if ledger is not None:
            fleet.take(ledger, task)
            given += milli(task)
    seconds = time.process_time() - begun
    return Run(100 * (given if at_100 is None else at_100) / capacity, 100 * given / capacity, seconds)


def known_ahead(tasks: Tasks, capacity: int) -> tuple[float, float]:
    """About the most of the GPUs, in percent at both times, that whoever refuses no task that fits could allocate.

    As many tasks, in order, as all GPUs together hold, shares packed largest first; then shares that fit in the rest.
    """
    tasks = [task for task in tasks if task.gpus]
    count = bisect_left(range(len(tasks)), True, key=lambda number: _packed(tasks[: number + 1])[1] * WHOLE > capacity)
    shared, _gpus = _packed(tasks[:count])
    asked = given = sum(map(milli, tasks[:count]))
    at_100 = 0
    for task in tasks[count:]:
        if asked + milli(task) > capacity:
            at_100 = at_100 or given
        asked += milli(task)
        given += milli(task) if milli(task) < WHOLE and shared.take(milli(task)) else 0
    return 100 * (at_100 or given) / capacity, 100 * given / capacity


def _packed(tasks: Tasks) -> tuple[Shared, int]:
    """The GPUs that are shared, and how many are used in all."""
    shared, sizes = Shared(), list(map(milli, tasks))
    for share in sorted((size for size in sizes if size < WHOLE), reverse=True):
        if not shared.take(share):
            shared.open(share)
    return shared, shared.opened + sum(size for size in sizes if size >= WHOLE) // WHOLE


def read(folder: Path, name: str) -> Tasks:
    with (folder / f"openb_pod_list_{name}.csv").open(newline="") as lines:
        return [task.job for task in read_trace(lines, timed=False).tasks]


def derived(folder: Path, name: str) -> Tasks:
    """A workload of the paper's family: a part of it, in percent, is as the name says."""
    family, percent = name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])
    return {"multigpu": _multigpu, "gpushare": _gpushare, "gpuspec": _gpuspec}[family](folder, percent / 100)


def _multigpu(folder: Path, part: float) -> Tasks:
    """The default tasks with copies of those of several GPUs, until these ask for the part of all GPUs."""
    tasks, dice = list(read(folder, "default")), random.Random(0)
    several = [task for task in tasks if task.gpus > 1]
    total, theirs = sum(map(milli, tasks)), sum(map(milli, several))
    while theirs < part * total:
        tasks.append(dice.choice(several))
        total, theirs = total + milli(tasks[-1]), theirs + milli(tasks[-1])
    return tasks


def _gpushare(folder: Path, part: float) -> Tasks:
    """The default tasks with some of whole GPUs exchanged for such of shares, until these ask for the part."""
    tasks, dice = list(read(folder, "default")), random.Random(0)
    sharing = [task for task in tasks if task.gpus == 1 and task.gpu_milli < WHOLE]
    places = [number for number, task in enumerate(tasks) if task.gpus and milli(task) >= WHOLE]
    dice.shuffle(places)
    total, theirs = sum(map(milli, tasks)), sum(map(milli, sharing))
    while theirs < part * total:
        number, new = places.pop(), dice.choice(sharing)
        total, theirs = total - milli(tasks[number]) + milli(new), theirs + milli(new)
        tasks[number] = new
    return tasks


def _gpuspec(folder: Path, part: float) -> Tasks:
    """The tasks of gpuspec33 with some models taken back, until the part of the GPU tasks names models."""
    tasks, dice = list(read(folder, "gpuspec33")), random.Random(0)
    places = [number for number, task in enumerate(tasks) if task.gpu_model]
    dice.shuffle(places)
    for number in places[int(part * sum(1 for task in tasks if task.gpus)) :]:
        tasks[number] = replace(tasks[number], gpu_model="")
    return tasks


def mean(runs: Sequence[Row], of: Callable[[Row], float]) -> float:
    return sum(map(of, runs)) / len(runs)


def measure(folder: Path, nodes: Sequence[Node], name: str, seeds: int) -> dict[str, float]:
    """A row of the table: means over the seeds, and how much above FGD that is, where it is published."""
    capacity = sum(len(node.gpus) for node in nodes) * WHOLE
    tasks = read(folder, name) if name in FGD else derived(folder, name)
    series = [offered(tasks, capacity, FIRST_SEED + number) for number in range(seeds)]
    runs, ahead = [run(nodes, come, capacity) for come in series], [known_ahead(come, capacity) for come in series]
    at_100, at_130 = mean(runs, lambda found: found.at_100), mean(runs, lambda found: found.at_130)
    row = {"at_100": at_100, "at_130": at_130, "seconds": mean(runs, lambda found: found.seconds)}
    row |= {"known_ahead_at_100": mean(ahead, itemgetter(0)), "known_ahead_at_130": mean(ahead, itemgetter(1))}
    if name in FGD:
        row |= {"above_fgd_at_100": at_100 - FGD[name][0], "above_fgd_at_130": at_130 - FGD[name][1]}
    return {key: round(value, 3) for key, value in row.items()}


def main() -> None:
    where = os.environ.get("OPENB", "")
    if not (Path(where) / "openb_node_list_gpu_node.csv").is_file():
        say("Skipped: say where the public trace is, OPENB=<folder with openb_node_list_gpu_node.csv>.")
        return
    folder = Path(where)
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as lines:
        nodes = read_nodes(lines)
    table = {}
    for name in os.environ.get("WORKLOADS", "").split() or (*FGD, *DERIVED):
        table[name] = measure(folder, nodes, name, int(os.environ.get("SEEDS", SEEDS)))
        say(f"{name}: {table[name]}")
    margins = {(name, at): row[f"above_fgd_at_{at}"] for name, row in table.items() if name in FGD for at in (100, 130)}
    least = min(margins, key=lambda found: margins[found], default=None)
    if least is None:
        return
    reference = FGD[least[0]][0 if least[1] == 100 else 1]
    report(
        "openb", figure=margins[least], reference=reference, ratio=table[least[0]][f"at_{least[1]}"] / reference,
        unit="percentage points above FGD", detail={"least": f"{least[0]} at {least[1]}%", "workloads": table},
    )  # fmt: skip


if __name__ == "__main__":
    main()
