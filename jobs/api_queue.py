"""The order of the queue over HTTP: what changes it, and the fair shares behind it."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema

from jobs import reorder
from jobs.access import can_pin, can_reorder
from jobs.api import act
from jobs.api_schemas import Changed
from jobs.models import Job, Priority
from jobs.standings import Row, standings
from portal.apikit import MAY_WRITE, Errors, Strict, Whole, one_error

router = Router(tags=["queue"])
ANSWERS = {200: Changed, 403: Errors, 404: Errors, 422: Errors}


@router.post("/jobs/{int:job_id}/pin", auth=MAY_WRITE, response=ANSWERS)
def pin(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Put a waiting job before all others. For administrators."""
    return act(request, job_id, reorder.pin, may=can_pin)


@router.post("/jobs/{int:job_id}/unpin", auth=MAY_WRITE, response=ANSWERS)
def unpin(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Take a pin away. For administrators."""
    return act(request, job_id, reorder.unpin, may=can_pin)


class PriorityIn(Strict):
    priority: Literal["low", "normal", "high", "urgent"] = "normal"


@router.post("/jobs/{int:job_id}/priority", auth=MAY_WRITE, response=ANSWERS)
def priority(request: HttpRequest, job_id: int, body: PriorityIn | None = None) -> dict[str, Any]:
    """Give a waiting job another priority, up to the ceilings of its owner and team; administrators beyond."""
    wanted = Priority[body.priority.upper() if body else "NORMAL"]
    return act(request, job_id, lambda job, user: reorder.reprioritise(job, user, wanted))


class ReorderIn(Strict):
    to: Annotated[Literal["up", "down"] | Whole, one_error("place_type")] = Field(
        "up", description="up, down, or the id of the job whose place it takes"
    )


@router.post("/jobs/{int:job_id}/reorder", auth=MAY_WRITE, response=ANSWERS)
def move(request: HttpRequest, job_id: int, body: ReorderIn | None = None) -> dict[str, Any]:
    """Exchange places among the owner's own waiting jobs of one team and priority."""
    to = body.to if body else "up"

    def verb(job: Job, user: Any) -> bool:
        if isinstance(to, int):
            return reorder.move_to(job, user, to)
        return (reorder.move_up if to == "up" else reorder.move_down)(job, user)

    return act(request, job_id, verb, may=can_reorder)


class ShareOut(Schema):
    name: str
    mine: bool
    shares: int
    gpu_hours: float = Field(description="Used, with old use weighed less")
    promised_gpu_hours: float = Field(description="That running jobs may still take")
    due: float = Field(description="Its part of the shares, 0 to 1")
    part: float = Field(description="Its part of the use, promises too, 0 to 1")
    rank: int = Field(description="1 goes first; equals have the same")
    of: int
    message: str = Field(description="What it does to its jobs")
    members: list["ShareOut"] | None = Field(None, description="Of a team, where they are yours to see")


class FairShareOut(Schema):
    half_life_days: int
    weights: str = Field(description="What counts otherwise than an hour of a GPU as one; else empty")
    teams: list[ShareOut]


@router.get("/fairshare", response=FairShareOut)
def fair_share(request: HttpRequest) -> dict[str, Any]:
    """Who has had their part of the GPUs: every team, and the members of one's own."""
    found = standings(request.user, timezone.now())
    teams = [_share(row) for row in found.rows]
    return {"half_life_days": found.half_life_days, "weights": found.weights, "teams": teams}


def _share(row: Row) -> dict[str, Any]:
    standing = row.standing
    return {
        "name": row.name, "mine": row.mine, "shares": standing.shares, "rank": standing.rank, "of": row.of,
        "gpu_hours": round(standing.used / 3600, 2), "promised_gpu_hours": round(standing.promised / 3600, 2),
        "due": round(standing.due, 4), "part": round(standing.part, 4), "message": " ".join(row.sentences),
        "members": [_share(member) for member in row.members] if row.members else None,
    }  # fmt: skip
