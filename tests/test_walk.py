"""Every address and every socket, as everybody: what is not in the tables below fails, so that a new one is thought of.

xuxueli/xxl-job#3983, apache/dolphinscheduler#12916, jonwiggins/optio#241, conaonda/EXTube#171: other people's jobs
by number.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import async_to_sync
from channels.testing import WebsocketCommunicator
from django.conf import settings as django_settings
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

from jobs import logstore
from jobs.models import Job, Membership, Run, WhatIf
from portal.asgi import application
from portal.models import ApiToken, User
from portal.routing import websocket_urlpatterns
from tests import factories

# What is private of alice's job. No answer to a stranger may hold any of it.
SECRETS = (
    "private-name",
    "private-image",
    "private-script",
    "private-value",
    "private-log",
    "private-file",
    "hush-hush",
)

# --- the tables ---

# Rules: public — anybody; person — whoever is logged in; see — whoever may see the job; act — whoever may control it;
# pin — staff, and whoever else sees the job is told; own — the owner of the thing alone; staff — staff alone;
# gone — nobody: the address is there but answers 404.
WEB: dict[str, dict[str, str]] = {
    "": {"GET": "person"},
    "jobs/": {"GET": "person"},
    "jobs/new/": {"GET": "person", "POST": "person"},
    "jobs/preview/": {"POST": "person"},
    "jobs/<int:pk>/": {"GET": "see"},
    "jobs/<int:pk>/status.json": {"GET": "see"},
    "jobs/<int:pk>/charts.json": {"GET": "see"},
    "jobs/<int:pk>/log": {"GET": "see"},
    "jobs/<int:pk>/log/search": {"GET": "see"},
    "jobs/<int:pk>/log/find": {"GET": "see"},
    "jobs/<int:pk>/log/notes": {"GET": "see"},
    "jobs/<int:pk>/log/download": {"GET": "see"},
    "jobs/<int:pk>/metrics.json": {"GET": "see"},
    "jobs/<int:pk>/files/<path:relpath>": {"GET": "see"},
    "jobs/<int:pk>/cancel/": {"POST": "act"},
    "jobs/<int:pk>/hold/": {"POST": "act"},
    "jobs/<int:pk>/release/": {"POST": "act"},
    "jobs/<int:pk>/move/": {"POST": "act"},
    "jobs/<int:pk>/extend/": {"POST": "act"},
    "jobs/<int:pk>/amend/": {"POST": "act"},
    "jobs/<int:pk>/pin/": {"POST": "pin"},
    "jobs/<int:pk>/unpin/": {"POST": "pin"},
    "jobs/<int:pk>/priority/": {"POST": "act"},
    "jobs/<int:pk>/reorder/": {"POST": "act"},
    "jobs/<int:pk>/resubmit/": {"POST": "see"},
    "queue/": {"GET": "person"},
    "fairshare/": {"GET": "person"},
    "whatif/": {"GET": "staff", "POST": "staff"},
    "whatif/<int:pk>/": {"GET": "staff"},
    "estimates/": {"GET": "staff"},
    "history/": {"GET": "person"},
    "timeline/": {"GET": "person"},
    "timeline/data.json": {"GET": "person"},
    "gpus/": {"GET": "person"},
    "gpus/now.json": {"GET": "person"},
    "gpus/recent.json": {"GET": "person"},
    "account/tokens/": {"GET": "person", "POST": "person"},
    "account/tokens/<int:pk>/revoke/": {"POST": "own"},
    "i18n/setlang/": {"POST": "public"},
    "favicon.ico": {"GET": "public"},
    "healthz": {"GET": "public"},
    "api/": {"GET": "gone"},
    "api/openapi.json": {"GET": "person"},
    "api/docs": {"GET": "person"},
    "api/me": {"GET": "person"},
    "api/login": {"POST": "public", "DELETE": "person"},
    "api/gpus": {"GET": "person"},
    "api/queue": {"GET": "person"},
    "api/fairshare": {"GET": "person"},
    "api/quota": {"GET": "person"},
    "api/jobs": {"GET": "person", "POST": "person"},
    "api/jobs/preview": {"POST": "person"},
    "api/jobs/<int:job_id>": {"GET": "see"},
    "api/jobs/<int:job_id>/why": {"GET": "see"},
    "api/jobs/<int:job_id>/events": {"GET": "see"},
    "api/jobs/<int:job_id>/receipt": {"GET": "see"},
    "api/jobs/<int:job_id>/log": {"GET": "see"},
    "api/jobs/<int:job_id>/files": {"GET": "see"},
    "api/jobs/<int:job_id>/files/<path:relpath>": {"GET": "see"},
    "api/jobs/<int:job_id>/cancel": {"POST": "act"},
    "api/jobs/<int:job_id>/hold": {"POST": "act"},
    "api/jobs/<int:job_id>/release": {"POST": "act"},
    "api/jobs/<int:job_id>/move": {"POST": "act"},
    "api/jobs/<int:job_id>/extend": {"POST": "act"},
    "api/jobs/<int:job_id>/amend": {"POST": "act"},
    "api/jobs/<int:job_id>/pin": {"POST": "pin"},
    "api/jobs/<int:job_id>/unpin": {"POST": "pin"},
    "api/jobs/<int:job_id>/priority": {"POST": "act"},
    "api/jobs/<int:job_id>/reorder": {"POST": "act"},
}
# Of other people's code: nothing of a job is there, and whole trees have one rule.
TREES = {"admin/": "staff", "accounts/": "account", "media/": "gone"}

SOCKETS = {"ws/jobs/<int:pk>/": "see", "ws/gpus/": "person", "ws/changes/": "person", "": "gone"}

# Who passes which rule; "look" is to be told why not, since one sees the job.
PASSES = {
    "public": {"anonymous", "stranger", "mate", "owner", "staff"},
    "person": {"stranger", "mate", "owner", "staff"},
    "see": {"mate", "owner", "staff"},
    "act": {"owner", "staff"},
    "pin": {"staff"},
    "own": {"owner"},
    "staff": {"staff"},
    "gone": set(),
}
WHO = ("anonymous", "stranger", "mate", "owner", "staff")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


# --- the world ---


@pytest.fixture
def world(alice: User, bob: User, charlie: User, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """A running job of alice with everything a job can have; nothing of it is charlie's to know."""
    settings.WORKSPACE_ROOT = tmp_path
    job = factories.make_job(
        alice, name="private-name", image="private-image", script="private-script", gpus=1,
        environment={"A": "private-value"}, secrets_encrypted={"KEY": "hush-hush"},
    )  # fmt: skip
    run = factories.make_run(job, factories.make_node("alpha"))
    logstore.save(run.pk, 0, 0, b"private-log").save()
    folder = tmp_path / str(alice.pk) / "jobs" / str(job.pk)
    folder.mkdir(parents=True)
    (folder / "asked-file").write_text("private-file")
    token = ApiToken.issue(alice, name="private-name", scope="write", expires_at=None)[0]
    staff = factories.make_user("staff", is_staff=True, teams=(factories.make_team("ops"),))
    people = {"anonymous": None, "stranger": charlie, "mate": bob, "owner": alice, "staff": staff}
    return {"job": job, "token": token, "people": people, "what_if": WhatIf.objects.create(days=1)}


def sample(pattern: str, world: dict[str, Any]) -> str:
    """An address of the pattern: alice's job or token, and for other people's code something plausible."""
    thing = world["token" if "tokens" in pattern else "what_if" if pattern.startswith("whatif") else "job"]
    path = re.sub(r"<(int:pk|int:job_id)>", str(thing.pk), pattern)
    path = path.replace("<path:relpath>", "asked-file")
    path = re.sub(r"<int:\w+>", "0", path)
    path = re.sub(r"<(str|path|slug):\w+>|<id>", "1", path)
    path = re.sub(r"\(\?P<app_label>(\w+)[^)]*\)", r"\1", path)
    path = re.sub(r"\(\?P<\w+>[^)]*\)", "x", path)
    return "/" + path.replace("^", "").replace("$", "").replace("?", "").replace("\\", "")


def patterns() -> Iterator[str]:
    def walk(resolver: URLResolver, prefix: str) -> Iterator[str]:
        for item in resolver.url_patterns:
            here = prefix + str(item.pattern)
            if isinstance(item, URLPattern):
                yield here
            else:
                yield from walk(item, here)

    return walk(get_resolver(), "")


def client_of(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def send(client: Client, method: str, path: str) -> tuple[str, str]:
    """What came of a request in a word, and all of its body."""
    asks = path in ("/api/jobs", "/api/jobs/preview")
    body = json.dumps({"image": "a", "script": "true"} if asks else {}) if path.startswith("/api/") else ""
    answer: Any = client.generic(method, path, body, content_type="application/json")
    return outcome(answer), content(answer)


def content(answer: Any) -> str:
    if not answer.streaming:
        return str(answer.content.decode("utf-8", "replace"))

    async def whole() -> bytes:
        return b"".join([piece async for piece in answer.streaming_content])

    data = async_to_sync(whole)() if answer.is_async else b"".join(answer.streaming_content)
    return data.decode("utf-8", "replace")


def outcome(answer: Any) -> str:
    if answer.status_code in (301, 302):
        target = urlsplit(answer.headers["Location"]).path
        return "login" if target in ("/accounts/login/", "/admin/login/") else "ok"
    if answer.status_code < 400 or answer.status_code in (400, 422):
        return "ok"
    return {401: "login", 403: "forbidden", 404: "missing", 405: "method"}.get(
        answer.status_code, f"status {answer.status_code}"
    )


def expected(rule: str, who: str, path: str) -> set[str]:
    if who in PASSES[rule]:
        return {"ok"}
    if rule == "gone":
        return {"missing"}
    if who == "anonymous":
        return {"login"}
    if rule in ("act", "pin") and who in ("mate", "owner"):  # who sees the job, is told
        return {"forbidden"} if path.startswith("/api/") else {"ok"}
    return {"missing"}


# --- the walk ---


def test_every_address_is_in_the_table() -> None:
    unknown = {p for p in patterns() if p not in WEB and not p.startswith(tuple(TREES))}
    assert unknown == set(), "decide who may use these addresses, and write it into the table"
    assert set(WEB) <= set(patterns()), "these addresses are no more"


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("pattern", WEB)
def test_only_those_who_may_get_an_answer(pattern: str, who: str, world: dict[str, Any]) -> None:
    path, user = sample(pattern, world), world["people"][who]
    for method in METHODS:
        world["job"].refresh_from_db()
        state, run = world["job"].state, Run.objects.get()
        found, body = send(client_of(user), method, path)
        rule = WEB[pattern].get(method)
        if rule is None:
            assert found in ("method", "login", "missing", "forbidden"), f"{method} {path} as {who}: {found}"
        else:
            assert found in expected(rule, who, path), f"{method} {path} as {who}: {found} {body[:300]}"
        if who in ("anonymous", "stranger"):
            assert [word for word in SECRETS if word in body] == [], f"{method} {path} tells {who} what is private"
            assert (Job.objects.get(pk=world["job"].pk).state, Run.objects.get().wish) == (state, run.wish)
            assert ApiToken.objects.filter(pk=world["token"].pk).exists()
        assert "hush-hush" not in body


@pytest.mark.parametrize("who", ["mate", "stranger"])
def test_acting_on_a_job_that_is_not_one_s_own_changes_nothing(who: str, world: dict[str, Any]) -> None:
    acts = [p for p, methods in WEB.items() if "act" in methods.values()]
    for pattern in acts:
        send(client_of(world["people"][who]), "POST", sample(pattern, world))
    assert (Job.objects.get(pk=world["job"].pk).is_held, Run.objects.get().wish) == (False, "")


def test_a_lead_of_the_team_may_act(world: dict[str, Any]) -> None:
    Membership.objects.filter(user=world["people"]["mate"]).update(role=Membership.Role.LEAD)
    path = sample("api/jobs/<int:job_id>/cancel", world)
    assert send(client_of(world["people"]["mate"]), "POST", path)[0] == "ok"
    assert Run.objects.get().wish == "CANCEL"


def test_cloning_a_stranger_s_job_shows_nothing_of_it(world: dict[str, Any]) -> None:
    for who in ("stranger", "anonymous"):
        _found, body = send(client_of(world["people"][who]), "GET", f"/jobs/new/?clone={world['job'].pk}")
        assert [word for word in SECRETS if word in body] == []


def test_a_clone_shows_no_secret_even_to_its_owner(world: dict[str, Any]) -> None:
    """ansible/awx#10352: the form of a clone has the secret's name alone."""
    found, body = send(client_of(world["people"]["owner"]), "GET", f"/jobs/new/?clone={world['job'].pk}")
    assert found == "ok"
    assert "private-script" in body
    assert "KEY" in body
    assert "hush-hush" not in body


@pytest.mark.parametrize("who", ["anonymous", "stranger", "mate", "owner"])
def test_the_admin_and_the_rq_pages_are_for_staff(who: str, world: dict[str, Any]) -> None:
    for pattern in sorted(p for p in set(patterns()) if p.startswith("admin/")):
        if pattern in ("admin/login/", "admin/logout/"):
            continue
        path = sample(pattern, world)
        for method in ("GET", "POST"):
            found, body = send(client_of(world["people"][who]), method, path)
            assert found in ("login", "forbidden", "missing", "method"), f"{method} {path} as {who}: {found}"
            assert [word for word in SECRETS if word in body] == []


def test_account_pages_tell_a_stranger_nothing_of_others_and_offer_no_sign_up(world: dict[str, Any]) -> None:
    for pattern in sorted(p for p in set(patterns()) if p.startswith("accounts/")):
        for who in ("anonymous", "stranger"):
            found, body = send(client_of(world["people"][who]), "GET", sample(pattern, world))
            assert not found.startswith("status 5"), pattern
            assert [word for word in (*SECRETS, "alice") if word in body] == [], pattern
    before = User.objects.count()
    Client().post("/accounts/signup/", {"username": "eve", "password1": factories.PASSWORD})
    assert User.objects.count() == before


def test_a_job_that_does_not_exist_looks_like_one_that_is_not_yours(world: dict[str, Any]) -> None:
    client = client_of(world["people"]["stranger"])
    for pattern in (p for p, methods in WEB.items() if "see" in methods.values() and "GET" in methods):
        there = sample(pattern, world)
        absent = there.replace(f"/{world['job'].pk}", "/999999", 1)
        huge = there.replace(f"/{world['job'].pk}", "/" + "9" * 30, 1)
        answers = [(*send(client, "GET", path), path) for path in (there, absent, huge)]
        assert {found for found, _body, _path in answers} == {"missing"}
        said = {re.sub(r"\b\w{32,}\b|\d+\.\d+", "", body.replace(path, "")) for _f, body, path in answers}
        assert len(said) == 1, pattern


# --- sockets ---


def socket_patterns() -> list[str]:
    return [str(item.pattern) for item in websocket_urlpatterns]


def test_every_socket_is_in_the_table() -> None:
    assert set(socket_patterns()) == set(SOCKETS)


HOST = b"localhost"


async def opens(path: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the socket is accepted; a refusal comes before accept, as an HTTP 403."""
    socket = WebsocketCommunicator(application, path, headers=[(b"host", HOST), *headers])
    accepted, _code = await socket.connect(timeout=20)
    await socket.disconnect()
    return bool(accepted)


def cookie(user: User | None) -> list[tuple[bytes, bytes]]:
    if user is None:
        return []
    key = client_of(user).cookies[django_settings.SESSION_COOKIE_NAME].value
    return [(b"cookie", f"{django_settings.SESSION_COOKIE_NAME}={key}".encode())]


ORIGIN = [(b"origin", b"http://localhost")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["session", "token"])
@pytest.mark.parametrize("pattern", SOCKETS)
def test_sockets_open_only_for_those_who_may(
    pattern: str, by: str, transactional_db: None, world: dict[str, Any]
) -> None:
    path = sample(pattern, world) if pattern else "/ws/nothing/"
    for who, user in world["people"].items():
        if by == "session":
            headers = [*cookie(user), *ORIGIN]
        else:
            secret = ApiToken.issue(user, name="t", scope="read", expires_at=None)[1] if user else "dky_wrong"
            headers = [(b"authorization", f"Bearer {secret}".encode())]
        assert async_to_sync(opens)(path, headers) == (who in PASSES[SOCKETS[pattern]]), f"{path} as {who}"


@pytest.mark.django_db(transaction=True)
def test_another_site_s_page_opens_no_socket(transactional_db: None, world: dict[str, Any]) -> None:
    headers, path = cookie(world["people"]["owner"]), sample("ws/jobs/<int:pk>/", world)
    assert not async_to_sync(opens)(path, [*headers, (b"origin", b"http://evil.example")])
    assert not async_to_sync(opens)(path, headers), "a browser always sends an Origin; only a token goes without"


@pytest.mark.django_db(transaction=True)
def test_a_bad_token_does_not_fall_back_to_the_session(transactional_db: None, world: dict[str, Any]) -> None:
    headers = [*cookie(world["people"]["owner"]), *ORIGIN, (b"authorization", b"Bearer dky_wrong")]
    assert not async_to_sync(opens)(sample("ws/jobs/<int:pk>/", world), headers)
