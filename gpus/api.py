"""The GPUs of all hosts for programs: the same answer as the GPUs page has."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from gpus.now import nodes_now

router = Router(tags=["GPUs"])


class Process(Schema):
    """`kind`: job, system, foreign (from outside Dockyard) or unknown. Number and name only for staff."""

    pid: int | None
    kind: str
    memory_mib: int | None
    user: str | None
    name: str | None
    job: int | None
    owner: str | None


class HolderOut(Schema):
    job: int
    owner: str
    job_name: str | None = Field(description="Null for who may not see the job")


class GpuOut(Schema):
    """Null values are not known. `unavailable` says why no job would get it, whoever holds it now.

    `state` is the first that is true of: sick, used, hidden, outside (in use outside Dockyard), closed, unknown,
    cordoned, free.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    health: str
    message: str
    state: str
    hidden: bool = Field(description="Not offered to jobs. Users see it only while a job is on it")
    unavailable: dict[str, Any] | None = None
    busy_outside: bool
    memory_used_mib: int | None
    utilisation: int | None = Field(description="Percent")
    power_w: float | None
    temperature_c: int | None
    sm_clock_mhz: int | None
    mem_clock_mhz: int | None
    power_limit_w: float | None
    throttle: list[str] | None = Field(description="Why it runs slower than it could; empty: it does not")
    ecc_errors: int | None = Field(description="Uncorrected, since the driver was loaded")
    xid: int | None = Field(description="The last error that the driver reported of it, by its number")
    xid_at: float | None = Field(description="In seconds since 1970")
    profile: str = Field(description="Of a MIG instance, such as 1g.10gb")
    slots: int = Field(description="How many jobs may share it")
    job: int | None = Field(description="The first of its holders, as are owner and job_name")
    owner: str | None
    job_name: str | None = Field(description="Null for who may not see the job")
    holders: list[HolderOut] = Field(description="All jobs that it is given to: several where it is shared")
    processes: list[Process]


class HostOut(Schema):
    alive: bool
    last_seen: datetime | None
    status_label: str
    cordoned: bool
    cordon_reason: str
    driver_version: str
    engine_version: str
    millicpus: int
    memory_mib: int


class NodeOut(Schema):
    node: str
    at: float | None = Field(description="When the live values were read, in seconds since 1970; null: not lately")
    status: str
    message: str
    simulated: bool
    host: HostOut
    gpus: list[GpuOut]


@router.get("/gpus", response=dict[str, list[NodeOut]])
def gpus(request: HttpRequest) -> dict[str, list[dict[str, Any]]]:
    """Every host with its GPUs, who uses each, and why one that nobody uses is not given away."""
    return {"nodes": nodes_now(request.user)}
