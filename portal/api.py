"""The API's root at `/api/`: the OpenAPI page, how every refusal looks, and the routes about people."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache
from typing import Any, Literal

from allauth.account.adapter import get_adapter
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ValidationError as FormError
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe
from ninja import Field, NinjaAPI, Router, Schema, Status
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.responses import NinjaJSONEncoder

from portal.apikit import MAY_READ, Error, Errors, Refused, Strict, Whole, refuse
from portal.apiwords import sentence
from portal.models import ApiToken, User
from portal.tokens import token_for_authorization


def for_people(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The documentation is for those who may log in: by session, or by token for tools that read the schema."""

    @require_safe
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        header = request.headers.get("Authorization", "")
        if request.user.is_authenticated or token_for_authorization(header):
            return view(request, *args, **kwargs)
        return redirect_to_login(request.get_full_path())

    return wrapped


api = NinjaAPI(
    title="Dockyard",
    version="1",
    description="Submit GPU jobs, watch them and read their logs. Make a token at /account/tokens/.",
    urls_namespace="api",
    auth=MAY_READ,
    docs_decorator=for_people,
)


# --- how refusals look ---


def _answer(request: HttpRequest, status: int, errors: Iterable[Error]) -> HttpResponse:
    return api.create_response(request, {"errors": list(errors)}, status=status)


@api.exception_handler(Refused)
def _on_refused(request: HttpRequest, error: Refused) -> HttpResponse:
    return _answer(request, error.status, error.errors)


@api.exception_handler(Http404)
def _on_missing(request: HttpRequest, error: Http404) -> HttpResponse:
    sentence = str(error) or _("There is no such thing here, or it is not yours to see.")
    return _answer(request, 404, [Error(field="", code="NOT_FOUND", message=sentence)])


@api.exception_handler(AuthenticationError)
def _on_stranger(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    own = error.message if error.message != "Unauthorized" else _("Log in first: no valid token or session came along.")
    response = _answer(request, 401, [Error(field="", code="NOT_LOGGED_IN", message=own)])
    response["WWW-Authenticate"] = "Bearer"
    return response


_CODES = {400: "BAD_REQUEST", 403: "FORBIDDEN", 429: "TOO_MANY_REQUESTS"}


@api.exception_handler(HttpError)
def _on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    code, sentence = _CODES.get(error.status_code, "REFUSED"), error.message
    if error.status_code == 400:  # ninja's own, for a body that does not parse
        code, sentence = "BAD_JSON", _("The body of the request is not valid JSON.")
    elif sentence == "CSRF check Failed":
        code, sentence = "CSRF", _("The request lacks a valid CSRF token: reload the page, or use an API token.")
    return _answer(request, error.status_code, [Error(field="", code=code, message=sentence)])


@api.exception_handler(ValidationError)
def _on_bad_values(request: HttpRequest, error: ValidationError) -> HttpResponse:
    return _answer(request, 422, [_value_error(item) for item in error.errors])


def _value_error(item: dict[str, Any]) -> Error:
    """A pydantic error as one of ours: the path inside the body, and a sentence."""
    path = [str(part) for part in item.get("loc", ())]
    field = ".".join(path[2:] if path[:1] == ["body"] else path[1:])
    if item["type"] == "extra_forbidden":
        return Error(field=field, code="UNKNOWN_FIELD", message=_("There is no field “%(name)s”.") % {"name": field})
    return Error(field=field, code=item["type"].upper(), message=sentence(item["type"], item.get("ctx", {})))


# --- people ---

people = Router(tags=["people"])


class Person(Schema):
    id: int
    username: str
    staff: bool
    teams: list[str]
    may_run_unlimited: bool
    uid: int
    gid: int


class LoginIn(Strict):
    username: str = Field(max_length=150)
    password: str = Field(max_length=4096)
    name: str = Field("dockyard", max_length=80, description="What the token is called in the list of tokens")
    scope: Literal["read", "write"] = "write"
    days: Whole = Field(90, ge=1, le=3650, description="After these days the token expires")


class TokenOut(Schema):
    token: str
    username: str
    scope: str
    expires_at: str


@people.get("/me", response=Person)
def me(request: HttpRequest) -> dict[str, Any]:
    """Whom the token or session speaks for."""
    user: Any = request.user
    return {
        "id": user.pk, "username": user.username, "staff": user.is_staff, "uid": user.run_uid, "gid": user.run_gid,
        "teams": list(user.teams.order_by("name").values_list("name", flat=True)),
        "may_run_unlimited": user.may_run_unlimited,
    }  # fmt: skip


@people.post("/login", auth=None, response={201: TokenOut, 401: Errors, 429: Errors})
def login(request: HttpRequest, body: LoginIn) -> Status[dict[str, Any]]:
    """Trade a password for a token, under the same limits on attempts as the log-in page."""
    user = _checked(request, body)
    expires = timezone.now() + timedelta(days=body.days)
    _token, secret = ApiToken.issue(user, name=_printable(body.name), scope=body.scope, expires_at=expires)
    return Status(
        201, {"token": secret, "username": user.username, "scope": body.scope, "expires_at": expires.isoformat()}
    )


@people.delete("/login", response={204: None})
def logout(request: HttpRequest) -> Status[None]:
    """Revoke the token that this very request carries."""
    token = token_for_authorization(request.headers.get("Authorization", ""))
    if token is None:
        raise refuse("NO_TOKEN", _("This request carries no token to revoke."), status=400)
    token.delete()
    return Status(204, None)


def _checked(request: HttpRequest, body: LoginIn) -> User:
    try:
        user = get_adapter().authenticate(request, username=_printable(body.username), password=body.password)
    except FormError as error:
        raise refuse("TOO_MANY_REQUESTS", " ".join(error.messages), status=429) from error
    if not isinstance(user, User) or not user.is_active:
        raise refuse("BAD_LOGIN", _("User name or password is wrong."), status=401)
    return user


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable()).strip()


api.add_router("", people)
api.add_router("", "gpus.api.router")
api.add_router("", "jobs.api.router")
api.add_router("", "jobs.api_change.router")
api.add_router("", "jobs.api_queue.router")
api.add_router("", "jobs.api_receipt.router")


@for_people
def openapi(_request: HttpRequest) -> HttpResponse:
    """The schema as JSON. It is the same for all and for as long as the process lives, and slow to make."""
    return HttpResponse(_schema(), content_type="application/json")


@cache
def _schema() -> bytes:
    return json.dumps(api.get_openapi_schema(), cls=NinjaJSONEncoder).encode()


def _summarise(routers: Iterable[tuple[str, Router]]) -> None:
    """Head every operation of the documentation with the first sentence of what it says of itself."""
    for _prefix, router in routers:
        for view in router.path_operations.values():
            for operation in view.operations:
                operation.summary = re.split(r"[.:;](?:\s|$)", operation.description or "")[0] or operation.summary


_summarise(api._routers)
