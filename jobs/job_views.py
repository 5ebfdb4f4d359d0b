"""One job: its page, what the page asks for, and what may be done to it. Strangers get 404 everywhere."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from jobs import control, jobpage, logstore, readings, secretbox, units, wording, workspace
from jobs import extend as extending
from jobs.access import can_control, denial, get_job
from jobs.amend import SIZES
from jobs.amend import amend as lower
from jobs.models import Job, Run
from jobs.rebind import rebind
from jobs.request import Problem
from jobs.resubmit import resubmit as submit_again
from jobs.status import status
from jobs.submit import Refused
from portal.streaming import in_thread

MOST_LOG_BYTES = 1 << 20  # in one range
FILE_PIECE = 256 * 1024
BINARY = "application/octet-stream"
BIGGEST = 2**62
MOST_SECONDS = 1e11  # since 1970: a time, and no nonsense
Response = TypeVar("Response", bound=HttpResponseBase)


@require_GET
@never_cache
@login_required
def page(request: HttpRequest, pk: int) -> HttpResponse:
    """The job's page; with `?part=head` (or `files`), that part alone, for the page to put in place."""
    job = get_job(request.user, pk)
    part = request.GET.get("part", "")
    if part == "files":
        return render(request, "jobs/parts/files.html", {"job": job, **jobpage.files(job)})
    context = jobpage.context(job, request.user)
    return render(request, "jobs/parts/anew.html" if part == "head" else "jobs/job.html", context)


@require_GET
@never_cache
@login_required
def status_json(request: HttpRequest, pk: int) -> JsonResponse:
    """What the socket tells, for browsers without one; `gpus` are the job's last readings."""
    job = get_job(request.user, pk)
    said = status(job, request.user)
    gpus = readings.job_gpus_now(job, job.current_run) if said["is_live"] else None
    return JsonResponse({**said, "gpus_now": gpus})


@require_GET
@never_cache
@login_required
def charts_json(request: HttpRequest, pk: int) -> JsonResponse:
    """The readings of a run over its life, or of `?from=&to=`, see `jobs.readings.job_charts`."""
    job = get_job(request.user, pk)
    since, until = (_moment(request, name) for name in ("from", "to"))
    return JsonResponse(readings.job_charts(job, run_of(request, job), since, until))


@require_GET
@never_cache
@login_required
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """Bytes [start, end) of a run's log, at most MOST_LOG_BYTES; a negative start counts from the end."""
    run = run_of(request, get_job(request.user, pk))
    if run is None:
        return HttpResponse(content_type=BINARY)
    piece = logstore.window(run, number(request, "start", 0), number(request, "end", BIGGEST), MOST_LOG_BYTES)
    headers = {
        "X-Log-Run": run.pk, "X-Log-Generation": run.log_generation, "X-Log-Start": piece.start,
        "X-Log-Size": piece.size, "X-Log-Complete": str(run.log_complete).lower(),
        "X-Log-Expired": str(logstore.is_expired(run)).lower(),
    }  # fmt: skip
    return HttpResponse(piece.data, content_type=BINARY, headers=headers)


@require_GET
@login_required
def file(request: HttpRequest, pk: int, relpath: str) -> StreamingHttpResponse:
    """A file that the job left, as a download and never as a page of this site."""
    try:
        opened = workspace.open_file(get_job(request.user, pk), relpath)
    except FileNotFoundError as error:
        raise Http404 from error
    pieces = StreamingHttpResponse(in_thread(_pieces(opened)), content_type=BINARY)
    return attachment(pieces, relpath.rpartition("/")[2])


@require_POST
@login_required
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    return act(request, pk, control.cancel, _("There was nothing left to cancel."))


@require_POST
@login_required
def hold(request: HttpRequest, pk: int) -> HttpResponse:
    return act(request, pk, control.hold, _("Only a waiting job can be put on hold."))


@require_POST
@login_required
def release(request: HttpRequest, pk: int) -> HttpResponse:
    return act(request, pk, control.release, _("There was no hold of yours to release."))


@require_POST
@login_required
def move(request: HttpRequest, pk: int) -> HttpResponse:
    """To other GPUs, or an elastic job to another number of them."""

    def verb(job: Job, user: Any) -> bool:
        return rebind(job, user, gpus=asked(request, "gpus"))

    return act(request, pk, verb, _("It is not running, or is being stopped already."))


@require_POST
@login_required
def extend(request: HttpRequest, pk: int) -> HttpResponse:
    """More time: granted, or whom it would delay."""

    def verb(job: Job, user: Any) -> bool:
        found = extending.extend(job, user, _seconds(request.POST.get("extension", ""), "extension"))
        said = wording.extension(granted=found.granted, until=found.until, delayed=found.delayed)
        (messages.success if found.granted else messages.warning)(request, said)
        return True

    return act(request, pk, verb, "")


@require_POST
@login_required
def amend(request: HttpRequest, pk: int) -> HttpResponse:
    """Less than it asked for, or other GPUs, while it waits. Labels are parted by blanks."""

    def verb(job: Job, user: Any) -> bool:
        sizes = {name: asked(request, name) for name in SIZES}
        labels = request.POST.get("node_labels")
        return lower(
            job, user, **sizes, gpu_model=request.POST.get("gpu_model"),
            node_labels=None if labels is None else labels.split(),
        )  # fmt: skip

    return act(request, pk, verb, _("Nothing changed: it asks for that already, or it no longer waits."))


@require_POST
@login_required
def resubmit(request: HttpRequest, pk: int) -> HttpResponse:
    """The owner's job once more; a colleague clones instead, since the secrets are the owner's."""
    job = get_job(request.user, pk)
    if job.owner_id != request.user.pk:
        return redirect(f"/jobs/new/?clone={job.pk}")
    try:
        again = submit_again(job, owner=request.user, submission=_submission(request))
    except Refused as error:
        for sentence in _sentences(error, request.user.get_username()):
            messages.error(request, sentence)
        return redirect(job)
    except secretbox.Unreadable:
        messages.error(request, _("A secret of this job can no longer be read. Clone it and enter the secret again."))
        return redirect(job)
    return redirect(again)


def act(
    request: HttpRequest, pk: int, verb: Callable[[Job, Any], bool], nothing: str, *,
    may: Callable[[Any, Job], bool] = can_control,
) -> HttpResponse:  # fmt: skip
    """Do it and go back to the job's page, which says what was refused, or `nothing` where nothing changed."""
    job = get_job(request.user, pk)
    if not may(request.user, job):  # a colleague sees the job, and learns that it is not theirs to steer
        messages.error(request, denial(may))
        return redirect(job)
    try:
        if not verb(job, request.user):
            messages.info(request, nothing)
    except Refused as error:
        for sentence in _sentences(error, request.user.get_username()):
            messages.error(request, sentence)
    return redirect(job)


def asked(request: HttpRequest, name: str) -> int | None:
    """A whole number that was posted; None for none. Raises Refused for what is no number of GPUs or seconds."""
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise Refused(problems=[Problem(field=name, code="TOO_SMALL", params={"least": 1})])
    return int(text)


def _seconds(text: str, field: str) -> int:
    """A duration as people write it. Raises Refused."""
    try:
        return units.parse_limit(text)
    except units.BadQuantity as error:
        raise Refused(problems=[Problem(field=field, code=error.code, params={"text": error.text})]) from error


def _sentences(error: Refused, reader: str) -> Iterator[str]:
    yield from (wording.problem(problem) for problem in error.problems)
    yield from (said for _field, _code, said in wording.refusals(error.refusals, reader=reader))


def _submission(request: HttpRequest) -> uuid.UUID:
    try:
        return uuid.UUID(request.POST.get("submission", ""))
    except ValueError:
        return uuid.uuid4()


def run_of(request: HttpRequest, job: Job) -> Run | None:
    """The run of the job that `?run=` names by its id, or the last one. Http404 for another job's."""
    if not request.GET.get("run"):
        return job.current_run
    run = job.runs.select_related("node").filter(pk=number(request, "run", 0)).first()
    if run is None:
        raise Http404
    return run


def _moment(request: HttpRequest, name: str) -> float | None:
    """Seconds since 1970 of the query. Http404 for nonsense."""
    text = request.GET.get(name, "")
    try:
        at = float(text[:24]) if text else None
    except ValueError as error:
        raise Http404 from error
    if at is not None and not 0 <= at < MOST_SECONDS:
        raise Http404
    return at


def number(request: HttpRequest, name: str, default: int) -> int:
    """A whole number of the query. Http404 for nonsense: only a page's own script makes these addresses."""
    text = request.GET.get(name, "")
    if not text:
        return default
    try:
        value = int(text[:21])
    except ValueError as error:
        raise Http404 from error
    if abs(value) > BIGGEST:
        raise Http404
    return value


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        while piece := opened.read(FILE_PIECE):
            yield piece


def attachment(response: Response, name: str) -> Response:
    """One that no browser shows or runs."""
    response["Content-Disposition"] = content_disposition_header(as_attachment=True, filename=name)
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-store"
    return response
