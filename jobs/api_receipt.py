"""A job's receipt for programs: what it used of what it asked for."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from jobs import receipts, wording
from jobs.access import get_job
from portal.apikit import Errors

router = Router(tags=["jobs"])


class ReceiptOut(Schema):
    """Over all runs of the job; null is not known: never measured, or not told by the hardware."""

    measured_seconds: float = Field(description="For how long its containers were measured; 0: nothing is known")
    ran_seconds: float = Field(description="Of its longest run")
    gpu_hours: float = Field(description="For which it held GPUs, used or not")
    gpu_busy_percent: float | None
    gpu_idle_hours: float | None = Field(description="GPU-hours below 5 percent of load")
    gpus_busy: int | None = Field(description="The most GPUs that were at work at one time")
    gpu_memory_max_mib: int | None = Field(description="On one GPU")
    energy_kwh: float | None = Field(description="Of GPUs that it had alone")
    throttled_gpu_hours: float
    cpus_mean: float | None
    cpus_max: float | None
    memory_max_mib: int | None = Field(description="Without the file cache")
    read_mib: float
    written_mib: float
    received_mib: float
    sent_mib: float
    smaller: dict[str, str] = Field(description="Fields of a request that would have done, as the form reads them")
    lines: list[dict[str, str]] = Field(description="Each resource in words, as pages say it: name, asked, used")
    advice: str = Field(description="The request that would have done, as a sentence; empty where it fitted")


@router.get("/jobs/{int:job_id}/receipt", response={200: ReceiptOut | None, 404: Errors})
def receipt(request: HttpRequest, job_id: int) -> dict[str, Any] | None:
    """What a job has used so far of what it asked for; null while it has not run."""
    found = receipts.receipt(get_job(request.user, job_id))
    if found is None:
        return None
    asked, used, smaller = found
    lines = wording.receipts.lines(asked, used)
    told = bool(used.gpu_known_seconds)
    return {
        "measured_seconds": used.seconds, "ran_seconds": used.ran_seconds, "gpu_hours": used.held_seconds / 3600,
        "gpu_busy_percent": used.gpu_percent, "gpu_idle_hours": used.gpu_idle_seconds / 3600 if told else None,
        "gpus_busy": used.gpus_busy_max, "gpu_memory_max_mib": used.gpu_memory_max_mib, "energy_kwh": used.kwh,
        "throttled_gpu_hours": used.throttled_seconds / 3600, "cpus_mean": used.cpus,
        "cpus_max": None if used.cpu_percent_max is None else used.cpu_percent_max / 100,
        "memory_max_mib": used.memory_max_mib, "read_mib": used.read_mib, "written_mib": used.written_mib,
        "received_mib": used.received_mib, "sent_mib": used.sent_mib, "smaller": smaller,
        "lines": [{"name": line.name, "asked": line.asked, "used": line.used} for line in lines],
        "advice": wording.receipts.smaller(smaller) if smaller else "",
    }  # fmt: skip
