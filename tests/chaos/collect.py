"""What the portal says of the jobs at the end, as its users and its database see it."""

import contextlib
from pathlib import Path
from typing import Any

from tests.chaos.evidence import Run, Told
from tests.chaos.people import People
from tests.chaos.site import Site
from tests.rigs.processes import wait_until

SETTLING = 60.0  # seconds in which the last containers are removed
PIECE = 1 << 22


def told(site: Site, people: People) -> list[Told]:
    """Every job there is, with the log of each run as its owner downloads it."""
    return [_job(site, people, row) for row in site.ask(_rows)]


def _rows() -> list[dict[str, Any]]:
    from jobs.models import Job
    from jobs.models import Run as RunRow

    runs: dict[int, list[dict[str, Any]]] = {}
    for row in RunRow.objects.order_by("number").values(
        "job_id", "number", "node__name", "state", "end_reason", "exit_code", "started_at", "placed_at", "ended_at",
        "log_complete", "log_holes",
    ):  # fmt: skip
        runs.setdefault(row["job_id"], []).append(row)
    jobs = Job.objects.values("pk", "name", "state", "end_reason", "exit_code", "owner_id", "owner__username")
    return [{**job, "runs": runs.get(job["pk"], [])} for job in jobs]


def _job(site: Site, people: People, row: dict[str, Any]) -> Told:
    return Told(
        job=row["pk"], name=row["name"], state=row["state"], end_reason=row["end_reason"], exit_code=row["exit_code"],
        runs=tuple(_run(site, people, row, run) for run in row["runs"]),
    )  # fmt: skip


def _run(site: Site, people: People, job: dict[str, Any], row: dict[str, Any]) -> Run:
    return Run(
        number=row["number"], host=row["node__name"], state=row["state"], end_reason=row["end_reason"],
        exit_code=row["exit_code"], has_started=row["started_at"] is not None, placed_at=row["placed_at"].timestamp(),
        ended_at=row["ended_at"].timestamp() if row["ended_at"] else None, log=_log(site, people, job, row["number"]),
        log_complete=row["log_complete"] or row["started_at"] is None, holes=len(row["log_holes"]),
        noted=_noted(site.disk(row["node__name"]), job, row["number"]),
    )  # fmt: skip


def _log(site: Site, people: People, job: dict[str, Any], run: int) -> bytes:
    """Also left in a file, for who looks into what the judge found."""
    found = _download(people, job, run)
    folder = site.root / "logs"
    folder.mkdir(exist_ok=True)
    (folder / f"{job['pk']}.{run}").write_bytes(found)
    return found


def _download(people: People, job: dict[str, Any], run: int) -> bytes:
    found = b""
    while True:
        path = f"/api/jobs/{job['pk']}/log?run={run}&start={len(found)}"
        answer = people.ask(job["owner__username"], "GET", path)
        answer.raise_for_status()
        found += answer.content
        if not answer.content or len(found) >= int(answer.headers["X-Log-Size"]):
            return found


def _noted(disk: Path, job: dict[str, Any], run: int) -> int | None:
    """How many lines its program noted in its workspace on that host."""
    path = disk / "workspaces" / str(job["owner_id"]) / "jobs" / str(job["pk"]) / f"noted.{run}"
    return len(path.read_text().splitlines()) if path.exists() else None


def left(site: Site) -> tuple[int, list[str]]:
    """Allocations and GPU slots that are held, and containers that are there, once all may be gone."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not _held(site) and not _containers(site), "nothing is left", seconds=SETTLING, every=1)
    return _held(site), _containers(site)


def _held(site: Site) -> int:
    from jobs.models import Allocation, AllocationSlot

    return site.ask(lambda: sum(kind.objects.filter(released_at=None).count() for kind in (Allocation, AllocationSlot)))


def _containers(site: Site) -> list[str]:
    found: list[str] = []
    for name, host in site.hosts.items():
        with host.engine.client() as client:
            found += [f"{name}: {c.name} {c.status}" for c in client.containers.list(all=True, ignore_removed=True)]
    return found
