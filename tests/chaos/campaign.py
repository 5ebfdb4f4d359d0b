"""One campaign: a site, jobs, faults, and what is found at the end."""

import contextlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.collect import left, told
from tests.chaos.evidence import Evidence, Order
from tests.chaos.faults import Blow, Faults, Injector, Locks
from tests.chaos.judge import Verdict, judge
from tests.chaos.mix import LIMITS, orders
from tests.chaos.people import People
from tests.chaos.site import Site, running_site, wait_stopped
from tests.rigs.engine import running_engine

HOSTS = ("alpha", "beta", "gamma")
LIVE_RESTORE = "gamma"  # its engine leaves containers running while it restarts
AT_ONCE = 2  # faults


@dataclass
class Outcome:
    """What came of it. `clean` only if nothing of it is wrong."""

    verdict: Verdict
    blows: list[Blow]
    detail: dict[str, Any] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)  # what the campaign itself met: refusals, faults that failed

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and not self.trouble and all(blow.seconds is not None for blow in self.blows)


def run(
    site: Site, *, jobs: int, seconds: float, seed: int, pause: tuple[float, float], drain: float = 900
) -> Outcome:  # fmt: skip
    """Jobs and faults for so long, then peace until the last job has ended."""
    return _run(
        site, orders(jobs, seconds * 0.9, seed), Faults(site, random.Random(seed)), Locks(), seconds, pause, drain
    )


def run_briefly(site: Site, *, jobs: int, seconds: float, seed: int, drain: float) -> Outcome:
    """Jobs over so long, and each kind of fault once, with short outages, however long that takes."""
    faults = Faults(site, random.Random(seed), longest=4)
    return _run(site, orders(jobs, seconds, seed), faults, Locks(rounds=1), 10 * drain, (0.2, 1), drain)


def _run(
    site: Site, asked: list[Order], faults: Faults, locks: Locks, seconds: float, pause: tuple[float, float],
    drain: float,
) -> Outcome:  # fmt: skip
    begun = time.monotonic()
    people = People(site, asked)
    injectors = [Injector(faults, number, seconds, pause, locks) for number in range(AT_ONCE)]
    people.start()
    for injector in injectors:
        injector.start()
    for injector in injectors:
        injector.join()
    people.join(drain)
    wait_stopped(site, drain)
    remaining = left(site)
    evidence = Evidence(
        orders=asked, jobs=people.jobs, told=told(site, people), outages=faults.outages, limits=list(LIMITS),
        containers=[c for observer in site.observers.values() for c in observer.containers()],
        allocations_left=remaining[0], containers_left=remaining[1],
    )  # fmt: skip
    blows = sorted((blow for injector in injectors for blow in injector.blows), key=lambda blow: blow.begun)
    trouble = [*people.refused, *(failure for injector in injectors for failure in injector.failures)]
    detail = {
        "jobs": len(asked), "runs": sum(len(job.runs) for job in evidence.told),
        "containers": len(evidence.containers),
        "log_bytes_compared": sum(len(ran.log) for job in evidence.told for ran in job.runs),
        "longest_request_s": round(people.longest, 1), "took_s": round(time.monotonic() - begun),
    }  # fmt: skip
    return Outcome(judge(evidence), blows, detail, trouble)


@contextlib.contextmanager
def running_hosts(root: Path, names: Sequence[str] = HOSTS) -> Iterator[Site]:
    """A site on engines of its own."""
    with contextlib.ExitStack() as ends:
        engines = {name: ends.enter_context(running_engine(live_restore=name == LIVE_RESTORE)) for name in names}
        yield ends.enter_context(running_site(root, engines))


def report(outcome: Outcome, *, seed: int) -> dict[str, Any]:
    """As JSON: numbers of violations, faults by kind with the longest recovery of each, and the sentences."""
    verdict = outcome.verdict
    found = verdict.violations()
    faults: dict[str, dict[str, Any]] = {}
    for blow in outcome.blows:
        row = faults.setdefault(blow.kind, {"count": 0, "longest_recovery_s": 0.0, "not_recovered": 0})
        row["count"] += 1
        row["not_recovered"] += blow.seconds is None
        row["longest_recovery_s"] = max(row["longest_recovery_s"], round(blow.seconds or 0, 1))
    return {
        "seed": seed, "clean": outcome.is_clean, **{name: len(sentences) for name, sentences in found.items()},
        "log_bytes_missing": verdict.bytes_missing, "log_bytes_doubled": verdict.bytes_doubled,
        "logs_told_incomplete": len(verdict.told_missing), "trouble": len(outcome.trouble),
        "faults": dict(sorted(faults.items())), **outcome.detail,
        "sentences": {name: sentences for name, sentences in found.items() if sentences},
        "told_incomplete": verdict.told_missing, "troubles": outcome.trouble,
    }  # fmt: skip


_TOLD = (
    "jobs_lost", "run_twice", "gpu_given_twice", "wrong_exit_codes", "log_bytes_missing", "log_bytes_doubled",
    "log_bytes", "allocations_left", "containers_left", "quotas_passed", "unseen", "trouble",
)  # fmt: skip


def text(row: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{row['jobs']} jobs, {row['runs']} runs, {row['took_s']} s, seed {row['seed']}"]
    lines += [f"  {name.replace('_', ' '):<24} {row[name]}" for name in _TOLD]
    lines += [
        f"  {kind:<24} {fault['count']:>3} times, longest recovery {fault['longest_recovery_s']} s"
        + (f", {fault['not_recovered']} not recovered" if fault["not_recovered"] else "")
        for kind, fault in row["faults"].items()
    ]
    for name, sentences in {**row["sentences"], "troubles": row["troubles"]}.items():
        lines += [f"{name}: {sentence}" for sentence in sentences[:20]]
    return "\n".join(lines)


def write(row: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n")
