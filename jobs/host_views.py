"""Hosts: the door through which they join, their pages, and what admins do to them."""

import json
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from gpus import cordon
from gpus.models import Node
from jobs import declaredead, hostpage, joining, wording
from jobs.plain import storable
from jobs.queues import wake_scheduler
from jobs.views import for_staff, signed_in
from portal.checks import LOOPBACK
from portal.middleware import address_of


@csrf_exempt  # a host has no session: its token is all that counts
@require_POST
@never_cache
@sensitive_post_parameters()
@sensitive_variables("asked", "given")
def join(request: HttpRequest) -> JsonResponse:
    """`{token, name}` → `{settings}`, once. For `manage.py node --join`, over HTTPS or from this machine itself."""
    address = address_of(request)
    if not request.is_secure() and address not in LOOPBACK:
        return _refused("INSECURE", {}, 403)
    asked = _asked(request)
    try:
        given = joining.join(asked["token"], name=asked["name"], address=address)
    except joining.Refused as refused:
        return _refused(refused.code, refused.params, 403 if refused.code == "TOKEN" else 409)
    return JsonResponse({"settings": given})


def _asked(request: HttpRequest) -> dict[str, str]:
    try:
        body: Any = json.loads(request.body)
    except (ValueError, RecursionError):
        body = None
    found = body if isinstance(body, dict) else {}
    return {key: storable(str(found.get(key) or "")[:200]) for key in ("token", "name")}


def _refused(code: str, params: dict[str, Any], status: int) -> JsonResponse:
    return JsonResponse({"errors": [{"code": code, "message": wording.host_refusal(code, params)}]}, status=status)


# --- pages ---


@signed_in
@require_GET
def hosts(request: HttpRequest) -> HttpResponseBase:
    """All hosts; for its script only the table."""
    part = "jobs/_hosts.html"
    name = part if request.htmx else "jobs/hosts.html"  # type: ignore[attr-defined]
    return render(request, name, {"part": part, "hosts": hostpage.hosts(request.user)})


@signed_in
@require_GET
def host(request: HttpRequest, name: str) -> HttpResponseBase:
    """One host: what it has and what runs there; for staff also its journal, and what can be done to it."""
    found = _host(request, name)
    context: dict[str, Any] = {"host": found, "part": "jobs/_host.html"}
    if request.user.is_staff:
        context |= {"events": hostpage.events(found.node), "access": hostpage.access(found.node)}
    page = context["part"] if request.htmx else "jobs/host.html"  # type: ignore[attr-defined]
    return render(request, page, context)


@for_staff
@require_POST
@sensitive_variables("secret")
def token(request: HttpRequest) -> HttpResponse:
    """Make a join token; this answer alone shows the command with it."""
    try:
        made, secret = joining.make_token(request.user, name=request.POST.get("name", "").strip())
    except joining.Refused as refused:
        messages.error(request, wording.host_refusal(refused.code, refused.params))
        return redirect("hosts")
    minutes = round(settings.JOIN_TOKEN_LIFE / 60)
    context = {"token": made, "secret": secret, "public_url": settings.PUBLIC_URL, "minutes": minutes}
    return render(request, "jobs/host_token.html", context)


@for_staff
@require_POST
def close(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    if cordon.cordon(node, request.user, request.POST.get("reason", "").strip()):
        messages.success(request, _("%(node)s is closed to new jobs; running ones go on.") % {"node": name})
    return redirect("host", name)


@for_staff
@require_POST
def open_(request: HttpRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node, name=name)
    if cordon.uncordon(node, request.user):
        wake_scheduler()
        messages.success(request, _("%(node)s takes new jobs.") % {"node": name})
    return redirect("host", name)


@for_staff
@require_http_methods(["GET", "POST"])
def dead(request: HttpRequest, name: str) -> HttpResponse:
    """What giving a silent host up would do to each job; then the deed."""
    found = _host(request, name)
    if not found.is_silent:
        messages.error(request, wording.host_refusal("ALIVE", {"node": name}))
        return redirect("host", name)
    if request.method == "GET":
        context = {"host": found, "stakes": declaredead.at_stake(found.node)}
        return render(request, "jobs/host_dead.html", context)
    try:
        ended = declaredead.declare_dead(found.node, request.user)
    except joining.Refused as refused:
        messages.error(request, wording.host_refusal(refused.code, refused.params))
        return redirect("host", name)
    text = ngettext("%(count)d job was given up.", "%(count)d jobs were given up.", len(ended))
    messages.success(request, text % {"count": len(ended)})
    return redirect("host", name)


@for_staff
@require_http_methods(["GET", "POST"])
def leave(request: HttpRequest, name: str) -> HttpResponse:
    """Ask first; then take the host's access away."""
    node = get_object_or_404(Node, name=name, left_at=None)
    if request.method == "GET":
        return render(request, "jobs/host_leave.html", {"node": node, "access": hostpage.access(node)})
    try:
        joining.leave(node, request.user)
    except joining.Refused as refused:
        messages.error(request, wording.host_refusal(refused.code, refused.params))
        return redirect("host", name)
    messages.success(request, _("%(node)s is removed. It can join again with a new token.") % {"node": name})
    return redirect("hosts")


def _host(request: HttpRequest, name: str) -> hostpage.Host:
    found = hostpage.hosts(request.user, [name])
    if not found:
        raise Http404
    return found[0]
