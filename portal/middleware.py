"""What every request goes through besides Django's own: the reader's zone and language, the guards of RQ's pages and
of the admin's, and where a change came from."""

import logging
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import redis
from auditlog.middleware import AuditlogMiddleware
from django.conf import settings
from django.contrib.admin.options import TO_FIELD_VAR
from django.contrib.auth.signals import user_logged_out
from django.contrib.auth.views import redirect_to_login
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db import DatabaseError, DataError
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone, translation

from portal import live
from portal.zones import zone_named

ZONE_COOKIE = "dockyard_zone"  # set by the page's script: the browser's IANA zone
_RQ = "admin/django_rq/"
_NAMES = {"job_id", "key"}
log = logging.getLogger(__name__)
Next = Callable[[HttpRequest], HttpResponse]


class Sessions(SessionMiddleware):
    """Django's, except that only a log-out takes the cookie away.

    A request that was sent just before a log-in or a change of password carries an outdated session. Its answer may
    come last, and Django's would then delete the cookie that the other answer has just brought.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        answer = super().process_response(request, response)
        if (user := getattr(request, "logged_out", None)) is not None:
            live.publish(live.user_topic(user), {"user": user})  # the session is gone by now: its sockets close
        cookie = answer.cookies.get(settings.SESSION_COOKIE_NAME)
        if cookie is not None and not cookie.value and not getattr(request, "logs_out", False):
            del answer.cookies[settings.SESSION_COOKIE_NAME]
        return answer


@receiver(user_logged_out)
def _logs_out(request: Any, user: Any, **_signal: Any) -> None:
    if request is not None:
        request.logs_out = True
        request.logged_out = user and user.pk


class Reader:
    """Times in the browser's zone, and the language that the person chose, on whatever browser."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        zone = request.COOKIES.get(ZONE_COOKIE, "")
        with timezone.override(zone_named(zone)):
            language = self._language(request)
            if language:
                translation.activate(language)
                request.LANGUAGE_CODE = language
            return self.get_response(request)

    @staticmethod
    def _language(request: HttpRequest) -> str:
        """What the person chose once, where this browser has chosen nothing; empty: as the browser asks."""
        if settings.LANGUAGE_COOKIE_NAME in request.COOKIES or settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return ""
        language = getattr(request.user, "language", "")
        return language if language in dict(settings.LANGUAGES) else ""


class RqPages:
    """RQ's own pages: for staff only, whatever each of its views asks for, and never a trace when Redis is away.

    Their buttons need the scripts in their templates: inline scripts run here, and on no other page.
    """

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if _is_rq(request):
            response._csp_update = {"script-src": ["'self'", "'unsafe-inline'"]}  # type: ignore[attr-defined]
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        if not _is_rq(request) or (request.user.is_staff and "object_id" not in kwargs):
            return None
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        raise Http404  # also of a row of RQ's model, which has no table

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not _is_rq(request):
            return None
        if isinstance(error, redis.RedisError):
            return render(request, "portal/redis_away.html", status=503)
        if isinstance(error, ImproperlyConfigured):  # its pages of a scheduler package that is not installed
            raise Http404
        if _names_something(request) and not isinstance(error, DatabaseError):  # jobs are gone once their time is over
            log.info("no page of RQ's about %s", request.path, exc_info=error)
            raise Http404
        return None


def _is_rq(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and match.route.startswith(_RQ)


def _names_something(request: HttpRequest) -> bool:
    """Whether the address names one job or worker of RQ's."""
    match = request.resolver_match
    return match is not None and bool(_NAMES & match.kwargs.keys())


class AdminPages:
    """Django's own admin pages: what an address names there and is nowhere is missing, and no failure of ours."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        if _is_way_to_a_row(request) and request.user.is_staff and _is_of_rq(kwargs["content_type_id"]):
            raise Http404  # its model has no table

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        if _is_way_to_a_row(request) and isinstance(error, DataError):
            raise Http404  # a key that no row can have
        if isinstance(error, FieldDoesNotExist) and request.path.startswith("/admin/") and _names_no_field(request):
            raise Http404


def _is_way_to_a_row(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and match.view_name == "admin:view_on_site"


def _is_of_rq(content_type_id: str) -> bool:
    try:
        return ContentType.objects.filter(pk=content_type_id, app_label="django_rq").exists()
    except ValueError:  # no number
        return False


def _names_no_field(request: HttpRequest) -> bool:
    """An empty `_to_field`, which Django's pages take for a name."""
    return "" in (request.GET.get(TO_FIELD_VAR), request.POST.get(TO_FIELD_VAR))


class Audit(AuditlogMiddleware):  # type: ignore[misc]  # it has no annotations
    """Notes with each change who made it and from where, as the server knows it.

    Auditlog's own believes whatever X-Forwarded-For says: any address, and such as no database takes.
    """

    @staticmethod
    def _get_remote_addr(request: HttpRequest) -> str | None:
        return address_of(request)

    @staticmethod
    def _get_remote_port(request: HttpRequest) -> None:
        return None


def address_of(request: HttpRequest) -> str | None:
    """The client's address; behind a front the one that the server, which knows the front, took from it. None: none
    that is one."""
    try:
        return str(ip_address(request.META.get("REMOTE_ADDR", "").partition("%")[0]))
    except ValueError:
        return None
