"""Who is ahead of a job in the queue and could take the same GPUs: worked out when asked, as each start changes it."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.policy.hardware import GpuKind, Hardware
from jobs.policy.ledger import Ledger
from jobs.policy.view import Node, Waiting

_NAMED = 3  # jobs that are named, of those ahead


@dataclass(frozen=True)
class Ahead:
    """How many, and the first of them by id."""

    count: int
    jobs: tuple[int, ...]


def ahead(job: int, line: Iterable[Waiting], nodes: Iterable[Node]) -> Ahead:
    """Who is before the job in `line`, the waiting jobs in the order of the queue, and would do with GPUs like its own.

    Jobs on hold are ahead of nobody. Jobs that need no GPU queue among themselves.
    """
    hardware = Hardware([Ledger(node) for node in nodes])
    before: list[Waiting] = []
    for other in line:
        if other.id == job:
            mine = _wanted(other, hardware)
            rivals = [rival.id for rival in before if _compete(_wanted(rival, hardware), mine)]
            return Ahead(count=len(rivals), jobs=tuple(rivals[:_NAMED]))
        if not other.held_by:
            before.append(other)
    return Ahead(count=0, jobs=())


def _wanted(job: Waiting, hardware: Hardware) -> frozenset[GpuKind] | None:
    return hardware.suiting(job) if job.gpus else None


def _compete(one: frozenset[GpuKind] | None, other: frozenset[GpuKind] | None) -> bool:
    return one is other is None or (one is not None and other is not None and bool(one & other))
