"""The queue's own pages: who waits before whom and why, and the buttons that change it."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from jobs import reorder
from jobs.access import can_control, can_pin, can_reorder
from jobs.board import board
from jobs.job_views import act, asked
from jobs.models import Job
from jobs.standings import standings
from jobs.views import render_page, signed_in


@signed_in
@require_GET
def queue(request: HttpRequest) -> HttpResponseBase:
    """Everybody's waiting jobs in the scheduler's order, each with all its reasons."""
    after = request.GET.get("after", "")
    shown = board(request.user, after=int(after) if after.isdecimal() and len(after) < 9 else 0)
    return render_page(request, "queue", {"board": shown, "here": request.get_full_path()})


@signed_in
@require_GET
def fair_share(request: HttpRequest) -> HttpResponseBase:
    """Each team's and member's part of the GPUs: due, had, and what that does to their jobs."""
    found = standings(request.user, timezone.now())
    return render_page(request, "fairshare", {"found": found, "here": request.get_full_path()})


@signed_in
@require_POST
def pin(request: HttpRequest, pk: int) -> HttpResponseBase:
    return _back(request, act(request, pk, reorder.pin, _("Only a waiting job can be pinned."), may=can_pin))


@signed_in
@require_POST
def unpin(request: HttpRequest, pk: int) -> HttpResponseBase:
    return _back(request, act(request, pk, reorder.unpin, _("It is not pinned, or no longer waits."), may=can_pin))


@signed_in
@require_POST
def priority(request: HttpRequest, pk: int) -> HttpResponseBase:
    def verb(job: Job, user: Any) -> bool:
        wanted = asked(request, "priority")
        return reorder.reprioritise(job, user, -1 if wanted is None else wanted)

    said = _("Nothing changed: it has that priority already, or no longer waits.")
    return _back(request, act(request, pk, verb, said, may=can_control))


@signed_in
@require_POST
def move(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Among the owner's own: `to` is "up", "down" or the number of the job whose place it takes."""

    def verb(job: Job, user: Any) -> bool:
        to = request.POST.get("to", "")
        if to in ("up", "down"):
            return (reorder.move_up if to == "up" else reorder.move_down)(job, user)
        other = asked(request, "to")
        return other is not None and reorder.move_to(job, user, other)

    said = _("It changes places only with other jobs of its owner that are in line too, of the same team and priority.")
    return _back(request, act(request, pk, verb, said, may=can_reorder))


def _back(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """To the queue where the button was there."""
    return redirect("queue") if request.POST.get("back") == "queue" else answer
