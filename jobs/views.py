"""The form and the lists. Each list answers a whole page, or only its changing part to htmx."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import wraps
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from jobs import formhelp, hints, paging, receipts, wording
from jobs.access import get_job, visible_jobs
from jobs.board import in_full, places
from jobs.dashboard import dashboard_of
from jobs.forms import LINKABLE, MAY_BE_ANY, JobForm
from jobs.history import gpu_seconds, with_allocations
from jobs.models import Job, Team
from jobs.plain import is_number
from jobs.preview import preview
from jobs.receipt import Used
from jobs.states import ENDED, EndReason
from jobs.status import trust
from jobs.submit import Refused, submit, taken_in

View = Callable[..., HttpResponseBase]


def signed_in(view: View) -> View:
    """Only for people who are logged in; a fragment whose session is over reloads its page to the log-in."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if request.htmx:  # type: ignore[attr-defined]
            back = request.htmx.current_url_abs_path or "/"  # type: ignore[attr-defined]
            return HttpResponseClientRedirect(redirect_to_login(back).url)
        return redirect_to_login(request.get_full_path())

    return guarded


def for_staff(view: View) -> View:
    """Others are not told that there is such a page."""

    @signed_in
    @never_cache
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_staff:
            raise Http404
        return view(request, *args, **kwargs)

    return wrapped


def render_page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """The page `jobs/<name>.html`, or for htmx only its part `jobs/_<name>.html`."""
    part = f"jobs/_{name}.html"
    return render(request, part if request.htmx else f"jobs/{name}.html", {**context, "part": part})  # type: ignore[attr-defined]


# --- the form ---


@signed_in
@require_http_methods(["GET", "POST"])
def new_job(request: HttpRequest) -> HttpResponseBase:
    """The form, and what pressing its button does: one job for one submission, however often it is sent."""
    form = _form(request)
    checked = "check" in request.POST
    if request.method == "POST" and not checked and form.is_valid():
        job = _submitted(form)
        if job is not None:
            messages.success(request, _("Job #%(id)d is submitted.") % {"id": job.pk})
            return redirect(job)
    status = 422 if form.is_bound and not checked else 200
    return render(request, "jobs/new.html", _form_context(form, look=checked or form.is_bound), status=status)


@signed_in
@require_POST
def preview_job(request: HttpRequest) -> HttpResponseBase:
    """The panel: what would happen if the button were pressed."""
    return render(request, "jobs/_preview.html", _preview_context(_form(request)))


def _form(request: HttpRequest) -> JobForm:
    """The form as sent, or as a new one: cloned from a job that this person may see, with a link's values."""
    posted = request.POST if request.method == "POST" else None
    source = (request.POST if posted is not None else request.GET).get(
        "cloned_from" if posted is not None else "clone", ""
    )
    original = get_job(request.user, int(source)) if is_number(source) else None
    linked = {
        name: value for name in LINKABLE if (value := request.GET.get(name)) or (name in MAY_BE_ANY and value == "")
    }
    return JobForm(posted, user=request.user, original=original, initial=linked)  # type: ignore[arg-type]


def _submitted(form: JobForm) -> Job | None:
    """The job; None when it was refused, and the form says why."""
    submission: UUID = form.cleaned_data["submission"] or uuid4()
    try:
        return submit(form.to_request(), owner=form.user, team=form.cleaned_data["team"], submission=submission)
    except Refused as refused:
        form.refuse(refused)
        return None


def _form_context(form: JobForm, *, look: bool) -> dict[str, Any]:
    return {
        "form": form, "beside": formhelp.beside(form.user, form.limits), "presets": formhelp.presets(form.limits),
        "image_hints": hints.images(form.user),
        "more_open": form.has_more(),
        "no_team": not form.fields["team"].queryset.exists(),  # type: ignore[attr-defined]
        "taken": " ".join(map(str, taken_in(form.user))),
        "zone": timezone.get_current_timezone_name(), **(_preview_context(form) if look else {}),
    }  # fmt: skip


def _preview_context(form: JobForm) -> dict[str, Any]:
    """What the panel shows. `verdict` is "" while the numbers can't be read."""
    asked, to_do = form.to_preview(), form.to_do()
    if asked is None:
        return {"verdict": "", "to_do": to_do}
    request, team = asked
    found = preview(request, owner=form.user, team=team)
    counted = replace(request, gpu_milli=found.gpu_milli)
    reader = form.user.get_username()
    levels = formhelp.levels_of(form.user, [team])
    return {
        "verdict": found.verdict, "node": found.node, "position": found.position, "cost": formhelp.cost(counted),
        "elastic": request.least_gpus and wording.gpus(found.gpus),
        "ahead": wording.ahead(found.position), "trust": trust(found.expected) if found.expected else "",
        "expected": found.expected and wording.expected_start(found.expected.earliest, found.expected.latest),
        "sentences": [*(said for _f, _c, said in wording.refusals(found.refusals, reader=reader)),
                      *(wording.wait_reason(r, reader=reader) for r in found.reasons)],
        "loan": found.loan and wording.loan(**asdict(found.loan), would=True),
        "my_bars": formhelp.quota_bars(levels["user"], counted, found.verdict),
        "team_bars": formhelp.quota_bars(levels.get(team.name, []), counted, found.verdict), "team": team,
        "to_do": to_do,
        "command": formhelp.as_command(form.job_request, team) if form.job_request and not any(to_do) else "",
    }  # fmt: skip


# --- the lists ---


@signed_in
@require_GET
def dashboard(request: HttpRequest) -> HttpResponseBase:
    return render_page(request, "dashboard", dashboard_of(request.user))


@signed_in
@require_GET
def job_list(request: HttpRequest) -> HttpResponseBase:
    """All jobs that one may see, by state, owner and text. Searching looks through everybody's."""
    whose = "all" if request.GET.get("q") else "mine"
    filters = paging.read_filters(request.GET, sorts=("new", "old", "name", "gpus"), whose=whose)
    return _listed(request, "list", paging.parts(filters, request.user), filters, in_full)


@signed_in
@require_GET
def history(request: HttpRequest) -> HttpResponseBase:
    """Ended jobs: why, how long, at what cost; as a page or as CSV."""
    filters = paging.read_filters(request.GET, sorts=("ended",), whose="mine")
    ended = {"state__in": ENDED, "ended_at__isnull": False}
    if request.GET.get("format") == "csv":
        every = paging.narrow(visible_jobs(request.user).filter(**ended), filters, request.user)
        return _csv(with_allocations(every))
    found = paging.parts(filters, request.user, **ended)
    return _listed(
        request, "history", found, filters, with_allocations, reasons=[(r, wording.end_label(r)) for r in EndReason]
    )


def _listed(
    request: HttpRequest, name: str, found: Any, filters: paging.Filters, whole: Callable[[Any], Any], **more: Any
) -> HttpResponse:
    rows, cursor = paging.page(found, filters, whole)
    standing, total = places([job.pk for job in rows]) if name == "list" else ({}, 0)
    return render_page(request, name, {
        "jobs": rows, "filters": filters, "chips": paging.chips(filters), "standing": standing, "queued": total,
        "next": filters.address(after=cursor) if cursor else "", "first": filters.address() if filters.after else "",
        "teams": Team.objects.all() if request.user.is_staff else Team.objects.filter(memberships__user=request.user),  # type: ignore[misc]
        "used": receipts.used_by(rows) if name == "history" else {},
        "here": request.get_full_path(), "searched": paging.searched(filters),
        "narrowed": filters.narrows, **more,
    })  # fmt: skip


class _Echo:
    """A file for csv that gives back each row instead of keeping it."""

    def write(self, value: str) -> str:
        return value


def _csv(found: Any) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_csv_rows(found), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="jobs-{timezone.now():%Y-%m-%d}.csv"'
    return response


CSV_CHUNK = 500
CSV_COLUMNS = (
    "id", "name", "owner", "team", "state", "reason", "sentence", "exit_code", "image", "gpus", "cpus", "memory_mib",
    "submitted", "started", "ended", "gpu_hours", "gpu_busy_percent", "gpu_idle_hours", "cpus_used", "memory_max_mib",
    "energy_kwh",
)  # fmt: skip


def _csv_rows(found: Any) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield "\ufeff" + writer.writerow(CSV_COLUMNS)  # with the mark by which spreadsheets know UTF-8
    now = timezone.now()
    for job, used in _with_use(found):
        yield writer.writerow([_cell(value) for value in (
            job.pk, job.name, job.owner.username, job.team.name, job.state, job.end_reason, wording.headline(job),
            job.exit_code, job.image, job.gpus, job.millicpus / 1000, job.memory_mib, job.created_at.isoformat(),
            job.started_at and job.started_at.isoformat(), job.ended_at and job.ended_at.isoformat(),
            round(gpu_seconds(job, now) / 3600, 3), *_use_cells(used),
        )])  # fmt: skip


def _with_use(found: Any) -> Iterator[tuple[Job, Used | None]]:
    """Every job with what it used, a chunk at a time."""
    jobs = found.iterator(chunk_size=CSV_CHUNK)
    while chunk := list(islice(jobs, CSV_CHUNK)):
        used = receipts.used_by(chunk)
        yield from ((job, used.get(job.pk)) for job in chunk)


def _use_cells(used: Used | None) -> list[Any]:
    """Empty where it is not known."""
    if used is None or not used.seconds:
        return [""] * 5
    idle = used.gpu_idle_seconds / 3600 if used.gpu_known_seconds else None
    found = ((used.gpu_percent, 1), (idle, 3), (used.cpus, 2), (used.memory_max_mib, 0), (used.kwh, 3))
    return ["" if value is None else round(value, digits) if digits else value for value, digits in found]


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is told to be text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
