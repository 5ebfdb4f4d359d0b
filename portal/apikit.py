"""What every part of the API is made with: who may call, and how a refusal is said.

Every error is `{"errors": [{"field", "code", "message"}]}`; messages are the pages' own sentences.
"""

from collections.abc import Callable
from typing import Annotated, Any, NotRequired, TypedDict

from django.http import HttpRequest
from django.utils.translation import gettext as _
from ninja import Field, Schema
from ninja.errors import AuthenticationError, HttpError
from ninja.security import HttpBearer
from ninja.security.session import SessionAuth
from pydantic import ConfigDict, ValidatorFunctionWrapHandler, WrapValidator
from pydantic import Strict as Exact
from pydantic_core import PydanticCustomError, ValidationError

from portal.models import ApiToken, User
from portal.tokens import token_for_secret

READ, WRITE = ApiToken.Scope.READ, ApiToken.Scope.WRITE


class Error(TypedDict):
    field: str
    code: str
    message: str
    params: NotRequired[dict[str, Any]]


class ErrorItem(Schema):
    """`field` is the name in the request, empty when the error is about the whole of it."""

    field: str
    code: str
    message: str
    params: dict[str, Any] = Field({}, description="The numbers of the message")


class Errors(Schema):
    errors: list[ErrorItem]


class Refused(Exception):
    """Raised by routes to answer `status` with these errors."""

    def __init__(self, errors: list[Error], status: int = 422) -> None:
        super().__init__(errors)
        self.errors = errors
        self.status = status


def refuse(code: str, message: str, *, field: str = "", status: int = 422) -> Refused:
    """One error as an exception to raise."""
    return Refused([Error(field=field, code=code, message=message)], status)


class Strict(Schema):
    """A request body in which an unknown field is an error, never silently ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


# What a body's fields are made of: nothing is taken for something else, such as true for 1.
Whole = Annotated[int, Exact()]
Number = Annotated[float, Exact()]
Flag = Annotated[bool, Exact()]


def one_error(kind: str) -> WrapValidator:
    """For a field that may be of several types: one error of this kind, not one for each of the types."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(kind, "of no type that does") from None

    return WrapValidator(validate)


# --- who calls ---


class Bearer(HttpBearer):
    """A program's token. One that is not good ends the request; it never falls back to a cookie."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def authenticate(self, request: HttpRequest, token: str) -> User:
        found = token_for_secret(token.strip())
        if found is None:
            raise AuthenticationError(message=_("This token is not known, expired or revoked. Log in again."))
        if self.scope == WRITE and found.scope != WRITE:
            raise HttpError(403, _("This token may only read. Use one with the scope “read and submit”."))
        request.user = found.user
        return found.user


class Session(SessionAuth):
    """A browser's session, with the CSRF check for everything that writes."""

    def __call__(self, request: HttpRequest) -> Any:
        return super().__call__(request) if request.user.is_authenticated else None


def caller(request: HttpRequest) -> User:
    """Whom an authorised request speaks for."""
    user = request.user
    if not isinstance(user, User):
        raise AuthenticationError
    return user


MAY_READ: list[Callable[[HttpRequest], Any]] = [Bearer(READ), Session()]
MAY_WRITE: list[Callable[[HttpRequest], Any]] = [Bearer(WRITE), Session()]
