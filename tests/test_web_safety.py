"""What browsers are told, what addresses and bodies are refused, and how fast anybody may ask."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client

from portal import bodies, ratelimit
from portal.handler import Handler
from portal.models import ApiToken, User
from portal.ratelimit import Buckets, Proven
from tests import factories

pytestmark = pytest.mark.django_db


def test_no_page_runs_a_script_of_its_text_or_stands_in_another_s_frame(client: Client, alice: User) -> None:
    """cvquesty/openvox-gui#26, rundeck/rundeck#2068."""
    client.force_login(alice)
    for path in ("/", "/jobs/new/", "/accounts/password/change/", "/nothing/"):
        answer = client.get(path)
        policy = dict(part.strip().partition(" ")[::2] for part in answer["Content-Security-Policy"].split(";"))
        assert (policy["script-src"], policy["default-src"], policy["object-src"]) == ("'self'", "'self'", "'none'")
        assert (policy["frame-ancestors"], policy["form-action"]) == ("'none'", "'self'")
        assert answer["X-Frame-Options"] == "DENY"
        assert (answer["X-Content-Type-Options"], answer["Referrer-Policy"]) == ("nosniff", "same-origin")
        inline = re.findall(r"<script(?![^>]*(?:\bsrc=|application/json|type=\"module\" src))[^>]*>", answer.text)
        assert inline == [], path
        assert re.findall(r"<[^>]+\son\w+=", answer.text) == [], path


def test_cookies_are_for_this_site_and_behind_tls_for_tls(client: Client, alice: User, settings: Any) -> None:
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    call_command("createcachetable", verbosity=0)
    client.get("/accounts/login/")
    client.post("/accounts/login/", {"login": "alice", "password": factories.PASSWORD})
    session, csrf = (client.cookies[name] for name in ("sessionid", "csrftoken"))
    assert (session["httponly"], session["secure"], session["samesite"]) == (True, True, "Lax")
    assert (csrf["secure"], csrf["samesite"]) == (True, "Lax")


def test_another_host_s_name_is_refused(client: Client) -> None:
    assert client.get("/accounts/login/", headers={"host": "evil.example"}).status_code == 400
    found = client.get("/accounts/login/", headers={"x-forwarded-host": "evil.example"})
    assert "evil.example" not in found.text


@pytest.mark.parametrize("to", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"])
def test_nothing_leads_to_another_site(client: Client, alice: User, to: str) -> None:
    call_command("createcachetable", verbosity=0)
    sent = {"login": "alice", "password": factories.PASSWORD, "next": to}
    ways = [client.post("/accounts/login/", sent), client.post("/i18n/setlang/", {"language": "en", "next": to}),
            client.get("/accounts/login/", {"next": to}), client.post("/accounts/logout/", {"next": to})]  # fmt: skip
    assert [way.get("Location", "/")[:1] for way in ways] == ["/"] * 4
    assert [way for way in ways if way.get("Location", "/")[:2] in ("//", "/\\")] == []


@pytest.mark.parametrize("bad", ["short1!", "password123", "alice-alice", "2748193650"])
def test_passwords_that_can_be_guessed_are_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        validate_password(bad, User(username="alice-alice"))


def test_a_new_password_ends_all_other_sessions(client: Client, alice: User) -> None:
    call_command("createcachetable", verbosity=0)
    other = Client()
    for browser in (client, other):
        browser.force_login(alice)
    new = "an even better pass phrase"
    client.post("/accounts/password/change/", {"oldpassword": factories.PASSWORD, "password1": new, "password2": new})
    assert (client.get("/").status_code, other.get("/").status_code) == (200, 302)


# --- how much and how often ---


def test_files_that_come_with_a_form_are_passed_over(client: Client, alice: User) -> None:
    client.force_login(alice)
    sent = {"language": "en", "file": SimpleUploadedFile("x", b"y" * 3_000_000)}
    answer = client.post("/i18n/setlang/", sent)
    assert answer.status_code == 302
    assert not answer.wsgi_request.FILES


@pytest.mark.parametrize("headers", [[(b"content-length", b"99999999999")], []])
@pytest.mark.parametrize("path", ["/jobs/new/", "/api/jobs"])
def test_a_body_that_no_form_could_have_sent_is_not_read(
    settings: Any, headers: list[Any], path: str
) -> None:  # announced or not
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    sent, pieces = [], iter(range(10_000))

    async def receive() -> dict[str, Any]:
        next(pieces)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    asyncio.run(Handler()(scope, receive, send))
    assert [message.get("status") for message in sent] == [413, None]
    assert next(pieces) <= bodies.FACTOR + 1


def test_a_bucket_holds_a_minute_s_worth_and_fills_again() -> None:
    now = [0.0]
    mine = Buckets(lambda: now[0])
    assert [mine.take("a", 3) > 0 for _ in range(4)] == [False, False, False, True]
    assert mine.take("b", 3) == 0
    now[0] = 20.0
    assert [mine.take("a", 3) > 0 for _ in range(2)] == [False, True]
    assert mine.take("a", 0) == 0


@pytest.fixture
def own_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "buckets", Buckets())
    monkeypatch.setattr(ratelimit, "proven", Proven())


@pytest.mark.usefixtures("own_buckets")
def test_who_changes_things_too_often_waits_and_nobody_else(
    client: Client, alice: User, bob: User, settings: Any
) -> None:
    settings.WRITES_PER_MINUTE, settings.API_READS_PER_MINUTE = 2, 2
    other = Client()
    client.force_login(alice)
    other.force_login(bob)
    for one in (client, other):  # from then on each is known by its session
        assert one.post("/i18n/setlang/", {"language": "en"}).status_code == 302
    said = [client.post("/api/jobs", {}, content_type="application/json") for _ in range(3)]
    assert [answer.status_code for answer in said] == [422, 422, 429]
    assert said[-1].json()["errors"][0]["code"] == "TOO_MANY_REQUESTS"
    assert int(said[-1]["Retry-After"]) > 0
    assert "Wait a few minutes" in client.post("/i18n/setlang/", {"language": "en"}).text
    assert other.post("/i18n/setlang/", {"language": "en"}).status_code == 302
    assert [client.get("/api/me").status_code for _ in range(3)] == [200, 200, 429]
    assert [client.get("/healthz").status_code for _ in range(3)] == [200] * 3


@pytest.mark.usefixtures("own_buckets")
def test_sessions_and_tokens_that_are_made_up_all_count_as_their_address(alice: User, settings: Any) -> None:
    settings.API_READS_PER_MINUTE = settings.WRITES_PER_MINUTE = 3
    _token, secret = ApiToken.issue(alice, name="ci", scope="write", expires_at=None)
    for _ in range(4):  # the first one proves it
        ask = Client(headers={"Authorization": f"Bearer {secret}"})
        assert ask.get("/api/me").status_code == 200
    made_up = [Client(headers={"Authorization": f"Bearer dk_{number}"}).get("/api/me") for number in range(4)]
    assert [answer.status_code for answer in made_up] == [401, 401, 429, 429]
    cookies = [Client(headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={number}"}) for number in range(4)]
    tries = [one.post("/hosts/join/", {}, content_type="application/json").status_code for one in cookies]
    assert (429 in tries[:3], tries[3]) == (False, 429)


# Who speaks to others by itself, and to whom. None of it is an address that a user could name.
CALLERS = {
    "jobs/containers.py": "the engine at DOCKER_HOST",
    "jobs/containers_logs.py": "the same",
    "jobs/joinclient.py": "a host that joins, whoever runs it names the portal",
    "jobs/mail.py": "the server of EMAIL_URL",
    "portal/demo/engine.py": "the demo's engine",
    "portal/demo/product.py": "the demo's own web",
}
# Who reads archives: of what an admin restores, and of the demo's image.
UNPACKERS = {"portal/archive.py", "portal/busybox.py"}
_CALLS = re.compile(
    r"^\s*(?:import|from) (?:aiohttp|ftplib|http\.client|httpx|requests|smtplib|urllib\.request|urllib3|websockets)\b"
    r"|\bcreate_connection\(", re.MULTILINE,
)  # fmt: skip
_UNPACKS = re.compile(r"^\s*(?:import|from) (?:tarfile|zipfile)\b|\bunpack_archive\(", re.MULTILINE)


def test_the_portal_calls_no_address_and_opens_no_archive_of_a_user_s() -> None:
    """SSRF in what tells of a job's end, zip and path tricks: a new caller or unpacker fails until it is listed."""
    root = Path(bodies.__file__).parents[1]
    texts = {path.relative_to(root).as_posix(): path.read_text() for app in ("portal", "jobs", "gpus")
             for path in (root / app).rglob("*.py") if "cli" not in path.parts}  # fmt: skip
    assert {name for name, text in texts.items() if _CALLS.search(text)} == CALLERS.keys()
    assert {name for name, text in texts.items() if _UNPACKS.search(text)} == UNPACKERS
