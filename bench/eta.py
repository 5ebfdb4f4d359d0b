"""Expected starts, as told at submission, against the true ones: a month of a busy lab, replayed.

Each job that has to wait is told a range by the very code of the product: `make_plan` on the picture of that moment,
a rehearsal with what is known by then of how long jobs run and of which jobs come, and the correction by past
estimates whose jobs had started by then. A hit starts within its range. Aim: at least 80% hits, and a median width of
at most the median wait. The same is told by how far ahead the middle of the range was.

OPENB=<folder> adds openb's own arrivals and lengths on hosts that they fill.
"""

import math
import os
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench import _synthetic as synthetic
from bench._report import report, say
from jobs.policy.calibrate import RECENT, Calibration, Outcome
from jobs.policy.past import Past
from jobs.policy.rehearse import rehearse
from jobs.policy.replay import Setup, Task, replay
from jobs.policy.trace import read_trace
from jobs.policy.view import Expected, Plan, Snapshot, Waiting

JOBS, SEED, LOAD = 4000, 42, 0.9
REMEMBERED = timedelta(days=7)  # arrivals, as in the product
HORIZONS = (600.0, 3600.0, 6 * 3600.0, 86400.0, math.inf)  # seconds
FULL = 8  # jobs of openb that ask for one whole GPU or more are played on hosts of so many


@dataclass
class Told:
    """What one job was told, and what came of it. Seconds from its submission; None while not known."""

    at: datetime
    gpus: int
    raw: tuple[float, float] | None
    shown: tuple[float, float] | None
    waited: float | None = None

    def outcome(self, now: datetime) -> list[Outcome]:
        """What is known of it at that moment; nothing where there was no range."""
        if self.raw is None or self.shown is None:
            return []
        width = self.shown[1] - self.shown[0]
        if self.waited is None:
            return [Outcome(*self.raw, self.gpus, (now - self.at).total_seconds(), open=True, width=width)]
        hit = self.shown[0] <= self.waited <= self.shown[1]
        return [Outcome(*self.raw, self.gpus, self.waited, hit=hit, width=width)]


@dataclass
class Oracle:
    """Watches a replay, tells every arrival that must wait its range, and learns from those that have started."""

    told: dict[int, Told] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=lambda: Calibration([]))
    recent: deque[Waiting] = field(default_factory=deque)
    at_once: int = 0

    def watch(self, picture: Snapshot, plan: Plan, new: frozenset[int]) -> None:
        placed = {placement.job for placement in plan.placements}
        for job in placed:
            self._started(job, picture.now)
        self.at_once += len(placed & new)
        expected = plan.expected
        if new - placed:
            self.calibration = Calibration([one for told in self._last() for one in told.outcome(picture.now)])
            expected = rehearse(picture, plan, new - placed, tuple(self.recent))
        for job in picture.waiting:
            if job.id in new and job.id not in placed:
                self.told[job.id] = self._tell(expected.get(job.id), job.gpus, picture.now)
        self._remember([job for job in picture.waiting if job.id in new], picture.now)

    def _remember(self, jobs: list[Waiting], now: datetime) -> None:
        self.recent.extend(sorted(jobs, key=lambda job: job.queued_at))
        while self.recent and self.recent[0].queued_at < now - REMEMBERED:
            self.recent.popleft()

    def _last(self) -> list[Told]:
        return list(self.told.values())[-RECENT:]

    def _tell(self, expected: Expected | None, gpus: int, now: datetime) -> Told:
        if expected is None or expected.latest is None:
            return Told(now, gpus, None, None)
        low, high = ((at - now).total_seconds() for at in (expected.earliest, expected.latest))
        return Told(now, gpus, (low, high), self.calibration.correct(low, high, gpus))

    def _started(self, job: int, now: datetime) -> None:
        told = self.told.get(job)
        if told is None or told.waited is not None:
            return
        told.waited = (now - told.at).total_seconds()


def score(told: list[Told], *, of: str) -> dict[str, float]:
    """The hit rate, and the median width, of the ranges as planned or as shown.

    `ratio`: that width in medians of the true wait, which is judged. `ratio by job`: each width in its own wait.
    """
    started = [one for one in told if one.waited is not None]
    ranges = [(getattr(one, of), one.waited) for one in started]
    known = [(low_high, waited) for low_high, waited in ranges if low_high is not None]
    hits = sum(low <= waited <= high for (low, high), waited in known)
    width = statistics.median(high - low for (low, high), _waited in known)
    wait = statistics.median(waited for _range, waited in ranges)
    return {
        "waited": len(started), "without a range": len(started) - len(known), "hits": round(hits / len(started), 4),
        "early": round(sum(waited < low for (low, _high), waited in known) / len(started), 4),
        "late": round(sum(waited > high for (_low, high), waited in known) / len(started), 4),
        "median width min": round(width / 60, 2), "median wait min": round(wait / 60, 2),
        "ratio": round(width / wait, 4),
        "ratio by job": round(statistics.median((high - low) / max(waited, 1.0) for (low, high), waited in known), 4),
    }  # fmt: skip


def by_horizon(told: list[Told]) -> dict[str, dict[str, float]]:
    """The score of what was shown, by below how many minutes from its submission the middle of the range lay."""
    groups: dict[float, list[Told]] = {bound: [] for bound in HORIZONS}
    for one in told:
        if one.shown is not None and one.waited is not None:
            groups[next(bound for bound in HORIZONS if sum(one.shown) / 2 < bound)].append(one)
    return {f"below {bound / 60:g} min": score(found, of="shown") for bound, found in groups.items() if found}


def play(tasks: list[Task], picture: Snapshot) -> dict[str, Any]:
    oracle, begun = Oracle(), time.perf_counter()
    setup = Setup(picture=picture, past=Past(), watch=oracle.watch, samples=0)
    found = replay(tasks, setup, progress=_say_progress())
    told = list(oracle.told.values())
    return {
        "jobs": found.tasks, "started at once": oracle.at_once, "utilisation": round(found.utilisation, 4),
        "shown": score(told, of="shown"), "as planned": score(told, of="raw"),
        "by horizon": by_horizon(told), "passes": found.passes, "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def _say_progress() -> Any:
    said = 0

    def tell(part: float) -> None:
        nonlocal said
        if int(part * 10) > said:
            said = int(part * 10)
            say(f"{said * 10} %")

    return tell


def lab() -> dict[str, Any]:
    nodes = synthetic.hosts()
    return play(synthetic.tasks(JOBS, seed=SEED, gpus=64, load=LOAD), synthetic.picture(nodes))


def openb(folder: Path) -> dict[str, Any]:
    """openb's tasks of one whole GPU or more, its arrivals and lengths, on hosts that they keep busy.

    Tasks that lie over most of the trace are services, not jobs, and are left out. openb tells neither limits nor
    users: limits are the length times a factor, users are drawn, both from a fixed seed.
    """
    with (folder / "openb_pod_list_default.csv").open(encoding="utf-8", newline="") as lines:
        found = read_trace(lines).tasks
    dice = random.Random(SEED)
    tasks = [_limited(task, dice) for task in found if task.job.gpus and 60 <= (task.seconds or 0) <= 7 * 86400]
    begin = min(task.job.queued_at for task in tasks)
    end = max(task.job.queued_at for task in tasks)
    work = sum(task.job.gpus * (task.seconds or 0.0) for task in tasks)
    hosts = max(round(work / (end - begin).total_seconds() / FULL / LOAD), 2)
    picture = synthetic.picture(synthetic.hosts(hosts))
    return {"hosts": hosts, **play(tasks, picture)}


def _limited(task: Task, dice: random.Random) -> Task:
    user = dice.randrange(synthetic.USERS)
    asked = (task.seconds or 0.0) * (1.2 + dice.lognormvariate(0.7, 0.6))
    limit = math.ceil(asked / synthetic.STEP) * synthetic.STEP
    job = replace(task.job, user=user, team=user % synthetic.TEAMS, limit_seconds=round(limit), gpu_model="",
                  gpu_milli=1000, millicpus=4000, memory_mib=4096)  # fmt: skip
    return replace(task, job=job, image=f"image-{user % 7}", name=f"{job.gpus} GPUs of {user}")


def main() -> None:
    detail: dict[str, Any] = {"lab": lab()}
    if os.environ.get("OPENB"):
        detail["openb"] = openb(Path(os.environ["OPENB"]))
    shown = detail["lab"]["shown"]
    report("eta", figure=shown["hits"], reference=0.8, ratio=shown["ratio"], unit="part of hits", detail=detail)


if __name__ == "__main__":
    main()
