"""What the doctors of all hosts have found, for admins who have no shell: told by each host, put together here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import redis
from django.apps import apps
from django.conf import settings

from portal import nodereports
from portal.doctor.finding import Finding
from portal.doctor.rounds import of_portal

SCHEDULER = "@scheduler"  # under which it reports; no name of a node begins so


@dataclass(frozen=True)
class Section:
    """One host, or process of the portal: what is not well there, as of `at` (None: nothing was told yet)."""

    name: str
    role: str  # web, scheduler, node
    at: datetime | None
    findings: Sequence[Finding] = ()
    unknown: Sequence[dict[str, Any]] = field(default=())  # see jobs.unknown.as_told
    alive: bool = True
    shared: int = 0  # so many more, which web has found too: of the database, say, that all share

    @property
    def red(self) -> int:
        return sum(finding.verdict == "fail" for finding in self.findings)

    @property
    def is_well(self) -> bool:
        return not self.findings and not self.shared and not self.unknown and self.alive and self.at is not None


def tell(name: str, findings: Sequence[Finding]) -> None:
    """Report what is not well. Raises nothing: what Redis loses, the next round tells."""
    told = [finding.as_data() for finding in findings if finding.verdict != "ok"]
    try:
        nodereports.tell(name, doctor={"at": time.time(), "findings": told})
    except redis.RedisError:
        return


class Doctor:
    """The scheduler's: looks every DOCTOR_PERIOD, when its timer asks."""

    def __init__(self) -> None:
        self._due = 0.0

    def look(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + settings.DOCTOR_PERIOD
            tell(SCHEDULER, of_portal("scheduler"))


def sections() -> list[Section]:
    """This web process as it is now, then what the scheduler and all nodes have told besides. Raises DatabaseError."""
    nodes = list(apps.get_model("gpus", "Node").objects.filter(left_at=None).order_by("name"))
    reports = nodereports.read([SCHEDULER, *(node.name for node in nodes)])
    found = [finding for finding in of_portal("web") if finding.verdict != "ok"]
    told = [
        _section("", "scheduler", reports[SCHEDULER]),
        *(_section(node.name, "node", reports[node.name], alive=node.is_alive()) for node in nodes),
    ]
    return [Section("", "web", datetime.now(UTC), found), *(_besides(found, section) for section in told)]


def _besides(shared: Sequence[Finding], section: Section) -> Section:
    own = [finding for finding in section.findings if finding not in shared]
    return replace(section, findings=own, shared=len(section.findings) - len(own))


def _section(name: str, role: str, report: nodereports.Report, *, alive: bool = True) -> Section:
    doctor = report.get("doctor")
    if doctor is None:
        return Section(name, role, None, alive=alive)
    at = datetime.fromtimestamp(doctor["at"], UTC)
    found = [Finding.of(data) for data in doctor["findings"]]
    return Section(name, role, at, found, report.get("unknown", ()), alive)
