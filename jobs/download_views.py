"""A log as a file: whole or a part, raw or compressed, as fast as the disk gives it and never whole in memory."""

import re

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from jobs import logstore
from jobs.access import get_job
from jobs.job_views import BIGGEST, BINARY, attachment, number, run_of
from jobs.models import Run
from portal.streaming import in_thread

_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


@require_GET
@login_required
def log(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The bytes [start, end) of a run's log, or all there is; `format=gz`: as a gzip file.

    A raw log heeds one `Range`, so that a download that broke off goes on.
    """
    job = get_job(request.user, pk)
    run = run_of(request, job)
    start, end = _asked(request, logstore.size(run) if run else 0)
    name = f"job-{job.pk}-run-{run.number}.log" if run else f"job-{job.pk}.log"
    if run is None or start >= end:
        return attachment(HttpResponse(content_type=BINARY), name)
    if request.GET.get("format") == "gz":
        packed = in_thread(logstore.stream_packed(run, start, end))
        return attachment(StreamingHttpResponse(packed, content_type="application/gzip"), f"{name}.gz")
    return attachment(_raw(request, run, start, end), name)


def _asked(request: HttpRequest, there: int) -> tuple[int, int]:
    """`start` and `end` of the query within what there is; a negative start counts from the end."""
    start, end = number(request, "start", 0), number(request, "end", BIGGEST)
    return max(there + start, 0) if start < 0 else start, min(end, there)


def _raw(request: HttpRequest, run: Run, start: int, end: int) -> HttpResponseBase:
    span = _span(request.headers.get("Range", ""), end - start)
    if span == (0, 0):
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{end - start}"})
    first, last = span or (0, end - start)
    pieces = in_thread(logstore.stream(run, start + first, start + last))
    answer = StreamingHttpResponse(pieces, content_type=BINARY, status=206 if span else 200)
    answer["Content-Length"], answer["Accept-Ranges"] = str(last - first), "bytes"
    if span:
        answer["Content-Range"] = f"bytes {first}-{last - 1}/{end - start}"
    return answer


def _span(header: str, size: int) -> tuple[int, int] | None:
    """The one range that is asked for, as [first, last) of `size` bytes; None: all; (0, 0): there is no such."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or found.group(1, 2) == (None, None):
        return None
    if found[1] is None:
        first, last = max(size - int(found[2]), 0), size
    else:
        first, last = int(found[1]), min(int(found[2]) + 1 if found[2] else size, size)
    return (first, last) if first < last else (0, 0)
