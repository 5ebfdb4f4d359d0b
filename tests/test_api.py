"""The API's ways in, what it tells nobody, and its description of itself."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from portal.models import ApiToken, User
from tests import factories
from tests.rigs.api import JOB, Api, errors

# --- who ---


def test_a_stranger_is_told_to_log_in(client: Client, db: None) -> None:
    answer = client.get("/api/jobs")
    assert answer.status_code == 401
    assert errors(answer) == [("", "NOT_LOGGED_IN")]


def test_a_token_speaks_for_its_user(alice: User) -> None:
    me = Api(alice).get("/me").json()
    assert (me["username"], me["teams"], me["staff"]) == ("alice", ["vision"], False)


def test_a_token_is_kept_only_as_its_hash(alice: User) -> None:
    api = Api(alice)
    assert api.secret not in json.dumps(list(ApiToken.objects.values()), default=str)


def test_a_token_that_may_only_read_submits_nothing(alice: User) -> None:
    api = Api(alice, scope="read")
    assert api.get("/jobs").status_code == 200
    assert api.post("/jobs/preview", JOB).status_code == 200
    answer = api.submit()
    assert (answer.status_code, errors(answer)) == (403, [("", "FORBIDDEN")])
    assert not Job.objects.exists()


def test_an_expired_token_is_refused(alice: User) -> None:
    api = Api(alice)
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert api.get("/me").status_code == 401


def test_the_token_of_a_deactivated_user_is_refused(alice: User) -> None:
    api = Api(alice)
    User.objects.update(is_active=False)
    assert api.get("/me").status_code == 401


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer dky_nothing", "Basic YTpi", "dky_x", "Bearer \x00"])
def test_what_is_no_token_is_refused(header: str, alice: User) -> None:
    assert Client(headers={"authorization": header}).get("/api/me").status_code == 401


def test_a_bad_token_does_not_fall_back_to_the_session(alice: User) -> None:
    client = Client(headers={"authorization": "Bearer dky_nothing"})
    client.force_login(alice)
    assert client.get("/api/me").status_code == 401


def test_use_is_remembered_at_most_once_a_minute(alice: User) -> None:
    api = Api(alice)
    api.get("/me")
    first = ApiToken.objects.get().last_used_at
    api.get("/me")
    assert first is not None
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=2))
    api.get("/me")
    assert ApiToken.objects.get().last_used_at >= first


def test_a_browser_needs_the_csrf_token_to_write(alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.get("/api/me").status_code == 200
    answer = client.post("/api/jobs", json.dumps(JOB), content_type="application/json")
    assert (answer.status_code, errors(answer)) == (403, [("", "CSRF")])
    client.cookies["csrftoken"] = "a" * 32
    answer = client.post(
        "/api/jobs", json.dumps(JOB), content_type="application/json", headers={"x-csrftoken": "a" * 32}
    )
    assert answer.status_code == 201


# --- log-in ---


def log_in(client: Client, **fields: Any) -> Any:
    body = {"username": "alice", "password": factories.PASSWORD} | fields
    return client.post("/api/login", json.dumps(body), content_type="application/json")


def test_a_password_is_traded_for_a_token(client: Client, alice: User) -> None:
    answer = log_in(client, name="laptop", scope="read", days=7)
    assert answer.status_code == 201
    token = ApiToken.objects.get()
    assert (token.name, token.scope, token.user) == ("laptop", "read", alice)
    assert timedelta(days=6) < token.expires_at - timezone.now() < timedelta(days=8)
    me = client.get("/api/me", headers={"authorization": f"Bearer {answer.json()['token']}"})
    assert me.json()["username"] == "alice"


def test_a_wrong_password_and_an_unknown_user_look_the_same(client: Client, alice: User) -> None:
    wrong, unknown = log_in(client, password="nonsense"), log_in(client, username="nobody")
    assert (wrong.status_code, wrong.json()) == (unknown.status_code, unknown.json())
    assert wrong.status_code == 401


def test_a_deactivated_user_gets_no_token(client: Client, alice: User) -> None:
    User.objects.update(is_active=False)
    assert log_in(client).status_code == 401
    assert not ApiToken.objects.exists()


def test_guessing_passwords_is_stopped(client: Client, alice: User) -> None:
    codes = [log_in(client, password=f"guess {n}").status_code for n in range(8)]
    assert (codes[0], codes[-1]) == (401, 429)
    assert log_in(client).status_code == 429


def test_logging_out_revokes_the_token(alice: User) -> None:
    api = Api(alice)
    assert api.client.delete("/api/login").status_code == 204
    assert api.get("/me").status_code == 401


# --- secrets and the OpenAPI page ---


def test_the_value_of_a_secret_is_never_shown_again(alice: User, bob: User, root_admin: User) -> None:
    """neuro-inc/apolo-cli#2376, ansible/awx#10352, azkaban/azkaban#2396: only the name, to nobody the value."""
    made = Api(alice).submit(secrets={"API_KEY": "hush-hush-value"})
    assert b"hush-hush-value" not in made.content
    job = made.json()["id"]
    assert "hush-hush-value" not in json.dumps(list(Job.objects.values()), default=str)
    paths = [f"/jobs/{job}", f"/jobs/{job}/why", f"/jobs/{job}/events", "/jobs", "/queue"]
    for user in (alice, bob, root_admin):
        for path in paths:
            assert b"hush-hush-value" not in Api(user).get(path).content


def test_a_refused_secret_is_not_repeated_in_the_refusal(alice: User) -> None:
    answer = Api(alice).submit(secrets={"1 bad name": "hush-hush-value"})
    assert answer.status_code == 422
    assert b"hush-hush-value" not in answer.content


def test_the_openapi_page_needs_a_log_in_and_nothing_from_elsewhere(alice: User, client: Client) -> None:
    assert client.get("/api/docs").status_code == 302
    client.force_login(alice)
    page = client.get("/api/docs").content.decode()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    scripts = re.findall(r"<script([^>]*)>", page)
    assert all("src=" in script or "application/json" in script for script in scripts)
    answer = client.get("/api/openapi.json")
    schema = answer.json()
    assert schema["openapi"].startswith("3.1")
    assert "/api/jobs" in schema["paths"]
    client.cookies["django_language"] = "zh-hans"
    assert client.get("/api/openapi.json").content == answer.content
