"""`/readyz` for load balancers, and `/metrics` for Prometheus."""

import threading
import time
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from jobs import figures
from portal import readiness, telemetry
from portal.tokens import bearer_secret

FORWARDED = ("X-Forwarded-For", "X-Real-Ip", "Forwarded")


@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when database, migrations and Redis are as this process needs them, else 503 and what is wrong."""
    found = readiness.look()
    ready = all(verdict == "ok" for verdict in found.values())
    answer = JsonResponse({"ready": ready, **found}, status=200 if ready else 503)
    answer._has_been_logged = True  # type: ignore[attr-defined]  # an answer, no error, and asked every second
    return answer


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """All figures as text, to whoever may have them: see `_may_read`. 404 to those who are logged in and may not."""
    if not _may_read(request):
        if "Authorization" not in request.headers and request.user.is_authenticated:
            raise Http404
        return HttpResponse("a token is needed\n", status=401, headers={"WWW-Authenticate": "Bearer"})
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encoder(telemetry.registry), content_type=content_type)


def _may_read(request: HttpRequest) -> bool:
    """By METRICS_TOKEN, from an address of METRICS_ALLOW, or as staff. A wrong token is refused, whoever brings it."""
    if "Authorization" in request.headers:
        secret = bearer_secret(request.headers["Authorization"]) or ""
        return bool(settings.METRICS_TOKEN) and constant_time_compare(secret, settings.METRICS_TOKEN)
    return _is_allowed(request) or bool(getattr(request.user, "is_staff", False))


def _is_allowed(request: HttpRequest) -> bool:
    """Whether it came from such an address itself. What a proxy passes on is somebody else's, whatever it says."""
    if any(name in request.headers for name in FORWARDED):
        return False
    try:
        address = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:  # a Unix socket has none
        return False
    return any(address in ip_network(allowed) for allowed in settings.METRICS_ALLOW)


class _OfAll(Collector):
    """The installation's figures, no older than METRICS_REREAD: any number of scrapers costs no more than one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0
        self._kept: list[Metric] = []

    def describe(self) -> list[Any]:
        return []  # or else it were collected where it is registered

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._kept = list(figures.take(timezone.now()))
                self._until = time.monotonic() + settings.METRICS_REREAD
            return self._kept


figures_of_all = _OfAll()
telemetry.registry.register(figures_of_all)
