"""Whatever goes wrong at an address of the API is answered in its one shape, also where no route of it was reached."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.translation import gettext as _

PREFIX = "/api/"
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 403: "FORBIDDEN", 413: "TOO_LARGE", 429: "TOO_MANY_REQUESTS",
          503: "DATABASE_AWAY"}  # fmt: skip


class JsonErrors:
    """Django's own answers from 400 on, which are pages or plain text, as `{"errors": […]}`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not request.path.startswith(PREFIX) or response.status_code < 400 or _is_json(response):
            return response
        return _in_json(request, response)


def _is_json(response: HttpResponseBase) -> bool:
    return response.headers.get("Content-Type", "").startswith("application/json")


def _in_json(request: HttpRequest, response: HttpResponseBase) -> HttpResponse:
    status = response.status_code
    code = _CODES.get(status, "BAD_REQUEST" if status < 500 else "SERVER_ERROR")
    error: dict[str, Any] = {"field": "", "code": code, "message": _sentence(request, response)}
    kept = {name: response.headers[name] for name in ("Allow", "Retry-After") if name in response.headers}
    return JsonResponse({"errors": [error]}, status=status, headers=kept)


def _sentence(request: HttpRequest, response: HttpResponseBase) -> str:
    if response.status_code == 404:
        return _("The API has no such address; /api/docs lists them.")
    if response.status_code == 405:
        text = _("This address takes %(allowed)s, not %(method)s.")
        return text % {"allowed": response.headers.get("Allow", "?"), "method": request.method}
    if response.status_code == 413:
        return _("More was sent than the server takes at once.")
    if response.status_code == 429:
        seconds = response.headers.get("Retry-After", "60")
        return _("Too many requests: wait %(seconds)s seconds.") % {"seconds": seconds}
    if response.status_code == 503:
        return _("The database does not answer at the moment. Running jobs go on: try again in a few seconds.")
    if response.status_code >= 500:
        return _("Something went wrong on the server; its administrators find it in the log.")
    return _("The server cannot read this request.")
