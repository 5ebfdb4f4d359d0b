"""What one web process measures of itself: request times and open sockets. Every figure names its process.

Several web processes behind one address answer in turn: sum over `process` what is to hold for all.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from portal.keeper import keeper

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

disable_created_metrics()  # type: ignore[no-untyped-call]
registry = CollectorRegistry()
requests = Histogram(
    "dockyard_http_request_seconds",
    "Time to the head of the answer, by this web process",
    ["process", "route", "method", "status"],
    buckets=BUCKETS,
    registry=registry,
)


def process() -> str:
    """This process among all web processes."""
    return f"{socket.gethostname()}:{os.getpid()}"


class RequestTimes:
    """Middleware, the outermost: how long each request took. Routes are patterns, never addresses: few labels."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        begun = time.perf_counter()
        response = self.get_response(request)
        took = time.perf_counter() - begun
        method = str(request.method) if request.method in METHODS else "other"
        requests.labels(process(), _route(request), method, response.status_code).observe(took)
        return response


def _route(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is not None:
        return f"/{match.route}"
    return str(settings.STATIC_URL) if request.path.startswith(str(settings.STATIC_URL)) else "unknown"


class _OfProcess(Collector):
    def collect(self) -> Iterable[Metric]:
        sockets = GaugeMetricFamily(
            "dockyard_websockets", "Open WebSockets of this web process", labels=["process", "kind"]
        )
        for kind, count in Counter(keeper.kinds()).items():
            sockets.add_metric([process(), kind], count)
        memory = GaugeMetricFamily(
            "dockyard_web_resident_bytes", "Resident memory of this web process", labels=["process"]
        )
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory.add_metric([process()], pages * os.sysconf("SC_PAGE_SIZE"))
        return [sockets, memory]


registry.register(_OfProcess())
