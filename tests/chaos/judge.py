"""Judges what a campaign of chaos left: each violation as a sentence, by kind. Pure.

The portal's own word counts for what became of a job; for what ran where and when, only what the observers saw.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos import logbytes
from tests.chaos.evidence import STOPPED, Container, Evidence, Limit, Order, Outage, Run, Told

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"})
OWN_END = frozenset({"COMPLETED", "EXIT_CODE", "OOM_KILLED"})
FOR_GOOD = OWN_END | {"STOPPED_BY_USER", "TIME_LIMIT"}  # no run comes after one that ended so
SLACK = 5.0  # seconds in which what a fault did shows: an engine that goes down ends containers, then itself
SIGTERM, SIGKILL = 15, 9

# The ends that each kind may come to.
ENDS = {
    "time limit": {("TIMED_OUT", "TIME_LIMIT")},
    "cancelled": {("CANCELLED", "STOPPED_BY_USER")},
    "out of memory": {("FAILED", "OOM_KILLED")},
}
EXCUSED = {"HOST_DAEMON_RESTART": "engine", "DISK_FULL": "disk"}  # an end of that reason, by such an outage on its host


@dataclass
class Verdict:
    """Violations by kind: all empty when all is well. `told_missing`: runs whose log says that bytes are lost."""

    jobs_lost: list[str] = field(default_factory=list)
    run_twice: list[str] = field(default_factory=list)
    gpu_given_twice: list[str] = field(default_factory=list)
    wrong_exit_codes: list[str] = field(default_factory=list)
    log_bytes: list[str] = field(default_factory=list)
    bytes_missing: int = 0
    bytes_doubled: int = 0
    allocations_left: list[str] = field(default_factory=list)
    containers_left: list[str] = field(default_factory=list)
    quotas_passed: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    told_missing: list[str] = field(default_factory=list)

    def violations(self) -> dict[str, list[str]]:
        """By kind; `told_missing` is none where an engine died under the run, and is in `log_bytes` elsewhere."""
        return {name: value for name, value in vars(self).items() if isinstance(value, list) and name != "told_missing"}

    @property
    def is_clean(self) -> bool:
        return not any(self.violations().values())


def judge(evidence: Evidence) -> Verdict:
    verdict = Verdict(
        jobs_lost=list(lost(evidence)), run_twice=list(run_twice(evidence)),
        gpu_given_twice=list(gpu_given_twice(evidence.containers)), wrong_exit_codes=list(wrong_exit_codes(evidence)),
        allocations_left=[f"{evidence.allocations_left} allocations are held"] * bool(evidence.allocations_left),
        containers_left=list(evidence.containers_left), quotas_passed=list(quotas_passed(evidence)),
        unseen=list(unseen(evidence)),
    )  # fmt: skip
    judge_logs(evidence, verdict)
    return verdict


# --- what became of the jobs ---


def lost(evidence: Evidence) -> Iterator[str]:
    """Jobs that are nowhere, there twice, without an end, or at an end that nothing excuses."""
    names = Counter(told.name for told in evidence.told)
    found = {told.job: told for told in evidence.told}
    for order in evidence.orders:
        job = evidence.jobs.get(order.number)
        told = found.get(job) if job is not None else None
        if told is None:
            yield f"{order.token} ({order.kind}) is nowhere"
        elif names[order.token] > 1:
            yield f"{order.token} ({order.kind}) became {names[order.token]} jobs"
        elif not _may_end_so(evidence, order, told):
            yield f"job {job} ({order.kind}) is {told.state} for {told.end_reason or 'no reason'}"


def _may_end_so(evidence: Evidence, order: Order, told: Told) -> bool:
    if told.state not in TERMINAL:
        return False
    own = ("FAILED", "EXIT_CODE") if order.exit_code else ("SUCCEEDED", "COMPLETED")
    cut_short = told.end_reason == "EXIT_CODE" and told.exit_code == STOPPED
    if (told.state, told.end_reason) in ENDS.get(order.kind, {own}) and not cut_short:
        return True
    return bool(told.runs) and _is_excused(evidence, order, told, told.runs[-1])


def _is_excused(evidence: Evidence, order: Order, told: Told, run: Run) -> bool:
    """By an outage on its host. An engine that is away does not count who is killed for memory; while the agent is
    away, too, nobody sees that it was the engine that stopped a program which answers with a code of its own.
    """
    hit = {outage.what for outage in evidence.outages if _was_hit(run, outage)}
    if told.end_reason == "EXIT_CODE":
        unseen = order.kind == "out of memory" and told.exit_code == order.exit_code
        return "engine" in hit and (unseen or ("node" in hit and told.exit_code == STOPPED))
    return EXCUSED.get(told.end_reason) in hit


def _was_hit(run: Run, outage: Outage) -> bool:
    ended = run.ended_at if run.ended_at is not None else float("inf")
    return outage.host == run.host and run.placed_at <= outage.ended + SLACK and outage.begun - SLACK <= ended


def wrong_exit_codes(evidence: Evidence) -> Iterator[str]:
    """Codes that differ from the known one where the job ended by itself, or from what the engine was seen to say."""
    seen = {(c.job, c.attempt): c for c in evidence.containers}
    orders = evidence.ordered()
    for told in evidence.told:
        order = orders.get(told.job)
        if order and told.end_reason in OWN_END and told.exit_code not in (order.exit_code, STOPPED):
            yield f"job {told.job} ({order.kind}) is told to have exited with {told.exit_code}, not {order.exit_code}"
        for run in told.runs:
            container = seen.get((told.job, run.number))
            if container and container.exit_code is not None and run.exit_code not in (container.exit_code, None):
                yield f"job {told.job}, run {run.number}: {run.exit_code} is told, {container.exit_code} was seen"


# --- what ran ---


def run_twice(evidence: Evidence) -> Iterator[str]:
    """Programs that were started again though nobody had stopped them, or beside themselves."""
    again = {
        job for job, order in evidence.ordered().items() if order.body.get("preemptible") or order.body.get("movable")
    }
    by_job: dict[int, list[Container]] = {}
    for container in evidence.containers:
        if container.starts > 1:
            yield f"job {container.job}: its container {container.attempt} was started {container.starts} times"
        if container.has_run:
            by_job.setdefault(container.job, []).append(container)
    for job, containers in by_job.items():
        for one, other in pairwise(sorted(containers, key=lambda c: c.attempt)):
            if one.span()[1] > other.span()[0]:
                yield f"job {job}: runs {one.attempt} and {other.attempt} ran at the same time"
            elif not (_was_stopped(one) or (job in again and _went_down(evidence, one))):
                yield f"job {job}: run {other.attempt} after run {one.attempt} had come to its end ({one.exit_code})"
    for told in evidence.told:
        attempts = {run.number for run in told.runs} | {c.attempt for c in by_job.get(told.job, ())}
        for run in told.runs:
            if run.end_reason in FOR_GOOD and max(attempts) > run.number:
                yield f"job {told.job}: run {max(attempts)} after run {run.number} had ended for {run.end_reason}"


def _was_stopped(container: Container) -> bool:
    return container.exit_code == STOPPED or bool({SIGTERM, SIGKILL} & set(container.signals))


def _went_down(evidence: Evidence, container: Container) -> bool:
    """Whether its engine was away around its end."""
    at = container.span()[1]
    theirs = [outage for outage in evidence.outages if outage.what == "engine" and outage.host == container.host]
    return any(outage.begun - SLACK <= at <= outage.ended + SLACK for outage in theirs)


def gpu_given_twice(containers: Iterable[Container]) -> Iterator[str]:
    """GPUs that two containers had at the same moment, by their true starts and ends."""
    by_gpu: dict[str, list[Container]] = {}
    for container in containers:
        for gpu in container.gpus if container.has_run else ():
            by_gpu.setdefault(gpu, []).append(container)
    for gpu, users in by_gpu.items():
        latest: Container | None = None
        for user in sorted(users, key=Container.span):
            if latest is not None and user.span()[0] < latest.span()[1]:
                yield f"{gpu}: jobs {latest.job} and {user.job} had it at the same time"
            latest = user if latest is None else max(latest, user, key=lambda c: c.span()[1])


def quotas_passed(evidence: Evidence) -> Iterator[str]:
    """The most that ran at once of each whose quota says less, by the observers' times."""
    orders = evidence.ordered()
    ran = [(c, orders[c.job]) for c in evidence.containers if c.has_run and c.job in orders]
    for limit in evidence.limits:
        theirs = [(c, order) for c, order in ran if getattr(order, limit.whose) == limit.name]
        yield from _passed(limit, theirs)


def _passed(limit: Limit, ran: list[tuple[Container, Order]]) -> Iterator[str]:
    for what, most, weigh in (("GPUs", limit.gpus, lambda c: len(c.gpus)), ("jobs", limit.jobs, lambda _c: 1)):
        peak = _peak([(c, weigh(c)) for c, _order in ran])
        if most is not None and peak > most:
            yield f"{limit.whose} {limit.name} had {peak} {what} at once, and may have {most}"


def _peak(weighed: list[tuple[Container, int]]) -> int:
    """The greatest sum at any moment; an end comes before a start of the same time."""
    steps = [(c.span()[0], 1, weight) for c, weight in weighed] + [(c.span()[1], 0, -weight) for c, weight in weighed]
    held = most = 0
    for _at, _order, change in sorted(steps):
        held += change
        most = max(most, held)
    return most


def unseen(evidence: Evidence) -> Iterator[str]:
    """Where the observers were blind: what they did not see proves nothing."""
    orders = evidence.ordered()
    seen = {(c.job, c.attempt): c for c in evidence.containers}
    for container in evidence.containers:
        if container.has_run and not container.known:
            yield f"job {container.job}: nobody saw which GPUs its container {container.attempt} had"
        elif container.has_run and container.job in orders and len(container.gpus) != orders[container.job].gpus:
            yield f"job {container.job}: {len(container.gpus)} GPUs were seen, {orders[container.job].gpus} asked"
        if container.has_run and container.ended is None:
            yield f"job {container.job}: nobody saw the end of its container {container.attempt}"
    for told in evidence.told:
        for run in told.runs:
            container = seen.get((told.job, run.number))
            if run.has_started and (container is None or not container.has_run):
                yield f"job {told.job}: nobody saw its run {run.number}"


# --- what they printed ---


def judge_logs(evidence: Evidence, verdict: Verdict) -> None:
    seen = {(c.job, c.attempt): c for c in evidence.containers}
    orders = evidence.ordered()
    for told in evidence.told:
        for run in told.runs if told.job in orders else ():
            container = seen.get((told.job, run.number))
            _judge_log(evidence, orders[told.job], told.job, run, container, verdict)


def _judge_log(
    evidence: Evidence, order: Order, job: int, run: Run, container: Container | None, verdict: Verdict
) -> None:
    where = f"job {job} ({order.kind}), run {run.number}, {run.end_reason}"
    hit = {outage.what for outage in evidence.outages if _was_hit(run, outage)}
    excused = "engine" in hit
    if not run.log_complete:
        verdict.log_bytes.append(f"{where}: its log is not complete")
    if run.holes and excused:
        verdict.told_missing.append(where)
    elif run.holes:
        verdict.log_bytes.append(f"{where}: bytes are told to be lost")
    found = logbytes.compare(order, run, container, may_lack_notes="disk" in hit, engine_died=excused)
    verdict.bytes_missing += found.missing
    verdict.bytes_doubled += found.surplus
    if found.what:
        verdict.log_bytes.append(f"{where}: {found.what}, {found.missing} bytes missing, {found.surplus} too many")
