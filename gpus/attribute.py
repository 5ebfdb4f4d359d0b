"""Whose processes are on each GPU, and whether anybody from outside is. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gpus.claims import Claim
from gpus.readings import GpuReading, HostReading, Kind, Process

_COMM = 15  # the kernel keeps that many characters of a process name


@dataclass(frozen=True, kw_only=True)
class Rules:
    system_processes: frozenset[str] = frozenset()  # names that never count as somebody from outside
    memory_floor_mib: int = 512  # so much may be in use with no process listed
    grace: float = 10  # seconds for which an ended run still explains its processes

    def is_system(self, name: str | None) -> bool:
        return name is not None and name[:_COMM] in {system[:_COMM] for system in self.system_processes}


def attribute(reading: HostReading, claims: Collection[Claim], rules: Rules) -> HostReading:
    """The reading with each process's kind, job and owner, and each GPU's job, owner and `busy_outside`."""
    current = [claim for claim in claims if claim.explains(reading.at, rules.grace)]
    return reading.with_gpus(tuple(_gpu(gpu, current, rules) for gpu in reading.gpus))


def _gpu(gpu: GpuReading, claims: list[Claim], rules: Rules) -> GpuReading:
    own = [claim for claim in claims if claim.gpu_uuid == gpu.uuid]
    processes = tuple(_process(process, own, claims, rules) for process in gpu.processes)
    held = sorted((claim for claim in own if claim.ended is None), key=lambda claim: claim.job)
    outside = any(process.kind == "foreign" for process in processes)
    outside = outside or (not own and unexplained_mib(gpu.memory_used_mib, processes) > rules.memory_floor_mib)
    return replace(
        gpu, processes=processes, busy_outside=outside,
        job=held[0].job if held else None, owner=held[0].owner if held else None,
        jobs=tuple(claim.job for claim in held), runs=tuple(claim.run for claim in held if claim.container_id),
    )  # fmt: skip


def _process(process: Process, own: list[Claim], claims: list[Claim], rules: Rules) -> Process:
    """With its kind. A job's process on a GPU that is not the job's is foreign there, and still names the job."""
    claim = _claim_of(process, own) or _claim_of(process, claims)
    kind: Kind
    if claim is not None:
        kind = "job" if claim in own else "foreign"
    elif rules.is_system(process.name):
        kind = "system"
    elif process.user is None and own:
        kind = "unknown"  # no way to look it up here, and the GPU's holder explains it well enough
    else:
        kind = "foreign"
    return replace(process, kind=kind, job=claim.job if claim else None, owner=claim.owner if claim else None)


def _claim_of(process: Process, claims: Iterable[Claim]) -> Claim | None:
    if not process.container:
        return None
    return next((claim for claim in claims if claim.container_id == process.container), None)


def unexplained_mib(used: int | None, processes: Iterable[Process]) -> int:
    """Memory in use that no listed process accounts for; 0 when that can't be known."""
    held = [process.memory_mib for process in processes]
    if used is None or any(memory is None for memory in held):
        return 0
    return max(used - sum(memory for memory in held if memory is not None), 0)
