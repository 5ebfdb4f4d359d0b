"""One whole scheduling pass on a production cluster's hosts and tasks, against a fixed loop of plain Python.

OPENB names the folder of the public trace; without it hosts and tasks of the same size are made up.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench._picture import Trace, fill, lab, made_up, openb, queue
from bench._report import report, say
from jobs.policy import Plan, Snapshot, make_plan

WAITING, ALLOCATED, SEED, ROUNDS = 10_000, 0.9, 42, 5
SMALL_WAITING, SMALL_NODES = 500, 50


def picture(trace: Trace, waiting: int, nodes: int) -> Snapshot:
    """So many waiting jobs before the first of the hosts, most of whose GPUs are allocated."""
    dice = random.Random(SEED)
    found, used = fill(trace.nodes[:nodes], trace.tasks, ALLOCATED, dice)
    rest = trace.tasks[used:] if used < len(trace.tasks) * 0.9 else trace.tasks
    return replace(found, waiting=queue(rest, waiting, dice))


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Of the processor, in the middle of some rounds."""
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return statistics.median(times)


def loop() -> int:
    """The fixed work that machines are compared by."""
    found: dict[int, int] = {}
    for number in range(1_000_000):
        key = number * 31 % 4099
        found[key] = found.get(key, 0) + (number ^ key)
    return sum(found.values())


def check(picture: Snapshot, plan: Plan) -> dict[str, int]:
    """What the plan holds; it must hold all of it."""
    left = {job.id for job in picture.waiting} - {placed.job for placed in plan.placements}
    if not (plan.placements and plan.reservations and plan.preemptions):
        raise RuntimeError("the picture leads to no placement, no reservation or no preemption")
    if plan.reasons.keys() != left or plan.expected.keys() != left or not all(plan.reasons.values()):
        raise RuntimeError("jobs without a reason or an expected start")
    return {
        "placements": len(plan.placements), "reservations": len(plan.reservations),
        "preemptions": len(plan.preemptions), "left": len(left), "running": len(picture.running),
        "shapes": len({job.shape for job in picture.waiting}),
    }  # fmt: skip


def curve(large: Snapshot, trace: Trace) -> dict[str, dict[int, float]]:
    """Seconds by waiting jobs, and by hosts."""
    whole = len(trace.nodes)
    by_waiting = {count: replace(large, waiting=large.waiting[:count]) for count in _eighths(WAITING)}
    by_hosts = {count: picture(trace, WAITING // 4, count) for count in _eighths(whole)}
    found = {}
    for name, pictures in (("waiting", by_waiting), ("hosts", by_hosts)):
        found[name] = {count: round(seconds(partial(make_plan, part), 3), 4) for count, part in pictures.items()}
        say(f"by {name}: " + ", ".join(f"{count}: {took:.3f} s" for count, took in found[name].items()))
    return found


def _eighths(count: int) -> tuple[int, ...]:
    return count // 8, count // 4, count // 2, count


def main() -> None:
    folder = os.environ.get("OPENB")
    trace = openb(Path(folder)) if folder else made_up()
    say(f"hosts and tasks: {trace.source}" + ("" if folder else " (OPENB is not set)"))
    large = picture(trace, WAITING, len(trace.nodes))
    found = check(large, make_plan(large))
    say(f"{len(trace.nodes)} hosts, {found}")
    figure, reference = seconds(partial(make_plan, large)), seconds(loop)
    few = picture(lab(), SMALL_WAITING, SMALL_NODES)
    short = seconds(partial(make_plan, few), 15)
    say(f"large {figure:.3f} s, small {short * 1000:.1f} ms, plain loop {reference:.3f} s")
    report(
        "policy", figure=figure, reference=reference, ratio=figure / reference, unit="seconds",
        detail={"trace": trace.source, **found, "small_seconds": round(short, 4), **curve(large, trace)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
