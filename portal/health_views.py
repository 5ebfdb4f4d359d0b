"""`/health/`, for staff: what is not well on which host, and the remedy."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal import health


@login_required
@never_cache
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Each host's findings as it last told them."""
    if not request.user.is_staff:
        raise Http404  # others are not told that there is such a page
    sections = health.sections()
    context = {"sections": sections, "red": sum(section.red for section in sections)}
    return render(request, "portal/health.html", context)
