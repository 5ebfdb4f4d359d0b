"""The soak itself, on a database of its own: see `bench.soak`."""

import os
import time
from collections.abc import Callable
from typing import Any

from bench._judge import Row, Sent, Slack, compare, lost, table, trend
from bench._kinds import KINDS
from bench._left import left, memory
from bench._many import Installation, installation, people
from bench._report import report, say
from bench._usage import Watch
from bench._web import hear, helpers, tell
from jobs.models import Job
from jobs.states import ENDED
from tests.rigs.processes import wait_until

MINUTES, WARM_MINUTES = float(os.environ.get("MINUTES") or "30"), float(os.environ.get("WARM_MINUTES") or "8")
PEOPLE, EVERY = int(os.environ.get("PEOPLE") or "12"), float(os.environ.get("EVERY") or "25")
STAY, GPUS = 6.0, 20  # mean seconds on a page; as many jobs of a tenth of a CPU as a host of two CPUs can run
DRAIN, QUIET = 900.0, 75.0  # seconds until all have ended, at most; until what is kept for a minute is let go
LOOKS, APART = 5, 4.0  # the lowest of so many counts: a pass, a sample or a heartbeat may be at work in one of them
SLACKS = {
    "memory": Slack(more=6, share=0.12),  # a heap fills its arenas over some thousand requests, and then stays
    "Redis memory": Slack(more=1, share=0.1), "files": Slack(more=3),
    "PostgreSQL memory": Slack(share=0.15),  # what a connection remembers of queries, until it is a minute old
    "threads": Slack(more=2), "Redis connections": Slack(more=3), "connections": Slack(more=3),
    "Redis keys that expire by themselves": Slack(more=float("inf")),
}  # fmt: skip
Crowd = Any


def go(crowd: Crowd, minutes: float, what: str) -> dict[str, Any]:
    """What the people saw within so many minutes."""
    say(f"{what}: {minutes:g} minutes with {PEOPLE} people")
    tell(crowd, {"seconds": 60 * minutes, "people": PEOPLE, "jobs": {}})
    seen = hear(crowd)
    say(f"  {len(seen['sent'])} jobs, {sum(map(len, seen['times'].values()))} requests, "
        f"{seen['counts'].get('sockets', 0)} sockets, {len(seen['troubles'])} troubles")  # fmt: skip
    for trouble in seen["troubles"][:20]:
        say(f"  {trouble}")
    return seen


def settled(running: Installation) -> dict[str, float]:
    """What is there once all jobs have ended and nobody looks: the lowest of a few counts."""
    wait_until(lambda: not Job.objects.exclude(state__in=ENDED).exists(), "the end of all jobs", seconds=DRAIN, every=1)
    wait_until(lambda: not running.containers(), "the end of all containers", seconds=DRAIN, every=1)
    time.sleep(QUIET)
    found = left(running)
    for _look in range(LOOKS - 1):
        time.sleep(APART)
        again = left(running)
        found = {name: min(found.get(name, 0.0), again.get(name, 0.0)) for name in found | again}
    return found


def troubles_of(running: Installation, seen: dict[str, Any]) -> list[str]:
    """Whatever went wrong for the people, with their jobs, or by the product's own logs."""
    sent = [Sent(job, KINDS[kind].ends) for job, kind in seen["sent"]]
    numbers = [job for job, _ends in sent]
    return [*seen["troubles"], *lost(sent, running.states(numbers), running.whole_logs(numbers)), *running.errors()]


def watched(
    running: Installation, doing: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """What `doing` returned, and each role's memory meanwhile: at first, at last, MiB an hour."""
    watch = Watch(lambda: memory(running), every=5)
    watch.start()
    seen = doing()
    trends = {name: trend(points) for name, points in watch.stop().items()}
    return seen, {name: [round(t.start, 1), round(t.end, 1), round(t.hourly, 1)] for name, t in trends.items()}


def measure() -> tuple[list[Row], list[str], dict[str, Any]]:
    """The rows, the troubles, and what else there is to tell."""
    with installation(hosts=1, gpus=GPUS, network="isolated") as running, helpers("bench._crowd") as crowd:
        tell(crowd, {"port": running.portal.port, "people": people(PEOPLE), "kinds": list(KINDS), "stay": STAY,
                     "every": EVERY})  # fmt: skip
        hear(crowd)
        warm = go(crowd, WARM_MINUTES, "warm-up")
        base = settled(running)
        seen, trends = watched(running, lambda: go(crowd, MINUTES, "soak"))
        end = settled(running)
        wrong = [*troubles_of(running, warm), *troubles_of(running, seen)]
    detail = {"minutes": MINUTES, "jobs": len(seen["sent"]), "requests": sum(map(len, seen["times"].values())),
              "sockets": seen["counts"].get("sockets", 0), "log_pieces": seen["counts"].get("log pieces", 0),
              "memory_start_end_hourly": trends}  # fmt: skip
    return compare(base, end, SLACKS), wrong, detail


def main() -> None:
    rows, wrong, detail = measure()
    behind = [row.name for row in rows if not row.is_back]
    say(table(rows))
    for what in wrong[:50]:
        say(f"WRONG: {what}")
    for name, (start, end, hourly) in detail["memory_start_end_hourly"].items():
        say(f"memory of {name} meanwhile: {start:.0f} MiB at first, {end:.0f} at last, {hourly:+.1f} an hour")
    report(
        "soak", figure=len(behind) + len(wrong), reference=0, ratio=float(not behind and not wrong),
        unit="measures not back at their base, and troubles; ratio: 1 where there are none",
        detail=detail | {"left": behind, "wrong": wrong[:50]},
    )  # fmt: skip
    if behind or wrong:
        raise SystemExit("not all is as it was before")


if __name__ == "__main__":
    main()
