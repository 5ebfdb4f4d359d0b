"""The part of the API that changes a job after it was submitted: less, elsewhere, longer."""

import math
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Router
from pydantic import StringConstraints

from jobs import wording
from jobs.access import get_job
from jobs.amend import amend
from jobs.api import act, controlled, refused
from jobs.api_request import MOST_CPUS, MOST_GIB, MOST_GPUS, Duration, Name, seconds_of
from jobs.api_schemas import Changed, ExtensionOut
from jobs.extend import Extension, extend
from jobs.rebind import rebind
from jobs.status import iso, status
from jobs.submit import Refused
from portal.apikit import MAY_WRITE, Errors, Strict, Whole

router = Router(tags=["jobs"])


class MoveIn(Strict):
    gpus: Whole | None = Field(None, ge=1, le=MOST_GPUS, description="Of an elastic job: how many it is to go on with")


@router.post("/jobs/{int:job_id}/move", auth=MAY_WRITE, response={200: Changed, 403: Errors, 404: Errors, 422: Errors})
def move(request: HttpRequest, job_id: int, body: MoveIn | None = None) -> dict[str, Any]:
    """Stop a running job and start it again at once on other GPUs, or with another number of them."""
    gpus = body.gpus if body else None
    return act(request, job_id, lambda job, user: rebind(job, user, gpus=gpus))


class AmendIn(Strict):
    gpus: Whole | None = Field(None, ge=1, le=MOST_GPUS)
    cpus: float | None = Field(None, gt=0, le=MOST_CPUS)
    memory_gib: float | None = Field(None, gt=0, le=MOST_GIB)
    limit: Duration | None = Field(None, description="A number of seconds, or text such as 2h")
    gpu_model: Annotated[Name, StringConstraints(max_length=128)] | None = Field(None, description='"" for any')
    node_labels: list[Name] | None = Field(None, max_length=20, description="Those of its labels that it keeps")


@router.post("/jobs/{int:job_id}/amend", auth=MAY_WRITE, response={200: Changed, 403: Errors, 404: Errors, 422: Errors})
def amend_job(request: HttpRequest, job_id: int, body: AmendIn | None = None) -> dict[str, Any]:
    """Lower what a waiting job asks for, or take other GPUs; it keeps its place."""
    asked = body or AmendIn.model_validate({})
    limit = None if asked.limit is None else seconds_of(asked.limit, "limit")
    less: dict[str, Any] = {
        "gpus": asked.gpus, "limit_seconds": limit,
        "millicpus": None if asked.cpus is None else round(asked.cpus * 1000),
        "memory_mib": None if asked.memory_gib is None else math.ceil(asked.memory_gib * 1024),
        "gpu_model": asked.gpu_model, "node_labels": asked.node_labels,
    }  # fmt: skip
    return act(request, job_id, lambda job, user: amend(job, user, **less))


class ExtendIn(Strict):
    extension: Duration = Field("1h", description="How much more time: a number of seconds, or text such as 2h")


@router.post(
    "/jobs/{int:job_id}/extend", auth=MAY_WRITE, response={200: ExtensionOut, 403: Errors, 404: Errors, 422: Errors}
)
def extend_job(request: HttpRequest, job_id: int, body: ExtendIn | None = None) -> dict[str, Any]:
    """Give a running job more time: at once where that delays nobody, or admins allow it; else says whom it delays."""
    job, asked = controlled(request, job_id), body or ExtendIn.model_validate({})
    try:
        found = extend(job, request.user, seconds_of(asked.extension, "extension"))
    except Refused as error:
        raise refused(error, request.user) from error
    return {
        "granted": found.granted, "message": _extension(found), "deadline": iso(found.until),
        "delayed": [{"id": pk, "seconds": late} for pk, late in found.delayed.items()],
        "job": status(get_job(request.user, job_id), request.user),
    }  # fmt: skip


def _extension(found: Extension) -> str:
    return wording.extension(granted=found.granted, until=found.until, delayed=found.delayed)
