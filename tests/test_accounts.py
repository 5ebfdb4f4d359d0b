"""People: log-in and its limits, tokens, languages, and what deactivating one does."""

import queue
import socketserver
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from jobs import secretbox
from jobs.mail import job_ended, last_lines, message
from jobs.models import Job, JobEvent, Membership, Run
from jobs.states import EndReason, JobState, RunState
from portal import live
from portal.models import ApiToken, User
from portal.tokens import token_for_secret
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def counted(db: None) -> None:
    """The table in which log-in attempts are counted."""
    call_command("createcachetable", verbosity=0)


def log_in(client: Client, password: str, name: str = "alice") -> Any:
    return client.post("/accounts/login/", {"login": name, "password": password})


def test_people_log_in_and_out(client: Client, alice: User, counted: None) -> None:
    assert log_in(client, factories.PASSWORD)["Location"] == "/"
    assert client.get("/").status_code == 200
    client.post("/accounts/logout/")
    assert client.get("/").status_code == 302


def test_guessing_a_password_is_slowed_down(client: Client, alice: User, counted: None) -> None:
    answers = [log_in(client, f"guess {n}") for n in range(6)]
    assert "Too many failed" in answers[-1].text or answers[-1].status_code == 429
    assert log_in(client, factories.PASSWORD).status_code != 302


def test_too_many_attempts_from_one_address_are_answered_in_our_look(
    client: Client, alice: User, counted: None
) -> None:
    answers = [log_in(client, f"guess {n}", name=f"name{n}") for n in range(31)]
    assert answers[-1].status_code == 429
    assert "Wait a few minutes" in answers[-1].text


def test_the_admin_pages_have_no_log_in_of_their_own(client: Client, db: None) -> None:
    """Their own would not count failed attempts."""
    answer = client.get("/admin/login/?next=/admin/", follow=True)
    assert answer.redirect_chain[-1][0].startswith("/accounts/login/")


def test_nobody_signs_up(client: Client, counted: None) -> None:
    client.post("/accounts/signup/", {"username": "eve", "password1": "a long pass phrase"})
    assert not User.objects.exists()


def test_people_change_their_password(client: Client, alice: User, counted: None) -> None:
    client.force_login(alice)
    new = "an even better pass phrase"
    sent = {"oldpassword": factories.PASSWORD, "password1": new, "password2": new}
    assert client.post("/accounts/password/change/", sent).status_code == 302
    alice.refresh_from_db()
    assert alice.check_password(new)


@pytest.mark.parametrize("path", ["/accounts/login/", "/accounts/password/reset/", "/accounts/inactive/"])
def test_pages_for_strangers_are_in_our_look(client: Client, counted: None, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "dist/app.css" in answer.text


@pytest.mark.parametrize(
    "path", ["/accounts/password/change/", "/accounts/logout/", "/account/tokens/", "/accounts/email/"]
)
def test_pages_of_ones_account_are_in_our_look(client: Client, alice: User, counted: None, path: str) -> None:
    client.force_login(alice)
    answer = client.get(path)
    assert answer.status_code == 200
    assert "sidebar" in answer.text


# --- tokens ---


def make_token(client: Client, **changes: str) -> Any:
    return client.post("/account/tokens/", {"name": "laptop", "scope": "write", "days": "30", **changes})


def test_a_token_is_shown_once_and_works(client: Client, alice: User) -> None:
    client.force_login(alice)
    answer = make_token(client)
    secret = answer.context["secret"]
    assert secret in answer.text
    token = token_for_secret(secret)
    assert token is not None
    assert token.user == alice
    assert token.expires_at is not None
    assert token.expires_at - timezone.now() > timedelta(days=29)
    assert secret not in client.get("/account/tokens/").text
    assert secret not in str(ApiToken.objects.values())


def test_a_revoked_token_stops_at_once(client: Client, alice: User) -> None:
    client.force_login(alice)
    secret = make_token(client, days="0").context["secret"]
    client.post(f"/account/tokens/{ApiToken.objects.get().pk}/revoke/")
    assert token_for_secret(secret) is None


def test_somebody_elses_token_cannot_be_revoked(client: Client, alice: User, bob: User) -> None:
    token, _secret = ApiToken.issue(alice, name="laptop", scope="read", expires_at=None)
    client.force_login(bob)
    assert client.post(f"/account/tokens/{token.pk}/revoke/").status_code == 404
    assert "laptop" not in client.get("/account/tokens/").text


@pytest.mark.parametrize(
    "changes", [{"name": ""}, {"scope": "admin"}, {"days": "-1"}, {"days": "x"}, {"name": "x" * 81}]
)
def test_nonsense_makes_no_token(client: Client, alice: User, changes: dict[str, str]) -> None:
    client.force_login(alice)
    assert make_token(client, **changes).context["secret"] == ""
    assert not ApiToken.objects.exists()


# --- language and zone ---


def test_a_language_is_kept_for_other_browsers(client: Client, alice: User) -> None:
    client.force_login(alice)
    client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/jobs/"})
    alice.refresh_from_db()
    assert alice.language == "zh-hans"
    other = Client()
    other.force_login(alice)
    assert '<html lang="zh-hans"' in other.get("/").text


def test_a_made_up_language_or_zone_changes_nothing(client: Client, alice: User) -> None:
    client.force_login(alice)
    client.post("/i18n/setlang/", {"language": "tlh"})
    client.cookies["dockyard_zone"] = "../../etc/passwd"
    assert '<html lang="en"' in client.get("/").text
    alice.refresh_from_db()
    assert alice.language == ""


# --- deactivating ---


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics on which news was published."""
    topics: list[str] = []
    monkeypatch.setattr(live, "publish", lambda topic, message: topics.append(topic))
    return topics


def test_deactivating_somebody_holds_what_waits_and_keeps_what_was(
    alice: User, heard: list[str], django_capture_on_commit_callbacks: Any
) -> None:
    node = factories.make_node("alpha")
    waiting = factories.make_job(alice)
    ended = factories.make_job(alice, state=JobState.SUCCEEDED, end_reason="COMPLETED")
    running = factories.make_job(alice)
    factories.make_run(running, node)
    _token, secret = ApiToken.issue(alice, name="laptop", scope="write", expires_at=None)
    alice.is_active = False
    with django_capture_on_commit_callbacks(execute=True):
        alice.save()
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {waiting.pk: JobState.HELD, ended.pk: JobState.SUCCEEDED, running.pk: JobState.RUNNING}
    assert Job.objects.get(pk=waiting.pk).held_by_admin
    assert JobEvent.objects.filter(job=waiting, kind="HELD").exists()
    assert token_for_secret(secret) is None
    assert live.user_topic(alice.pk) in heard


def test_a_deactivated_person_is_out_at_once(client: Client, alice: User) -> None:
    client.force_login(alice)
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert client.get("/").status_code == 302


def test_logging_out_and_leaving_a_team_close_open_pages(
    client: Client, alice: User, heard: list[str], django_capture_on_commit_callbacks: Any
) -> None:
    client.force_login(alice)
    with django_capture_on_commit_callbacks(execute=True):
        client.post("/accounts/logout/")
    assert heard == [live.user_topic(alice.pk)]
    with django_capture_on_commit_callbacks(execute=True):
        Membership.objects.get(user=alice).delete()
    assert heard == [live.user_topic(alice.pk)] * 2


# --- e-mail ---


@pytest.fixture
def ended(alice: User) -> Job:
    """A job of alice's that was killed for want of memory, with a log."""
    from jobs import logstore

    node = factories.make_node("alpha")
    job = factories.make_job(alice, name="train\u2028 <b>it</b>", state=JobState.FAILED, memory_mib=16384,
                             end_reason=EndReason.OOM_KILLED, ended_at=timezone.now())  # fmt: skip
    run = Run.objects.create(job=job, node=node, number=1, state=RunState.ENDED, end_reason=EndReason.OOM_KILLED)
    text = b"".join(b"line %d\n" % n for n in range(30)) + b"10%\r99%\r\n\x1b[31m<script>red\x1b[0m\n"
    logstore.save(run.pk, 0, 0, text).save()
    Run.objects.filter(pk=run.pk).update(log_bytes=len(text), log_complete=True)
    return job


def test_the_end_is_told_by_e_mail(ended: Job, settings: Any) -> None:
    settings.PUBLIC_URL = "https://dockyard.example.org/"
    found = message(ended)
    assert found.to == ["alice@example.org"]
    assert "\n" not in found.subject
    assert "failed" in found.subject
    assert "needed more than its 16 GiB of memory" in str(found.body)
    assert f"https://dockyard.example.org/jobs/{ended.pk}/" in str(found.body)
    html = str(found.alternatives[0][0])
    assert "<script>" not in html
    assert "&lt;script&gt;red" in html
    assert "<b>it" not in html


def test_the_mail_has_the_last_lines_as_a_terminal_would_show_them(ended: Job) -> None:
    run = Run.objects.get()
    lines = last_lines(run).splitlines()
    assert len(lines) == 20
    assert lines[-2:] == ["99%", "<script>red"]


def test_a_mail_is_in_its_readers_language(ended: Job, alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(language="zh-hans")
    assert "失败" in message(Job.objects.get()).subject


def test_no_mail_server_means_no_mail(ended: Job, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    job_ended(ended.pk)
    assert mail.outbox == []


class MailServer(socketserver.StreamRequestHandler):
    """Takes one e-mail in the words of SMTP."""

    def handle(self) -> None:
        self.say("220 test")
        for line in self.rfile:
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                self.say("354 go on")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.say("250 taken")
                self.server.taken.put(text)  # type: ignore[attr-defined]
            elif word == b"QUIT":
                return self.say("221 bye")
            else:
                self.say("250 fine")
        return None

    def say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


def test_an_e_mail_reaches_the_server(ended: Job, settings: Any) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.taken = queue.Queue()  # type: ignore[attr-defined]
        threading.Thread(target=server.handle_request, daemon=True).start()
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address
        job_ended(ended.pk)
        text = server.taken.get(timeout=60)  # type: ignore[attr-defined]
    assert b"To: alice@example.org" in text
    assert b"Subject: Job #" in text


def test_a_failing_mail_server_stops_nobody(ended: Job, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    job_ended(ended.pk)


def test_health_needs_no_log_in(client: Client, db: None, redis_server: Any) -> None:
    redis_server.stop()
    assert client.get("/healthz").json() == {"ok": True}


def test_a_secret_sealed_with_another_key_is_told_apart(settings: Any) -> None:
    token = secretbox.seal("sesame")
    assert secretbox.open_(token) == "sesame"
    settings.SECRETS_KEY = "another key"
    with pytest.raises(secretbox.Unreadable):
        secretbox.open_(token)
