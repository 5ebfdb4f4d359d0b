"""Every address and every socket, as everybody: what is not in the tables below fails, so that a new one is thought of.

All is tried on one prepared database, each request in a savepoint of its own, and all that is wrong is told at once.

xuxueli/xxl-job#3983, apache/dolphinscheduler#12916, jonwiggins/optio#241, conaonda/EXTube#171: other people's jobs
by number.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import async_to_sync
from channels.testing import WebsocketCommunicator
from django.contrib import admin
from django.db import transaction
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

from gpus.models import Node
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
# order — its owner and staff; pin — staff: who sees the job, but may not, is told; own — the owner of the thing alone;
# staff — staff alone; secret — nobody without a secret that none of these have; gone — nobody: it answers 404.
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
    "jobs/<int:pk>/reorder/": {"POST": "order"},
    "jobs/<int:pk>/resubmit/": {"POST": "see"},
    "queue/": {"GET": "person"},
    "fairshare/": {"GET": "person"},
    "health/": {"GET": "staff"},
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
    "readyz": {"GET": "public"},
    "metrics": {"GET": "staff"},
    "hosts/": {"GET": "person"},
    "hosts/join/": {"POST": "secret"},
    "hosts/token/": {"POST": "staff"},
    "hosts/<slug:name>/": {"GET": "person"},
    "hosts/<slug:name>/cordon/": {"POST": "staff"},
    "hosts/<slug:name>/uncordon/": {"POST": "staff"},
    "hosts/<slug:name>/dead/": {"GET": "staff", "POST": "staff"},
    "hosts/<slug:name>/leave/": {"GET": "staff", "POST": "staff"},
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
    "api/jobs/<int:job_id>/reorder": {"POST": "order"},
}
# Of other people's code: nothing of a job is there, and whole trees have one rule.
TREES = {"admin/": "staff", "accounts/": "account", "media/": "gone"}
# What admins may change by their pages, each model by its own permission. Jobs are there to read.
ADMIN = {
    "portal.user", "portal.apitoken", "gpus.node", "gpus.gpu", "jobs.team", "jobs.quota", "jobs.mount",
    "jobs.registrylogin", "jobs.cluster", "jobs.job", "auditlog.logentry", "account.emailaddress",
    "django_rq.dashboard",
}  # fmt: skip
MODELS = tuple(f"admin/{label.replace('.', '/')}/" for label in ADMIN - {"django_rq.dashboard"})
# What a browser may send without the page's token: it needs no session, or has a secret of its own.
WITHOUT_CSRF = {"api/login", "hosts/join/"}

SOCKETS = {"ws/jobs/<int:pk>/": "see", "ws/gpus/": "person", "ws/changes/": "person", "": "gone"}

# Who passes which rule; "look" is to be told why not, since one sees the job.
PEOPLE = {"stranger", "mate", "lead", "owner", "staff"}
PASSES = {
    "public": {"anonymous", "gone", *PEOPLE},
    "person": PEOPLE,
    "see": PEOPLE - {"stranger"},
    "act": {"lead", "owner", "staff"},
    "order": {"owner", "staff"},
    "pin": {"staff"},
    "own": {"owner"},
    "staff": {"staff"},
    "secret": set(),
    "gone": set(),
}
WHO = ("anonymous", "gone", "stranger", "mate", "lead", "owner", "staff")
NOBODY = ("anonymous", "gone", "stranger")  # who learns nothing of the job and changes nothing of it
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
    people = {"anonymous": None, "gone": factories.make_user("gone", teams=(job.team,)), "stranger": charlie,
              "mate": bob, "lead": factories.make_user("lead", teams=(job.team,)), "owner": alice,
              "staff": factories.make_user("staff", is_staff=True, teams=(factories.make_team("ops"),))}  # fmt: skip
    Membership.objects.filter(user=people["lead"]).update(role=Membership.Role.LEAD)
    cookies = {who: client_of(user).cookies for who, user in people.items()}
    User.objects.filter(pk=people["gone"].pk).update(is_active=False)
    return {"job": job, "run": run, "token": token, "people": people, "cookies": cookies,
            "what_if": WhatIf.objects.create(days=1)}  # fmt: skip


def sample(pattern: str, world: dict[str, Any]) -> str:
    """An address of the pattern: alice's job or token, and for other people's code something plausible."""
    thing = world["token" if "tokens" in pattern else "what_if" if pattern.startswith("whatif") else "job"]
    path = re.sub(r"<(int:pk|int:job_id)>", str(thing.pk), pattern)
    path = path.replace("<path:relpath>", "asked-file").replace("<slug:name>", world["run"].node.name)
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


def browser(world: dict[str, Any], who: str) -> Client:
    """A browser of that person, signed in already."""
    client = Client()
    client.cookies = SimpleCookie(world["cookies"][who].output(header="", sep=";"))
    return client


def send(client: Client, method: str, path: str, **headers: str) -> tuple[str, str]:
    """What came of a request in a word, and all of its body."""
    asks = path in ("/api/jobs", "/api/jobs/preview")
    body = json.dumps({"image": "a", "script": "true"} if asks else {}) if path.startswith("/api/") else ""
    answer: Any = client.generic(method, path, body, content_type="application/json", headers=headers)
    return outcome(answer), content(answer)


@contextmanager
def undone() -> Iterator[None]:
    """Whatever the block does to the database is taken back."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


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
        if target in ("/accounts/login/", "/admin/login/"):
            return "login"
        return "missing" if target.startswith("/admin/") else "ok"  # the admin pages lead on before they look
    if answer.status_code < 400 or answer.status_code in (400, 422):
        return "ok"
    words = {401: "login", 403: "forbidden", 404: "missing", 405: "method", 409: "forbidden"}
    return words.get(answer.status_code, f"status {answer.status_code}")


def expected(rule: str, who: str, path: str) -> str:
    if who in PASSES[rule]:
        return "ok"
    if rule in ("gone", "secret"):
        return {"gone": "missing", "secret": "forbidden"}[rule]
    if who in ("anonymous", "gone"):
        return "login"
    if rule in ("act", "order", "pin") and who in PASSES["see"]:  # who sees the job, is told
        return "forbidden" if path.startswith("/api/") else "ok"
    return "missing"


def steered(world: dict[str, Any]) -> tuple[Any, ...]:
    """All of the job and its run that an act can change."""
    acts = ("state", "priority", "pinned", "held_by_user", "held_by_admin", "limit_seconds")
    run = Run.objects.filter(pk=world["run"].pk).values_list("wish", "state", "deadline").get()
    return *Job.objects.filter(pk=world["job"].pk).values_list(*acts).get(), *run


# --- the walk ---


def test_every_address_is_in_the_table() -> None:
    unknown = {p for p in patterns() if p not in WEB and not p.startswith(tuple(TREES))}
    assert unknown == set(), "decide who may use these addresses, and write it into the table"
    assert set(WEB) <= set(patterns()), "these addresses are no more"
    assert {model._meta.label_lower for model in admin.site._registry} <= ADMIN, "decide, and write it into the table"


@pytest.mark.parametrize("who", WHO)
def test_only_those_who_may_get_an_answer(who: str, world: dict[str, Any]) -> None:
    """F4 of all lists: whoever asks for any address in any way gets what the table says, and changes no more."""
    wrong = [told for pattern in WEB for told in tried(pattern, who, world)]
    assert wrong == []


def tried(pattern: str, who: str, world: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how an address answers this person, whatever the method."""
    path, before = sample(pattern, world), steered(world)
    for method in METHODS:
        rule = WEB[pattern].get(method)
        if rule is None and who not in ("anonymous", "staff"):
            continue
        with undone():
            found, body = send(browser(world, who), method, path)
            if rule is None and found not in ("method", "login", "missing", "forbidden"):
                yield f"{method} {path} as {who}: {found}, and there is no such"
            if rule is not None and found != expected(rule, who, path):
                yield f"{method} {path} as {who}: {found}, not {expected(rule, who, path)}: {body[:200]}"
            told = [word for word in (SECRETS if who in NOBODY else SECRETS[-1:]) if word in body]
            if told:
                yield f"{method} {path} tells {who} {told}"
            if rule is not None and who not in PASSES[rule] and steered(world) != before:
                yield f"{method} {path} as {who} changes the job"
            if who != "owner" and not ApiToken.objects.filter(pk=world["token"].pk).exists():
                yield f"{method} {path} as {who} revokes a token"


@pytest.mark.parametrize("who", ["stranger", "owner"])
def test_a_token_may_what_its_person_may_and_one_to_read_writes_nothing(who: str, world: dict[str, Any]) -> None:
    wrong = []
    for scope in ("read", "write"):
        secret = ApiToken.issue(world["people"][who], name="t", scope=scope, expires_at=None)[1]
        for pattern, method, rule in [(p, m, r) for p in WEB if p.startswith("api/") for m, r in WEB[p].items()]:
            path, writes = sample(pattern, world), method != "GET" and not pattern.endswith(("preview", "login"))
            wanted = "forbidden" if writes and scope == "read" else expected(rule, who, path)
            with undone():
                found, body = send(Client(), method, path, Authorization=f"Bearer {secret}")
                if found != wanted:
                    wrong.append(f"{method} {path} with {who}'s token to {scope}: {found}, not {wanted} {body[:200]}")
    assert wrong == []


def test_another_site_s_form_does_nothing(world: dict[str, Any]) -> None:
    """Whatever writes by a session wants the page's own token."""
    client, wrong = Client(enforce_csrf_checks=True), []
    client.cookies = browser(world, "owner").cookies
    for pattern in (p for p, methods in WEB.items() if "POST" in methods and p not in WITHOUT_CSRF):
        with undone():
            found, _body = send(client, "POST", sample(pattern, world))
            if found not in ("forbidden", "missing"):
                wrong.append(f"{pattern}: {found}")
    assert wrong == []


def test_another_s_run_is_not_reached_through_a_job_of_one_s_own(world: dict[str, Any]) -> None:
    """The number of alice's run in the query of charlie's own job, and her job in the lists."""
    own = factories.make_job(world["people"]["stranger"])
    factories.make_run(own, Node.objects.get(), gpus=())
    ways = [sample(p, {**world, "job": own}) for p, methods in WEB.items() if methods == {"GET": "see"}]
    asked = [f"{way}?run={world['run'].pk}&q=private" for way in ways]
    asked += [f"/timeline/data.json?job={world['job'].pk}", f"/jobs/new/?clone={world['job'].pk}",
              "/jobs/?q=private-image", "/history/?q=private-image&format=csv",
              "/api/jobs?search=private-image"]  # fmt: skip
    told = {}
    for way in asked:
        _found, body = send(browser(world, "stranger"), "GET", way)
        told[way] = [word for word in SECRETS if word in body and word not in way]
    assert {way: words for way, words in told.items() if words} == {}


def test_a_clone_shows_no_secret_even_to_its_owner(world: dict[str, Any]) -> None:
    """ansible/awx#10352: the form of a clone has the secret's name alone."""
    found, body = send(browser(world, "owner"), "GET", f"/jobs/new/?clone={world['job'].pk}")
    assert found == "ok"
    assert "private-script" in body
    assert "KEY" in body
    assert "hush-hush" not in body


@pytest.mark.parametrize("who", ["anonymous", "lead", "staff"])
def test_the_admin_and_the_rq_pages_are_for_staff_with_the_permission(who: str, world: dict[str, Any]) -> None:
    """Staff without any permission get the empty index, and the queues' pages, which have no models."""
    wrong = []
    for pattern in sorted({p for p in patterns() if p.startswith("admin/")}):
        if pattern in ("admin/login/", "admin/logout/") or (who == "staff" and not pattern.startswith(MODELS)):
            continue
        path = sample(pattern, world)
        for method in ("GET", "POST"):
            with undone():
                found, body = send(browser(world, who), method, path)
                if found not in ("login", "forbidden", "missing", "method"):
                    wrong.append(f"{method} {path} as {who}: {found}")
                if any(word in body for word in SECRETS):
                    wrong.append(f"{method} {path} tells {who} what is private")
    assert wrong == []


def test_account_pages_tell_a_stranger_nothing_of_others_and_offer_no_sign_up(world: dict[str, Any]) -> None:
    for pattern in sorted(p for p in set(patterns()) if p.startswith("accounts/")):
        for who in ("anonymous", "stranger"):
            with undone():
                found, body = send(browser(world, who), "GET", sample(pattern, world))
            assert not found.startswith("status 5"), pattern
            assert [word for word in (*SECRETS, "alice") if word in body] == [], pattern
    before = User.objects.count()
    Client().post("/accounts/signup/", {"username": "eve", "password1": factories.PASSWORD})
    assert User.objects.count() == before


def test_a_job_that_does_not_exist_looks_like_one_that_is_not_yours(world: dict[str, Any]) -> None:
    client = browser(world, "stranger")
    for pattern in (p for p, methods in WEB.items() if "see" in methods.values() and "GET" in methods):
        there = sample(pattern, world)
        absent = there.replace(f"/{world['job'].pk}", "/999999", 1)
        huge = there.replace(f"/{world['job'].pk}", "/" + "9" * 30, 1)
        answers = [(*send(client, "GET", path), path) for path in (there, absent, huge)]
        assert {found for found, _body, _path in answers} == {"missing"}
        said = {re.sub(r"\b\w{32,}\b|\d+\.\d+", "", body.replace(path, "")) for _f, body, path in answers}
        assert len(said) == 1, pattern


# --- sockets ---


def test_every_socket_is_in_the_table() -> None:
    assert {str(item.pattern) for item in websocket_urlpatterns} == set(SOCKETS)


HOST = b"localhost"
ORIGIN = (b"origin", b"http://localhost")


async def opens(path: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the socket is accepted; a refusal comes before accept, as an HTTP 403."""
    socket = WebsocketCommunicator(application, path, headers=[(b"host", HOST), *headers])
    accepted, _code = await socket.connect(timeout=60)
    await socket.disconnect(timeout=60)
    return bool(accepted)


def cookie(world: dict[str, Any], who: str) -> tuple[bytes, bytes]:
    return b"cookie", world["cookies"][who].output(header="", sep=";").strip().encode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["session", "token"])
def test_sockets_open_only_for_those_who_may(by: str, transactional_db: None, world: dict[str, Any]) -> None:
    wrong = []
    for who, user in world["people"].items():
        headers = [cookie(world, who), ORIGIN]
        if by == "token":
            secret = ApiToken.issue(user, name="t", scope="read", expires_at=None)[1] if user else "dky_wrong"
            headers = [(b"authorization", f"Bearer {secret}".encode())]
        for pattern, rule in SOCKETS.items():
            path = sample(pattern, world) if pattern else "/ws/nothing/"
            if async_to_sync(opens)(path, headers) != (who in PASSES[rule]):
                wrong.append(f"{path} as {who}")
    assert wrong == []


@pytest.mark.django_db(transaction=True)
def test_neither_another_site_s_page_nor_a_bad_token_opens_a_socket(
    transactional_db: None, world: dict[str, Any]
) -> None:
    own, path = cookie(world, "owner"), sample("ws/jobs/<int:pk>/", world)
    assert not async_to_sync(opens)(path, [own, (b"origin", b"http://evil.example")])
    assert not async_to_sync(opens)(path, [own]), "a browser always sends an Origin; only a token goes without"
    bad = (b"authorization", b"Bearer dky_wrong")
    assert not async_to_sync(opens)(path, [own, ORIGIN, bad]), "it falls back to no session"
