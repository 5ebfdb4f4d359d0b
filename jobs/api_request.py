"""From the JSON body of a submission to the same `JobRequest` that the form makes, and its problems back to fields."""

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _
from ninja import Field
from pydantic import AfterValidator, AwareDatetime, StringConstraints

from jobs import submit, units, wording
from jobs.containerspec import SIGNALS
from jobs.models import Mount, Priority, Team
from jobs.quotas import Refusal
from jobs.request import JobRequest, Problem
from jobs.submit import check, default_limit
from portal.apikit import Error, Flag, Number, Refused, Strict, Whole, one_error, refuse
from portal.models import User

MOST_GPUS = 10_000
MOST_GIB = 1_000_000
MOST_CPUS = 1_000_000

# Where a problem of the request stands in the JSON body.
FIELDS = {
    "millicpus": "cpus", "memory_mib": "memory_gib", "shm_mib": "shm_gib", "gpu_memory_mib": "gpu_memory_gib",
    "limit_seconds": "limit", "command_kind": "script", "gpu_milli": "gpu_percent",
}  # fmt: skip


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(_("There is a NUL byte in it."))
    return text


Name = Annotated[str, StringConstraints(max_length=300), AfterValidator(_no_nul)]
Word = Annotated[str, StringConstraints(max_length=64 * 1024)]
Gib = Annotated[Number, Field(ge=0, le=MOST_GIB)]
Duration = Annotated[Annotated[str, StringConstraints(max_length=80)] | Whole, one_error("duration_type")]


class JobIn(Strict):
    """A job as asked for. Only `image` is needed; what is left out has the form's default."""

    image: Name
    name: Name | None = Field(None, description="Left out: made from the image")
    team: Name | None = Field(None, description="Needed by members of several teams")
    submission: UUID | None = Field(None, description="The same id posted again finds the same job")
    script: Annotated[str, StringConstraints(max_length=1 << 20)] | None = Field(
        None, description="Run by /bin/sh -c in place of the image's entry point"
    )
    entrypoint: list[Word] = Field([], max_length=1000, description="Without script: replaces the image's entry point")
    arguments: list[Word] = Field([], max_length=10000, description="Without script: replace the image's command")
    gpus: Whole = Field(0, ge=0, le=MOST_GPUS)
    gpu_model: Annotated[Name, StringConstraints(max_length=128)] = ""
    gpu_memory_gib: Gib = Field(0, description="Of each GPU, at least; 0: any")
    gpu_percent: Number = Field(100, gt=0, le=100, description="The share of its one GPU, where hosts share GPUs")
    gpu_profile: Annotated[Name, StringConstraints(max_length=32)] = Field(
        "", description="A MIG profile, such as 1g.10gb; empty: whole GPUs"
    )
    least_gpus: Whole | None = Field(
        None, ge=1, le=MOST_GPUS, description="Elastic: it starts with as few as this, and uses up to `gpus`"
    )
    node_labels: list[Name] = Field([], max_length=20, description="key=value; a host must have all of them")
    cpus: Number = Field(1, ge=0, le=MOST_CPUS)
    memory_gib: Gib = 1
    shm_gib: Gib | None = Field(None, description="Shared memory, counted as memory; left out: half of it")
    limit: Duration | None = Field(
        "",
        description="Time limit of each run: a number of seconds, or text such as 2h; null: none; empty: the default",
    )
    grace_seconds: Whole = Field(30, ge=0, le=3600, description="Between SIGTERM and SIGKILL")
    priority: Literal["low", "normal", "high", "urgent"] = "normal"
    stop_signal: str = Field("SIGTERM", max_length=16, description="What it is told to stop by: " + ", ".join(SIGNALS))
    interactive: Flag = Field(False, description="Somebody sits before it; limited by a quota of its own")
    preemptible: Flag = Field(False, description="May be stopped for jobs of higher priority, and starts again later")
    movable: Flag = Field(False, description="May be moved to other GPUs to make room: stopped, and started again")
    offline: Flag = Field(False, description="Without any network; its image is fetched all the same")
    environment: dict[str, str] = Field({}, max_length=2000)
    secrets: dict[str, str] = Field({}, max_length=2000, description="As environment; encrypted, never shown again")
    mounts: list[Name] = Field([], max_length=100, description="Names of mounts; each appears at /mnt/NAME")
    start_after: AwareDatetime | None = None


def read_request(body: JobIn, user: User) -> tuple[JobRequest, Team]:
    """The request and the team it charges. Raises Refused, with all problems at once, for what makes no request."""
    errors: list[Error] = []
    limit = _collected(errors, lambda: _limit(body.limit, user))
    mounts = _collected(errors, lambda: _mounts(body.mounts, user)) or ()
    team = _collected(errors, lambda: team_of(user, body.team))
    request = _request(body, limit, mounts)
    if errors or team is None:
        raise Refused(errors + _further(request, user, team, {error["field"] for error in errors}))
    return request, team


def _further(request: JobRequest, user: User, team: Team | None, told: set[str]) -> list[Error]:
    """What else is wrong with it, at fields that are not `told` of yet."""
    names = {name: field for field, name in FIELDS.items()}
    try:
        check(request, owner=user, team=team, unread={names.get(name, name) for name in told})
    except submit.Refused as refused:
        found = problem_errors(refused.problems) + refusal_errors(refused.refusals, user.username)
        return [error for error in found if error["field"] not in told]
    return []


def _collected(errors: list[Error], read: Any) -> Any:
    try:
        return read()
    except Refused as refused:
        errors += refused.errors
        return None


def _request(body: JobIn, limit: int | None, mounts: tuple[int, ...]) -> JobRequest:
    memory = _mib(body.memory_gib)
    return JobRequest(
        name=body.name if body.name is not None else name_of_image(body.image), image=body.image,
        command_kind="image" if body.script is None else "script", script=body.script or "",
        entrypoint=tuple(body.entrypoint), arguments=tuple(body.arguments), gpus=body.gpus,
        gpu_model=body.gpu_model, gpu_memory_mib=_mib(body.gpu_memory_gib), millicpus=round(body.cpus * 1000),
        memory_mib=memory, shm_mib=max(memory // 2, 1) if body.shm_gib is None else _mib(body.shm_gib),
        limit_seconds=limit, grace_seconds=body.grace_seconds, priority=Priority[body.priority.upper()].value,
        environment=(*body.environment.items(), *body.secrets.items()), secret_names=frozenset(body.secrets),
        mounts=mounts, start_after=body.start_after, gpu_milli=round(body.gpu_percent * 10),
        gpu_profile=body.gpu_profile, least_gpus=body.least_gpus, node_labels=tuple(body.node_labels),
        stop_signal=body.stop_signal, interactive=body.interactive, preemptible=body.preemptible,
        movable=body.movable, offline=body.offline,
    )  # fmt: skip


def _mib(gib: float) -> int:
    return math.ceil(gib * 1024)


def name_of_image(image: str) -> str:
    """The last word of an image's name: "trainer" of "registry:5000/team/trainer:v2"."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0][:100] or image[:100]


def _limit(limit: str | int | None, user: User) -> int | None:
    if limit == "":
        return default_limit(user)
    return None if limit is None else seconds_of(limit, "limit")


def seconds_of(value: str | int, field: str) -> int:
    """A number of seconds, or text such as 2h. Raises Refused."""
    if not isinstance(value, str):
        return min(value, units.MOST)
    try:
        return units.parse_limit(value)
    except units.BadQuantity as error:
        problem = Problem(field=field, code=error.code, params={"text": error.text})
        raise Refused(problem_errors([problem])) from error


def _mounts(names: list[str], user: User) -> tuple[int, ...]:
    """The primary keys of these mounts, in order. One that the user's teams may not use is as unknown as any."""
    if not names:
        return ()
    offered = Mount.objects.filter(Q(teams=None) | Q(teams__in=user.teams.all()))
    known = dict(offered.filter(name__in=names).values_list("name", "pk"))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise refuse("MOUNT_UNKNOWN", _("There is no mount “%(name)s” for you.") % {"name": unknown[0]}, field="mounts")
    return tuple(dict.fromkeys(known[name] for name in names))


def team_of(user: User, name: str | None) -> Team:
    """The named team of the user, or the only one. Raises Refused."""
    teams = {team.name: team for team in user.teams.order_by("name")}
    if name is None and len(teams) == 1:
        return next(iter(teams.values()))
    if name in teams:
        return teams[name]
    if not teams:
        sentence = _("You are in no team yet, and every job is charged to one: ask an administrator to add you.")
        raise refuse("NO_TEAM", sentence, field="team")
    known = {"teams": ", ".join(teams), "name": name}
    if name is None:
        sentence = _("You are in several teams: name the one to charge (team, or --team): %(teams)s.") % known
        raise refuse("TEAM_NEEDED", sentence, field="team")
    raise refuse("TEAM_UNKNOWN", _("You are not in a team “%(name)s”; yours: %(teams)s.") % known, field="team")


# How many of the policy's units the body's field counts as one, and which numbers are counted so.
_PER_UNIT = {"millicpus": 1000, "memory_mib": 1024}
_COUNTED = ("asked", "limit", "used", "nearest", "most")


def problem_errors(problems: Iterable[Problem]) -> list[Error]:
    """What is wrong with a request, in the form's words, at the fields of the body and in their units."""
    return [
        Error(field=FIELDS.get(p.field, p.field), code=p.code, message=wording.problem(p),
              params=_in_units_of(p.field, p.params))
        for p in problems
    ]  # fmt: skip


def refusal_errors(refusals: Iterable[Refusal], reader: str) -> list[Error]:
    """Quota refusals with their numbers, at the fields of the body and in their units: CPUs, GiB, seconds."""
    return [
        Error(field=FIELDS.get(r.field, r.field), code=r.code, message=sentence,
              params=_in_units_of(r.field, {n: v for n, v in r._asdict().items() if n not in ("field", "code")}))
        for r, sentence in wording.told(refusals, reader=reader)
    ]  # fmt: skip


def _in_units_of(field: str, params: dict[str, Any]) -> dict[str, Any]:
    if field == "gpu_milli" and params.get("nearest") is not None:  # of a share; the rest are GPUs
        return {**params, "nearest": params["nearest"] / 10}
    size = _PER_UNIT.get(field)
    if size is None:
        return params
    return {name: v / size if name in _COUNTED and v is not None else v for name, v in params.items()}
