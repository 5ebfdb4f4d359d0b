"""Middleware: each request has an id, on every line that is written for it, in its answer, and on a line of its own."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from jobs import plain
from portal import logs

log = logging.getLogger("portal.requests")
HEADER = "X-Request-ID"
_GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds
_SECRET = "/accounts/"  # an address there may hold the key of a new password


class RequestIds:
    """The id that a front gave it in X-Request-ID, where that looks like one, or a fresh one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get(HEADER, "")
        name = given if _GIVEN.fullmatch(given) else uuid.uuid4().hex
        with logs.about(request=name):
            begun = time.perf_counter()
            response = self.get_response(request)
            response.headers[HEADER] = name
            if settings.LOG_REQUESTS:
                _write(request, response.status_code, time.perf_counter() - begun)
        return response


def _write(request: HttpRequest, status: int, seconds: float) -> None:
    """Without the query: people look for things that are nobody else's business."""
    path = request.path
    if path.startswith(_SECRET) and request.resolver_match:
        path = f"/{request.resolver_match.route}"
    path = plain.visible(path)  # it was decoded: a line end in it would begin a line of anybody's making
    fields = {"method": request.method, "path": path, "status": status, "ms": round(seconds * 1000, 1)}
    level = logging.DEBUG if path in PROBES else logging.INFO
    said = ("%s %s %d in %.1f ms", request.method, path, status, fields["ms"])
    log.log(level, *said, extra={"fields": fields})
