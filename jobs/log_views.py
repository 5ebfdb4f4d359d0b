"""What a job page asks about its log beyond the bytes: search, where a line or a time is, times and streams."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from jobs import logindex, logsearch
from jobs.access import get_job
from jobs.job_views import number, run_of
from jobs.models import Run
from portal.streaming import in_thread

MOST_NOTES = 16 << 20  # bytes of a log of which notes are told at once
MOST_SEARCHES = 2  # of one reader at a time, in one process

_searches: Counter[int] = Counter()
_lock = threading.Lock()


@require_GET
@never_cache
@login_required
def find(request: HttpRequest, pk: int) -> HttpResponse:
    """{"offset"} of a line (`?line=`, from 1) or of a time (`?time=`, seconds since 1970); null where there is none."""
    run = run_of(request, get_job(request.user, pk))
    if run is None:
        return JsonResponse({"offset": None})
    if request.GET.get("line"):
        return JsonResponse({"offset": logindex.offset_of_line(run, number(request, "line", 1) - 1)})
    return JsonResponse({"offset": logindex.offset_of_time(run, _seconds(request))})


def _seconds(request: HttpRequest) -> float:
    try:
        return min(max(float(request.GET.get("time", "")[:30]), 0.0), 1e11)
    except ValueError:
        return 0.0


@require_GET
@never_cache
@login_required
def notes(request: HttpRequest, pk: int) -> HttpResponse:
    """Of [start, end): newlines before it, and from which offsets on which second and which stream holds."""
    run = run_of(request, get_job(request.user, pk))
    if run is None:
        return JsonResponse({"start": 0, "end": 0, "line": 0, "times": [], "streams": []})
    start = max(number(request, "start", 0), 0)
    end = min(number(request, "end", start), start + MOST_NOTES)
    found = logindex.notes(run, start, end)
    return JsonResponse(vars(found))


@require_GET
@never_cache
@login_required
def search(request: HttpRequest, pk: int) -> HttpResponse | StreamingHttpResponse:
    """Lines of JSON as they are found, see `jobs.logsearch.search`, or {"error"}; 400 for what can't be searched."""
    run = run_of(request, get_job(request.user, pk))
    regex, case = (bool(request.GET.get(name)) for name in ("regex", "case"))
    try:
        expression = logsearch.compiled(request.GET.get("q", ""), regex=regex, case=case)
    except logsearch.BadPattern as error:
        return JsonResponse({"error": _("This is no regular expression: %(why)s") % {"why": error}}, status=400)
    assert request.user.pk is not None
    found = _found(run, expression, max(number(request, "start", 0), 0), request.user.pk)
    response = StreamingHttpResponse(in_thread(found), content_type="application/x-ndjson")
    response["X-Accel-Buffering"] = "no"
    return response


def _found(run: Run | None, expression: Any, start: int, reader: int) -> Iterator[bytes]:
    if not _begin(reader):
        yield _line({"error": _("Two of your searches are running already.")})
        return
    try:
        told = logsearch.search(run, expression, start) if run else iter([{"done": True, "at": 0, "more": False}])
        yield from map(_line, told)
    finally:
        _end(reader)


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _begin(reader: int) -> bool:
    with _lock:
        if _searches[reader] >= MOST_SEARCHES:
            return False
        _searches[reader] += 1
        return True


def _end(reader: int) -> None:
    with _lock:
        _searches[reader] -= 1
        if not _searches[reader]:
            del _searches[reader]
