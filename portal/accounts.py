"""Who may make an account: an admin, never a visitor. Passwords are mended by e-mail only where there is a server."""

from collections.abc import Callable
from functools import wraps

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponseBase


class ClosedSignup(DefaultAccountAdapter):
    """allauth without its sign-up page."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


def mail_works() -> bool:
    """Whether EMAIL_URL names a server, so that a forgotten password can be mended by e-mail."""
    return "dummy" not in str(settings.EMAIL_BACKEND)


def by_mail(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A page that makes sense only when e-mail can be sent; 404 elsewhere."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: str, **kwargs: str) -> HttpResponseBase:
        if not mail_works():
            raise Http404
        return view(request, *args, **kwargs)

    return guarded
