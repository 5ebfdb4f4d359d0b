"""Whose answer may touch the session's cookie, when answers come in the harmful order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db.models.signals import post_save
from django.http.response import HttpResponseBase
from django.test import Client

from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db
NEW = "another long password"
CHANGE = {"oldpassword": factories.PASSWORD, "password1": NEW, "password2": NEW}
POLLED = ["/", "/jobs/", "/queue/", "/gpus/", "/gpus/now.json", "/history/", "/accounts/login/", "/api/me", "/admin/"]


@pytest.fixture(autouse=True)
def _limiter() -> None:
    call_command("createcachetable", verbosity=0)


@pytest.fixture
def laptop(client: Client, alice: User) -> Client:
    client.force_login(alice, backend="allauth.account.auth_backends.AuthenticationBackend")
    return client


def sent_before(laptop: Client) -> Client:
    """The same browser's requests of before: they carry the cookies that it had then."""
    before = Client()
    before.cookies.load({name: morsel.value for name, morsel in laptop.cookies.items()})
    return before


def comes_last(laptop: Client, answer: HttpResponseBase) -> None:
    """What a browser does with the cookies of an answer."""
    laptop.cookies.update(answer.cookies)


def may_enter(laptop: Client) -> bool:
    return laptop.get("/gpus/now.json").status_code == 200


@contextmanager
def amid_saving(act: Any) -> Iterator[None]:
    """`act` once the new password is stored, and before the session knows it."""

    def saved(**_signal: Any) -> None:
        post_save.disconnect(saved, sender=User)
        act()

    post_save.connect(saved, sender=User, weak=False)
    try:
        yield
    finally:
        post_save.disconnect(saved, sender=User)


@pytest.mark.parametrize("path", POLLED)
def test_a_poll_answered_after_a_change_of_password_takes_no_cookie_away(laptop: Client, path: str) -> None:
    before = sent_before(laptop)
    laptop.post("/accounts/password/change/", CHANGE)
    late = before.get(path, headers={"HX-Request": "true"})
    assert settings.SESSION_COOKIE_NAME not in late.cookies
    comes_last(laptop, late)
    assert may_enter(laptop)


def test_a_poll_between_the_new_password_and_the_new_session_takes_no_cookie_away(laptop: Client) -> None:
    before, late = sent_before(laptop), list[HttpResponseBase]()
    with amid_saving(lambda: late.append(before.get("/gpus/now.json"))):
        laptop.post("/accounts/password/change/", CHANGE)
    assert late[0].status_code == 302
    comes_last(laptop, late[0])
    assert may_enter(laptop)


def test_a_poll_of_an_ended_session_does_not_undo_a_log_in(laptop: Client, alice: User) -> None:
    laptop.session.flush()
    before = sent_before(laptop)
    laptop.post("/accounts/login/", {"login": "alice", "password": factories.PASSWORD})
    comes_last(laptop, before.get("/gpus/now.json"))
    assert may_enter(laptop)


def test_logging_out_takes_the_cookie_away(laptop: Client) -> None:
    answer = laptop.post("/accounts/logout/")
    assert answer.cookies[settings.SESSION_COOKIE_NAME].value == ""
    assert not may_enter(laptop)


def test_a_password_that_was_changed_elsewhere_ends_the_session(laptop: Client, alice: User) -> None:
    alice.set_password(NEW)
    alice.save()
    assert not may_enter(laptop)
