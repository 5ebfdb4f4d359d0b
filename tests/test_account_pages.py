"""Pages around a log-in: passwords, languages, what can't be read, and the way back to where one was."""

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.test import Client

from portal.models import ApiToken, User
from tests import factories

pytestmark = pytest.mark.django_db
CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}


@pytest.fixture(autouse=True)
def _limiter() -> None:
    call_command("createcachetable", verbosity=0)


def test_there_is_no_page_for_forgotten_passwords_without_an_e_mail_server(
    client: Client, settings: LazySettings
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    assert client.get("/accounts/password/reset/").status_code == 404
    assert client.post("/accounts/password/reset/", {"email": "alice@example.org"}).status_code == 404


def test_with_an_e_mail_server_a_forgotten_password_is_mended_in_the_portals_look(
    client: Client, alice: User, settings: LazySettings
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert 'class="narrow"' in client.get("/accounts/password/reset/").text
    answer = client.post("/accounts/password/reset/", {"email": "alice@example.org"}, follow=True)
    assert "Look into your mail" in answer.text


def test_changing_the_password_keeps_the_session_and_the_tokens(client: Client, alice: User) -> None:
    _token, secret = ApiToken.issue(alice, name="laptop", scope="read", expires_at=None)
    client.force_login(alice, backend="allauth.account.auth_backends.AuthenticationBackend")
    page = client.get("/accounts/password/change/")
    assert "API tokens stay valid" in page.text
    new = dict.fromkeys(["password1", "password2"], "another long password") | {"oldpassword": factories.PASSWORD}
    answer = client.post("/accounts/password/change/", new, follow=True)
    assert "API tokens stay valid" in answer.text
    assert client.get("/").status_code == 200
    assert client.get("/api/me", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_each_language_is_named_in_itself(client: Client) -> None:
    page = client.get("/accounts/login/", headers=CHINESE).text
    assert ">English</button>" in page
    assert ">简体中文</button>" in page


def test_logging_in_says_nothing_in_another_language(client: Client, alice: User) -> None:
    sent = {"login": "alice", "password": factories.PASSWORD}
    answer = client.post("/accounts/login/", sent, headers=CHINESE, follow=True)
    assert answer.wsgi_request.user == alice
    assert "Successfully" not in answer.text


def test_the_log_in_leads_back_to_the_documentation_and_to_the_form(client: Client) -> None:
    assert client.get("/api/docs")["Location"] == "/accounts/login/?next=/api/docs"
    assert client.post("/jobs/new/", {"name": "x"})["Location"] == "/accounts/login/?next=/jobs/new/"


def test_operations_of_the_api_are_headed_by_sentences(client: Client, alice: User) -> None:
    client.force_login(alice)
    paths = client.get("/api/openapi.json").json()["paths"]
    said = [operation["summary"] for methods in paths.values() for operation in methods.values()]
    assert all(" " in summary for summary in said), said


def test_a_form_without_its_cookies_is_led_back_to(alice: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    answer = browser.post("/jobs/new/", {"name": "x"})
    assert answer.status_code == 403
    assert 'href="/jobs/new/"' in answer.text


def test_a_script_of_megabytes_is_a_mistake_of_its_field_and_more_is_told_in_the_portals_look(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    answer = client.post("/jobs/new/", {"command_kind": "script", "script": "x" * (3 << 20)})
    assert answer.status_code == 422
    assert "64 KiB" in answer.context["form"].errors["script"][0]
    too_much = client.post("/jobs/new/", {"script": "x" * (9 << 20)})
    assert too_much.status_code == 400
    assert "8 MiB" in too_much.text
    assert 'href="/jobs/new/"' in too_much.text
