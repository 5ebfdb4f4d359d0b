"""Hosts: the door through which they join."""

import json
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_POST

from jobs import joining, wording

_LOOPBACK = ("127.0.0.1", "::1")


@csrf_exempt  # a host has no session: its token is all that counts
@require_POST
@never_cache
@sensitive_post_parameters()
@sensitive_variables("asked", "given")
def join(request: HttpRequest) -> JsonResponse:
    """`{token, name}` → `{settings}`, once. For `manage.py node --join`, over HTTPS or from this machine itself."""
    address = request.META.get("REMOTE_ADDR") or None
    if not request.is_secure() and address not in _LOOPBACK:
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
    except ValueError:
        body = None
    found = body if isinstance(body, dict) else {}
    return {key: str(found.get(key) or "")[:200] for key in ("token", "name")}


def _refused(code: str, params: dict[str, Any], status: int) -> JsonResponse:
    return JsonResponse({"errors": [{"code": code, "message": wording.host_refusal(code, params)}]}, status=status)
