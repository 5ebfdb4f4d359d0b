"""Health, tokens, language, and pages for what went wrong."""

import sys
from datetime import timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from django.views.defaults import server_error as django_server_error
from django.views.i18n import set_language as django_set_language

from portal.models import ApiToken, User

LIFETIMES = [(7, gettext_lazy("7 days")), (30, gettext_lazy("30 days")), (90, gettext_lazy("90 days")),
             (365, gettext_lazy("a year")), (0, gettext_lazy("never"))]  # fmt: skip
MOST_TOKENS = 50
DATABASE_BACK = 5  # seconds after which asking again makes sense while the database is restarted, or fails over


@require_GET
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while this process answers and reaches the database; 503 otherwise. Redis may be away: it is no truth."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"ok": False, "database": "unreachable"}, status=503)
    return JsonResponse({"ok": True})


class TokenForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("What will use it?"))
    scope = forms.ChoiceField(label=gettext_lazy("It may"), choices=ApiToken.Scope.choices)
    days = forms.TypedChoiceField(label=gettext_lazy("It expires after"), choices=LIFETIMES, coerce=int, initial=90)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@sensitive_variables("secret")
def tokens(request: HttpRequest) -> HttpResponse:
    """One's tokens, and a form for a new one, whose secret this answer alone shows."""
    user = request.user
    assert isinstance(user, User)
    form = TokenForm(request.POST or None)
    made, secret = None, ""
    if request.method == "POST" and form.is_valid():
        if user.api_tokens.count() >= MOST_TOKENS:
            form.add_error(None, _("You have %(most)d tokens; revoke one first.") % {"most": MOST_TOKENS})
        else:
            made, secret = _issue(user, form.cleaned_data)
            form = TokenForm()
    context = {"tokens": user.api_tokens.all(), "form": form, "made": made, "secret": secret}
    return render(request, "portal/tokens.html", {**context, "public_url": settings.PUBLIC_URL})


def _issue(user: User, asked: dict[str, Any]) -> tuple[ApiToken, str]:
    days = asked["days"]
    expires = timezone.now() + timedelta(days=days) if days else None
    return ApiToken.issue(user, name=asked["name"], scope=asked["scope"], expires_at=expires)


@login_required
@require_POST
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete one of one's own tokens; it stops working at once."""
    token = get_object_or_404(ApiToken, pk=pk, user=request.user)
    token.delete()
    messages.success(request, _("The token “%(name)s” is revoked.") % {"name": token.name})
    return redirect("tokens")


@require_POST
def set_language(request: HttpRequest) -> HttpResponseBase:
    """Change the language, and remember it for this person's other browsers."""
    chosen = request.POST.get("language", "")
    if request.user.is_authenticated and chosen in dict(settings.LANGUAGES):
        User.objects.filter(pk=request.user.pk).update(language=chosen)
    return django_set_language(request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A request that can't be read, in the shell's look, with what is known of why."""
    too_big = isinstance(exception, (RequestDataTooBig, TooManyFieldsSent))
    context = {"too_big": too_big, "most_mib": (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0) >> 20}
    return render(request, "400.html", context, status=400)


def server_error(request: HttpRequest) -> HttpResponse:
    """500; or 503 where only the database was away. Called while the error is handled; the page asks for no row."""
    if not isinstance(sys.exc_info()[1], OperationalError | InterfaceError):
        return django_server_error(request)
    return HttpResponse(render_to_string("503.html"), status=503, headers={"Retry-After": str(DATABASE_BACK)})
