"""The GPUs page and the JSON behind it."""

import time

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from gpus import history
from gpus.models import GPU, Node
from gpus.now import nodes_now

SPARKLINE_SECONDS = 300
SPARKLINE_STEP = 3  # seconds: such a line is 150 pixels wide, and there may be hundreds


@require_GET
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """Who has what, is it used, is anything sick."""
    statuses = {value: str(label) for value, label in Node.GpuStatus.choices}
    return render(request, "gpus/gpus.html", {"now": {**_now(request), "statuses": statuses}})


@require_GET
@login_required
def now(request: HttpRequest) -> JsonResponse:
    """What the page shows, for browsers without a socket."""
    return JsonResponse(_now(request))


@require_GET
@login_required
def recent(request: HttpRequest) -> JsonResponse:
    """The last minutes of every GPU: `{uuid: [[at, utilisation], …]}`."""
    uuids = GPU.objects.values_list("uuid", flat=True)
    samples = history.recent_of(uuids, SPARKLINE_SECONDS, every=SPARKLINE_STEP)
    lines = {uuid: [[s["at"], s.get("utilisation")] for s in found] for uuid, found in samples.items()}
    return JsonResponse({"gpus": lines, "server_time": time.time()})


def _now(request: HttpRequest) -> dict[str, object]:
    return {"nodes": nodes_now(request.user), "server_time": time.time(), "fresh": settings.SAMPLE_FRESH}
