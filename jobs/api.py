"""Jobs over HTTP for programs: the same getters, verbs, checks and words as the pages."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any
from uuid import uuid4

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils.translation import gettext as _
from ninja import Query, Router, Status

from jobs import control, job_views, logstore, paging, wording, workspace
from jobs.access import can_control, denial, get_job
from jobs.api_request import (
    JobIn,
    problem_errors,
    read_request,
    refusal_errors,
)
from jobs.api_schemas import Changed, Event, JobList, JobOut, PreviewOut, QueueOut, Why
from jobs.board import Entry, board, in_full, places
from jobs.formhelp import levels_of
from jobs.models import Job, Priority, Run, Team
from jobs.paging import Filters
from jobs.policy import Expected
from jobs.policy.explain import NEVER, is_final
from jobs.preview import preview
from jobs.quotas import Usage
from jobs.states import ENDED, LIVE, WAITING, JobState
from jobs.status import ahead, expected, iso, loans, status, summary, trust, ways
from jobs.submit import Refused as SubmitRefused
from jobs.submit import check, submit
from jobs.wording.states import latest_run
from portal.apikit import MAY_READ, MAY_WRITE, Errors, Refused, caller, refuse

router = Router(tags=["jobs"])
MOST_LOG_BYTES = 4 << 20  # in one answer
BIGGEST = 2**63 - 1
STATE_GROUPS = {"ACTIVE": WAITING | LIVE, "WAITING": WAITING, "LIVE": LIVE, "ENDED": ENDED}


def refused(error: SubmitRefused, user: Any) -> Refused:
    """The answer that says everything that is wrong."""
    return Refused(problem_errors(error.problems) + refusal_errors(error.refusals, user.username))


# --- submit ---


@router.post("/jobs", auth=MAY_WRITE, response={201: JobOut, 422: Errors})
def submit_job(request: HttpRequest, body: JobIn) -> Status[dict[str, Any]]:
    """Submit a job. Posted again with the same `submission`, it finds the job already there."""
    asked, team = read_request(body, caller(request))
    try:
        job = submit(asked, owner=request.user, team=team, submission=body.submission or uuid4())
    except SubmitRefused as error:
        raise refused(error, request.user) from error
    return Status(201, status(job, request.user))


@router.post("/jobs/preview", auth=MAY_READ, response={200: PreviewOut, 422: Errors})
def preview_job(request: HttpRequest, body: JobIn) -> dict[str, Any]:
    """What would happen if this were submitted: starts now, waits for what, or never and why. Stores nothing."""
    asked, team = read_request(body, caller(request))
    try:
        check(asked, owner=request.user, team=team)
    except SubmitRefused as error:
        if any(problem.code not in NEVER for problem in error.problems):
            raise refused(error, request.user) from error
    seen = preview(asked, owner=request.user, team=team)
    name = request.user.username
    refusals = [_reason(r.as_dict(), sentence) for r, sentence in wording.told(seen.refusals, reader=name)]
    return {
        "verdict": seen.verdict, "node": seen.node, "position": seen.position or None,
        **_expected(seen.expected),
        "reasons": [*refusals, *_reasons(seen.reasons, request.user)],
        "loan": wording.loan(**asdict(seen.loan), would=True) if seen.loan else "",
    }  # fmt: skip


def _expected(found: Expected | None) -> dict[str, str | None]:
    """When a job that is only asked about should start; the words are the page's."""
    if found is None:
        return {"earliest": None, "latest": None, "expected": "", "trust": ""}
    words = wording.expected_start(found.earliest, found.latest)
    return {"earliest": iso(found.earliest), "latest": iso(found.latest), "expected": words, "trust": trust(found)}


def _reason(found: Any, message: str) -> dict[str, Any]:
    params = {name: value for name, value in found.items() if name != "code"}
    return {"code": found["code"], "message": message, "params": params}


def _reasons(reasons: Any, user: Any) -> list[dict[str, Any]]:
    return [_reason(found, wording.wait_reason(found, reader=user.username)) for found in reasons]


# --- look ---


@router.get("/jobs", response=JobList)
def list_jobs(
    request: HttpRequest, state: Annotated[list[str] | None, Query()] = None, mine: bool = False,
    search: Annotated[str, Query(max_length=200)] = "", team: Annotated[str, Query(max_length=60)] = "",
    before: Annotated[int | None, Query(ge=1, le=BIGGEST)] = None, limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:  # fmt: skip
    """Jobs this user may see, the newest first. `state` may be repeated, and be ACTIVE, WAITING, LIVE or ENDED."""
    states = frozenset(str(found) for name in state or () for found in _states(name))
    after = () if before is None else (before,)
    filters = Filters(whose="mine" if mine else "all", q=_plain(search), states=states, after=after)
    of_team = {"team": Team.objects.filter(name=_plain(team)).first()} if team else {}
    rows, further = paging.page(paging.parts(filters, request.user, **of_team), filters, in_full, limit)
    return {"jobs": _summaries(rows, request.user), "next": rows[-1].pk if further else None}


def _summaries(rows: list[Job], user: Any) -> list[dict[str, Any]]:
    place_of, _length = places(job.pk for job in rows)
    lent = loans([(job, latest_run(job)) for job in rows])
    return [
        {**summary(job, latest_run(job), user), "position": place_of.get(job.pk), "expected": expected(job),
         "loan": lent.get(job.pk, "")}
        for job in rows
    ]  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("\0", "").strip()


def _states(name: str) -> Any:
    upper = name.upper()
    if upper in STATE_GROUPS:
        return STATE_GROUPS[upper]
    if upper not in JobState.__members__:
        known = ", ".join([*STATE_GROUPS, *JobState])
        raise refuse("STATE_UNKNOWN", _("There is no state “%(name)s”; there are %(known)s.")
                     % {"name": name[:40], "known": known}, field="state")  # fmt: skip
    return [upper]


@router.get("/jobs/{int:job_id}", response={200: JobOut, 404: Errors})
def show_job(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """One job: the same answer as its page's."""
    return status(get_job(request.user, job_id), request.user)


@router.get("/jobs/{int:job_id}/why", response={200: Why, 404: Errors})
def why(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Why the job waits, with all reasons; or why it ended, and what to try."""
    job = get_job(request.user, job_id)
    run = job.current_run
    ended = job.state in ENDED
    found = sorted(job.wait_reasons, key=lambda r: not is_final(r)) if job.state in WAITING else []
    final = bool(found) and is_final(found[0])
    place_of, length = places([job.pk])
    advice = wording.suggestion(job, run if ended else None)
    return {
        "id": job.pk, "state": job.state, "headline": wording.headline(job, run, reader=request.user.username),
        "cannot_start": final, "reasons": _reasons(found, request.user),
        "position": place_of.get(job.pk), "queue_length": length, "ahead": ahead(job),
        "expected": expected(job),
        "end_reason": job.end_reason if ended else "", "exit_code": job.exit_code,
        "suggestion": advice.text if advice else "", **ways(job, request.user),
        "details": run.engine_message if run and ended else "",
    }  # fmt: skip


@router.get("/jobs/{int:job_id}/events", response={200: dict[str, list[Event]], 404: Errors})
def events(request: HttpRequest, job_id: int) -> dict[str, list[dict[str, Any]]]:
    """The job's journal in order."""
    job = get_job(request.user, job_id)
    rows = job.events.select_related("run", "actor").order_by("id")[:2000]
    return {"events": [
        {"at": e.at.isoformat(), "kind": e.kind, "old_state": e.old_state, "new_state": e.new_state,
         "run": e.run.number if e.run else None, "actor": e.actor.username if e.actor else None,
         "message": wording.event_sentence(e)}
        for e in rows
    ]}  # fmt: skip


# --- act ---


def controlled(request: HttpRequest, job_id: int, may: Callable[[Any, Job], bool] = can_control) -> Job:
    """The job, for one who may act on it. Raises Refused, or Http404 for strangers."""
    job = get_job(request.user, job_id)
    if not may(request.user, job):
        raise refuse("NOT_YOURS", denial(may), status=403)
    return job


def act(
    request: HttpRequest, job_id: int, verb: Callable[[Job, Any], bool], *,
    may: Callable[[Any, Job], bool] = can_control,
) -> dict[str, Any]:  # fmt: skip
    """Do it, and tell whether anything changed. Raises Refused, or Http404 for strangers."""
    job = controlled(request, job_id, may)
    try:
        changed = verb(job, request.user)
    except SubmitRefused as error:
        raise refused(error, request.user) from error
    return {"changed": changed, "job": status(get_job(request.user, job_id), request.user)}


@router.post("/jobs/{int:job_id}/cancel", auth=MAY_WRITE, response={200: Changed, 403: Errors, 404: Errors})
def cancel(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Stop the job, or take it out of the queue. Harmless when it has ended."""
    return act(request, job_id, control.cancel)


@router.post("/jobs/{int:job_id}/hold", auth=MAY_WRITE, response={200: Changed, 403: Errors, 404: Errors})
def hold(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Keep a waiting job from starting."""
    return act(request, job_id, control.hold)


@router.post("/jobs/{int:job_id}/release", auth=MAY_WRITE, response={200: Changed, 403: Errors, 404: Errors})
def release(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Lift one's own hold."""
    return act(request, job_id, control.release)


# --- what it printed and left ---


@router.get("/jobs/{int:job_id}/log", response={200: bytes, 404: Errors})
def log(
    request: HttpRequest, job_id: int, run: Annotated[int | None, Query(ge=1, le=32767)] = None,
    start: Annotated[int, Query(ge=-BIGGEST, le=BIGGEST)] = 0,
    end: Annotated[int | None, Query(ge=0, le=BIGGEST)] = None,
) -> HttpResponse:  # fmt: skip
    """Raw bytes [start, end) of a run's log, at most 4 MiB; a negative start counts from the end.

    Headers: X-Log-Run (number), X-Log-Run-Id, X-Log-Generation, X-Log-Start, X-Log-Size (bytes so far), X-Log-Complete,
    X-Log-Expired (it was there, and is kept no longer).
    """
    job = get_job(request.user, job_id)
    found = job.current_run if run is None else job.runs.filter(number=run).first()
    if found is None and run is not None:
        raise refuse("NO_RUN", _("The job has no run %(number)d.") % {"number": run}, field="run", status=404)
    return _log_answer(found, start, end) if found else HttpResponse(content_type="application/octet-stream")


def _log_answer(run: Run, start: int, end: int | None) -> HttpResponse:
    piece = logstore.window(run, start, end, MOST_LOG_BYTES)
    headers = {
        "X-Log-Run": run.number, "X-Log-Run-Id": run.pk, "X-Log-Generation": run.log_generation,
        "X-Log-Start": piece.start, "X-Log-Size": piece.size, "X-Log-Complete": str(run.log_complete).lower(),
        "X-Log-Expired": str(logstore.is_expired(run)).lower(),
    }  # fmt: skip
    return HttpResponse(piece.data, content_type="application/octet-stream", headers=headers)


@router.get("/jobs/{int:job_id}/files", response={200: dict[str, list[dict[str, Any]]], 404: Errors})
def files(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """What the job left in its folder of the workspace."""
    entries = workspace.job_files(get_job(request.user, job_id))
    return {"files": [asdict(entry) for entry in entries]}


@router.get("/jobs/{int:job_id}/files/{path:relpath}", response={200: bytes, 404: Errors})
def file(request: HttpRequest, job_id: int, relpath: str) -> HttpResponseBase:
    """One of the job's files, as a download."""
    job = get_job(request.user, job_id)
    try:
        return job_views.file(request, job.pk, relpath)
    except Http404 as error:
        raise Http404(_("The job has no such file.")) from error


# --- the queue and quotas ---


@router.get("/queue", response=QueueOut)
def queue(
    request: HttpRequest, after: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:  # fmt: skip
    """All waiting jobs in the scheduler's order."""
    page = board(request.user, after=after, size=limit)
    return {
        "queued": [_entry(e, request.user) for e in page.entries], "held": [_entry(e, request.user) for e in page.held],
        "later": [_entry(e, request.user) for e in page.later],
        "total": page.total, "next": page.after,
    }  # fmt: skip


def _entry(entry: Entry, user: Any) -> dict[str, Any]:
    job = entry.job
    seen = {"name": job.name, "image": job.image, "put_back": wording.put_back(job, latest_run(job))}
    return {
        "id": job.pk, "place": entry.place, "state": job.state, "owner": job.owner.username, "team": job.team.name,
        "mine": entry.mine, "gpus": job.gpus, "gpu_model": job.gpu_model,
        "cpus": job.millicpus / 1000, "memory_gib": job.memory_mib / 1024, "millicpus": job.millicpus,
        "memory_mib": job.memory_mib, "limit_seconds": job.limit_seconds,
        "priority": Priority(job.priority).name.lower(), "queued_at": iso(job.queued_at),
        "start_after": iso(job.start_after), "pinned": job.pinned, "earliest": iso(job.expected_earliest),
        "latest": iso(job.expected_latest),
        "expected": wording.expected_start(job.expected_earliest, job.expected_latest),
        "reasons": _reasons(job.wait_reasons, user),
        **(seen if entry.visible else dict.fromkeys(seen)),
    }  # fmt: skip


@router.get("/quota", response=dict[str, Any])
def quota(request: HttpRequest) -> dict[str, Any]:
    """Limits and use of the user and of the user's teams: CPUs in thousandths, memory in MiB, times in seconds.

    A null limit is none. `use.gpu_seconds` counts the last 30 days and what running jobs may still use.
    """
    user = caller(request)
    levels = levels_of(user, list(user.teams.order_by("name")))
    return {"levels": [
        {"scope": limits.scope, "name": limits.name, "limits": _limits(limits), "use": _use(used)}
        for pairs in levels.values() for limits, used in pairs
    ]}  # fmt: skip


def _use(used: Usage) -> dict[str, Any]:
    return asdict(used) | {"gpus": used.gpus}


def _limits(limits: Any) -> dict[str, Any]:
    values = {name: value for name, value in asdict(limits).items() if name not in ("scope", "name")}
    priority = values["priority"]
    return values | {"priority": None if priority is None else Priority(priority).name.lower()}
