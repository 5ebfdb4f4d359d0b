"""The load itself, on a database of its own: see `bench.load`."""

import json
import os
import time
import uuid
from itertools import cycle
from typing import Any, cast

from bench._judge import Sent, Trend, growing, lost, trend
from bench._kinds import KINDS, LASTING
from bench._left import memory
from bench._many import Installation, installation, people
from bench._report import report, say
from bench._rig import percentile
from bench._usage import Watch
from bench._web import hear, helpers, kept, tell
from gpus import history
from gpus.models import GPU
from jobs.models import Job, Run, Team
from jobs.request import JobRequest
from jobs.states import ENDED, RunState
from jobs.submit import submit
from portal.models import User
from tests.rigs.engine import BUSYBOX
from tests.rigs.processes import wait_until

JOBS, PEOPLE = int(os.environ.get("JOBS") or "200"), int(os.environ.get("PEOPLE") or "50")
SECONDS, STAY = float(os.environ.get("SECONDS") or "300"), float(os.environ.get("STAY") or "15")
EVERY = float(os.environ.get("EVERY") or "120")
A_HOST = 20  # jobs of a tenth of a CPU, on an engine that sees two CPUs
ROOM = 20  # places for the jobs that are sent meanwhile
ALONE, WARM, SAMPLED = 60.0, 60.0, 5.0  # seconds; the last: until each container was sampled
ALONE_PEOPLE = 5
KIND = ["prints", "floods", "writes", "fails"]
PATIENCE = 1200.0  # seconds
FLAT_SHARE, FLAT_MIB = 0.08, 12.0
Seen = dict[str, Any]
Crowd = Any


def lasting(crowd: list[dict[str, Any]]) -> list[int]:
    """Jobs that run throughout, of all people in turn."""
    jobs = []
    for person, _number in zip(cycle(crowd), range(JOBS), strict=False):
        request = JobRequest(
            name="lasting", image=BUSYBOX, script=LASTING, gpus=1, millicpus=100, memory_mib=64, shm_mib=16,
            limit_seconds=86400, grace_seconds=1,
        )  # fmt: skip
        owner, team = User.objects.get(username=person["name"]), Team.objects.get(pk=person["team"])
        jobs.append(submit(request, owner=owner, team=team, submission=uuid.uuid4()).pk)
    wait_until(lambda: _running(jobs) == JOBS, f"{JOBS} jobs run", seconds=PATIENCE, every=2)
    return jobs


def _running(jobs: list[int]) -> int:
    """How many of them run, as they did from their first start on."""
    return Run.objects.filter(job__in=jobs, state=RunState.RUNNING, number=1).count()


def visible(jobs: list[int], crowd: list[dict[str, Any]]) -> dict[str, list[int]]:
    """By person, those of the own team."""
    teams = dict(Job.objects.filter(pk__in=jobs).values_list("pk", "team_id"))
    return {person["name"]: [job for job in jobs if teams[job] == person["team"]] for person in crowd}


def fill_histories(running: Installation, jobs: list[int]) -> None:
    """As after an hour: the samples that are kept of each GPU and container are as many as they will ever be."""
    runs = Run.objects.filter(job__in=jobs).values_list("pk", flat=True)
    keys = [history.gpu_key(uuid) for uuid in GPU.objects.values_list("uuid", flat=True)]
    keys += [history.run_key(run) for run in runs]
    with running.redis.client() as client:
        for key in keys:
            oldest, there = cast(bytes | None, client.lindex(key, -1)), cast(int, client.llen(key))
            if oldest is not None:
                sample = json.loads(oldest)
                at, others = sample.pop("at"), json.dumps(sample)[1:]
                more = range(1, history.KEPT_SAMPLES - there + 1)
                client.rpush(key, *(f'{{"at": {at - past}, {others}' for past in more))


def go(crowd: Crowd, seconds: float, count: int, jobs: dict[str, list[int]]) -> Seen:
    """What so many people saw within so many seconds."""
    say(f"{count} people for {seconds:g} s")
    tell(crowd, {"seconds": seconds, "people": count, "jobs": jobs})
    seen = hear(crowd)
    say(f"  {len(seen['sent'])} jobs sent, {_requests(seen)} requests, {len(seen['troubles'])} troubles")
    for trouble in seen["troubles"][:20]:
        say(f"  {trouble}")
    return seen


def _requests(seen: Seen) -> int:
    return sum(map(len, seen["times"].values()))


def troubles_of(running: Installation, jobs: list[int], *rounds: Seen) -> list[str]:
    """Whatever went wrong for the people, with their jobs and those that last, or by the product's own logs."""
    sent = [Sent(job, KINDS[kind].ends) for seen in rounds for job, kind in seen["sent"]]
    numbers = [job for job, _ends in sent]
    unfinished = Job.objects.filter(pk__in=numbers).exclude(state__in=ENDED)
    wait_until(lambda: not unfinished.exists(), "the end of all jobs that were sent", seconds=PATIENCE, every=2)
    stopped = [f"{JOBS - _running(jobs)} of the jobs that last do not run"] if _running(jobs) != JOBS else []
    return [
        *(trouble for seen in rounds for trouble in seen["troubles"]), *stopped,
        *lost(sent, running.states(numbers), running.whole_logs(numbers)), *running.errors(),
    ]  # fmt: skip


def p95_of(seen: Seen) -> tuple[float, dict[str, list[float]]]:
    """Of all requests; by page: how many, p50, p95."""
    times = {page: sorted(found) for page, found in seen["times"].items() if len(found) > 1}
    pages = {page: [len(found), round(percentile(found, 50), 1), round(percentile(found, 95), 1)]
             for page, found in times.items()}  # fmt: skip
    return percentile([ms for found in times.values() for ms in found], 95), pages


def measure() -> tuple[Seen, Seen, list[str], dict[str, Trend]]:
    """What a few saw alone, what all saw together, what went wrong, and each role's memory meanwhile."""
    hosts = -(-(JOBS + ROOM) // A_HOST)
    with installation(hosts=hosts, gpus=A_HOST, network="none") as running, helpers("bench._crowd") as crowd:
        everybody = people(PEOPLE)
        tell(crowd, {"port": running.portal.port, "people": everybody, "kinds": KIND, "stay": STAY, "every": EVERY})
        hear(crowd)
        begun = time.monotonic()
        jobs = lasting(everybody)
        say(f"{JOBS} jobs run on {hosts} hosts after {time.monotonic() - begun:.0f} s")
        seen_by = visible(jobs, everybody)
        time.sleep(SAMPLED)
        fill_histories(running, jobs)
        warm = go(crowd, WARM, PEOPLE, seen_by)
        alone = go(crowd, ALONE, ALONE_PEOPLE, seen_by)
        watch = Watch(lambda: memory(running), every=5)
        watch.start()
        seen = go(crowd, SECONDS, PEOPLE, seen_by)
        trends = {name: trend(points) for name, points in watch.stop().items()}
        wrong = troubles_of(running, jobs, warm, alone, seen)
    return alone, seen, wrong, trends


def main() -> None:
    alone, seen, wrong, trends = measure()
    reference, _pages = p95_of(alone)
    figure, pages = p95_of(seen)
    for page, (count, p50, p95) in sorted(pages.items()):
        say(f"  {page:18} {count:6} requests, p50 {p50:7.1f} ms, p95 {p95:7.1f} ms")
    for name, found in trends.items():
        say(f"  memory of {name:9} {found.start:7.1f} MiB at first, {found.end:7.1f} at last, {found.hourly:+.1f}/hour")
    for what in wrong[:50]:
        say(f"WRONG: {what}")
    grew = growing(trends, share=FLAT_SHARE, least=FLAT_MIB)
    bounds = kept({"no error, nothing lost": not wrong, f"memory is flat{''.join(f', but not {n}' for n in grew)}":
                   not grew})  # fmt: skip
    memory_of = {name: [round(t.start, 1), round(t.end, 1), round(t.hourly, 1)] for name, t in trends.items()}
    report(
        "load", figure=figure, reference=reference, ratio=figure / reference,
        unit=f"ms, p95 of all requests of {PEOPLE} people; reference: of {ALONE_PEOPLE} people, the same jobs running",
        detail={"jobs": JOBS, "seconds": SECONDS, "requests": _requests(seen), "sent": len(seen["sent"]),
                "sockets": seen["counts"].get("sockets", 0), "log_pieces": seen["counts"].get("log pieces", 0),
                "errors": len(wrong), "wrong": wrong[:50], "pages": pages, "memory_start_end_hourly": memory_of,
                "bounds": bounds},
    )  # fmt: skip
    if wrong or grew:
        raise SystemExit("not all went well")


if __name__ == "__main__":
    main()
