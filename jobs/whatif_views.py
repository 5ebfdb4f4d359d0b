"""Pages for staff: how good estimates were, and what waits would have been under other rules."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from jobs import estimates, whatif
from jobs.models import WhatIf
from jobs.views import for_staff
from jobs.whatifforms import WhatIfForm
from jobs.whatifwords import described, never, rows

SHOWN = 20


@for_staff
@require_http_methods(["GET", "POST"])
def what_if(request: HttpRequest) -> HttpResponseBase:
    """The form, and the questions asked before."""
    form = WhatIfForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        asked = whatif.ask(form.changes(), days=form.cleaned_data["days"], by=request.user)
        return redirect("what_if_result", asked.pk)
    before = WhatIf.objects.select_related("asked_by")[:SHOWN]
    context = {"form": form, "asked": [(row, described(row.changes)) for row in before]}
    return render(request, "jobs/whatif.html", context, status=422 if form.is_bound else 200)


@for_staff
@require_GET
def result(request: HttpRequest, pk: int) -> HttpResponseBase:
    """One question: how far it is, or its answer; for htmx only the part that changes."""
    found = get_object_or_404(WhatIf.objects.select_related("asked_by"), pk=pk)
    part = "jobs/_whatif.html"
    name = part if request.htmx else "jobs/whatif_result.html"  # type: ignore[attr-defined]
    return render(request, name, {"part": part, **_context(found)})


def _context(found: WhatIf) -> dict[str, Any]:
    return {
        "asked": found, "described": described(found.changes), "why": _why(found),
        "facts": rows(found.result) if found.result else [], "never": never(found.result) if found.result else [],
        "open": found.state in (WhatIf.State.ASKED, WhatIf.State.RUNNING),
    }  # fmt: skip


def _why(found: WhatIf) -> str:
    """Why it failed, as a sentence."""
    return {
        "": "", "LOST": _("Whoever worked on it was stopped. Ask again."),
        "TOO_LONG": _("It took longer than WHAT_IF_TIMEOUT allows. Ask for fewer days."),
        "NO_JOBS": _("No job was submitted and run in these days."),
        "NO_HOSTS": _("There would be no host left."),
    }.get(found.message, found.message)  # fmt: skip


@for_staff
@require_GET
def estimates_page(request: HttpRequest) -> HttpResponse:
    """How often expected starts were right in the last 30 days, by how far ahead they were said."""
    return render(request, "jobs/estimates.html", {"score": estimates.score(), "horizons": estimates.by_horizon()})
