"""The `dockyard` command against a real web process: log-in, mistakes, submitting, looking, acting."""

import io
import json
import stat
import subprocess
import sys
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone, translation
from rich.console import Console

from gpus.history import host_key
from gpus.readings import GpuReading, HostReading
from jobs import wording
from jobs.models import AllocationSlot, Job, Quota
from jobs.states import JobState
from portal import live
from portal.cli import show
from portal.cli.text import catalogue_of
from portal.models import ApiToken, User
from tests import factories
from tests.rigs.processes import free_port, wait_until
from tests.rigs.shell import Node, Shell, complaint, following, said
from tests.rigs.web import BASE_DIR, Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


# --- log-in ---


def test_login_keeps_a_token_that_only_its_owner_can_read(web: Web, team_of_alice: User, tmp_path: Path) -> None:
    shell = Shell(tmp_path, web.url)
    done = shell.run("login", web.url, "--user", "alice", "--password-stdin", text=factories.PASSWORD + "\n")
    assert "alice" in said(done)
    config = tmp_path / ".config" / "dockyard" / "config.toml"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert factories.PASSWORD not in config.read_text()
    del shell.env["DOCKYARD_URL"]
    assert "submit" in said(shell.run("ps"))
    said(shell.run("logout"))
    assert not ApiToken.objects.exists()
    assert "dockyard login" in complaint(shell.run("ps"))


def test_login_with_a_token_checks_it_first(web: Web, team_of_alice: User, tmp_path: Path) -> None:
    shell = Shell(tmp_path, web.url)
    assert "not known" in complaint(shell.run("login", web.url, "--token", "dky_wrong"))
    assert not (tmp_path / ".config").exists()


def test_a_wrong_password_is_told_in_a_sentence(web: Web, team_of_alice: User, tmp_path: Path) -> None:
    done = Shell(tmp_path, web.url).run("login", "--user", "alice", "--password-stdin", text="wrong\n")
    assert "User name or password is wrong." in complaint(done)


def test_the_stored_token_goes_to_no_other_server(web: Web, team_of_alice: User, tmp_path: Path) -> None:
    shell = Shell(tmp_path, web.url)
    said(shell.run("login", "--user", "alice", "--password-stdin", text=factories.PASSWORD + "\n"))
    assert "not logged in" in complaint(shell.run("ps", DOCKYARD_URL="http://127.0.0.1:1"))


# --- what goes wrong on the way ---


def test_a_revoked_token_says_log_in_again(shell: Shell) -> None:
    ApiToken.objects.all().delete()
    assert "dockyard login" in complaint(shell.run("ps"))


def test_a_server_that_is_down_is_told_in_a_sentence(shell: Shell) -> None:
    text = complaint(shell.run("ps", DOCKYARD_URL=f"http://127.0.0.1:{free_port()}"))
    assert "connection refused" in text
    assert len(text.splitlines()) == 2


class NoDockyard(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>It works!</html>")

    def log_message(self, *args: Any) -> None: ...


def test_an_address_without_a_dockyard_is_told(shell: Shell) -> None:
    server = HTTPServer(("127.0.0.1", 0), NoDockyard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        text = complaint(shell.run("ps", DOCKYARD_URL=f"http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()
    assert "no Dockyard" in text


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a b:c", "http://x:99999999"])
def test_an_address_that_is_none_is_told(url: str, shell: Shell) -> None:
    assert "no web address" in complaint(shell.run("ps", DOCKYARD_URL=url))


def test_a_broken_configuration_is_told_with_its_path(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / ".config" / "dockyard" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("url = [")
    assert str(path) in complaint(shell.run("ps"))


@pytest.mark.parametrize("words", [("show", "x"), ("why", "-1x"), ("cancel", "1;2"), ("logs", "9" * 30)])
def test_what_is_no_job_number_is_told(words: tuple[str, ...], shell: Shell) -> None:
    assert "no job number" in complaint(shell.run(words[0], "--", *words[1:]))


def test_the_command_starts_without_django() -> None:
    code = (
        "import sys, portal.cli.app, portal.cli.client, portal.cli.show, portal.cli.follow, portal.cli.request\n"
        "assert 'django' not in sys.modules and 'ninja' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=BASE_DIR)


# --- submitting ---


def test_submit_passes_every_option_on(shell: Shell) -> None:
    done = shell.run(
        "submit", "-i", "trainer:v1", "--name", "night run", "--team", "vision", "-g", "2", "--gpu-model", "A100",
        "--gpu-memory", "24GiB", "-c", "0.5", "-m", "1.5g", "--shm", "256M", "-t", "1d 4h", "--grace", "1m",
        "-p", "low", "-e", "A=x=y", "-e", "HOME", "--secret", "KEY=hush", "--start-after", "2h", "--json", "--",
        "python", "a b.py",
    )  # fmt: skip
    job = Job.objects.get(pk=json.loads(said(done))["id"])
    assert (job.name, job.image, job.gpus, job.gpu_model, job.gpu_memory_mib) == (
        "night run", "trainer:v1", 2, "A100", 24576,
    )  # fmt: skip
    assert (job.millicpus, job.memory_mib, job.shm_mib, job.limit_seconds) == (500, 1536, 256, 100800)
    assert (job.grace_seconds, job.priority, job.script) == (60, 0, "python 'a b.py'")
    assert (job.environment, list(job.secrets_encrypted)) == ({"A": "x=y", "HOME": shell.env["HOME"]}, ["KEY"])
    assert job.start_after is not None
    assert 7100 < (job.start_after - timezone.now()).total_seconds() < 7300


def test_the_command_may_be_a_script_from_a_file_or_standard_input(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("echo file\n")
    said(shell.run("submit", "-i", "a", "--script", "train.sh"))
    said(shell.run("submit", "-i", "a", "--script", "-", text="echo input\n"))
    said(shell.run("submit", "-i", "a", "--", "echo $HOME && exit 3"))
    assert [job.script for job in Job.objects.order_by("id")] == ["echo file\n", "echo input\n", "echo $HOME && exit 3"]


def test_the_image_s_own_command_is_run_when_none_is_given(shell: Shell) -> None:
    said(shell.run("submit", "-i", "a"))
    said(shell.run("submit", "-i", "a", "--own-entrypoint", "--", "--lr", "0.1"))
    said(shell.run("submit", "-i", "a", "--entrypoint", "python -u", "--", "train.py"))
    found = [(job.command_kind, job.entrypoint, job.arguments) for job in Job.objects.order_by("id")]
    assert found == [
        ("image", [], []), ("image", [], ["--lr", "0.1"]), ("image", ["python", "-u"], ["train.py"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--gpus", "1"], "Name the image"),
        (["-i", "a", "-m", "lots"], "--memory"),
        (["-i", "a", "-t", "soon"], "--limit"),
        (["-i", "a", "--script", "nowhere.sh"], "Cannot read the script"),
        (["-i", "a", "--script", "-", "--", "x"], "not both"),
        (["-i", "a", "-e", "NOT_SET_HERE"], "no such variable"),
        (["-i", "a", "--start-after", "whenever"], "--start-after"),
        (["-i", "a", "--entrypoint", "'x"], "quotation mark"),
        (["-i", "UPPER case"], "image: "),
        (["-i", "a", "-p", "highest"], "priority: "),
        (["-i", "a", "-e", "NVIDIA_VISIBLE_DEVICES=all"], "NVIDIA_VISIBLE_DEVICES"),
        (["-i", "a", "--team", "audio"], "team: "),
        (["-i", "a", "--mount", "nothing"], "mounts: "),
    ],
)
def test_a_bad_request_is_refused_in_words(words: list[str], expected: str, shell: Shell) -> None:
    assert expected in complaint(shell.run("submit", *words))
    assert not Job.objects.exists()


def test_a_quota_s_refusal_has_its_numbers(shell: Shell, team_of_alice: User) -> None:
    Quota.objects.create(user=team_of_alice, gpus=2)
    assert "2 GPUs" in complaint(shell.run("submit", "-i", "a", "-g", "3"))


def test_a_preview_submits_nothing(shell: Shell) -> None:
    factories.make_node("alpha", gpus=2)
    assert "now on alpha" in said(shell.run("submit", "-i", "a", "-g", "1", "--preview"))
    assert "never" in said(shell.run("submit", "-i", "a", "-g", "4", "--preview"))
    assert not Job.objects.exists()


# --- looking and acting ---


def test_the_lists_show_what_is_there(shell: Shell, team_of_alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    running = factories.make_job(team_of_alice, name="train \x1b[31m")
    factories.make_run(running, node)
    waiting = factories.make_job(team_of_alice, name="later", wait_reasons=[{"code": "PAUSED", "reason": "new disks"}])
    ended = factories.make_job(team_of_alice, name="old", state=JobState.CANCELLED, ended_at=timezone.now())
    listed = said(shell.run("ps"))
    assert f"#{running.pk}" in listed
    assert "new disks" in listed
    assert f"#{ended.pk}" not in listed
    assert "\x1b" not in listed
    assert f"#{ended.pk}" in said(shell.run("ps", "--all"))
    assert [job["id"] for job in json.loads(said(shell.run("ps", "--state", "queued", "--json")))["jobs"]] == [
        waiting.pk
    ]
    assert "new disks" in said(shell.run("why", str(waiting.pk)))
    assert "alpha" in said(shell.run("show", f"#{running.pk}"))
    assert "later" in said(shell.run("queue"))
    assert "A100" in said(shell.run("gpus"))
    second = factories.make_run(factories.make_job(running.owner), node, gpus=())
    AllocationSlot.objects.create(allocation=second.allocation, gpu=node.gpus.get(index=0), slot=1)
    assert f"#{running.pk} alice, #{second.job_id} alice" in said(shell.run("gpus")), "a shared GPU"
    second.allocation.slots.all().delete()
    node.gpus.update(hidden=True)
    assert f"#{running.pk} alice · hidden" in said(shell.run("gpus"))
    assert "GPUs" in said(shell.run("quota"))


def test_gpus_of_hosts_that_are_closed_or_silent_are_not_free(shell: Shell, team_of_alice: User) -> None:
    closed = factories.make_node("closed", gpus=1, cordoned=True, cordon_reason="new fans")
    factories.make_node("silent", gpus=1, last_seen=timezone.now() - timedelta(hours=1))
    read = GpuReading(uuid=closed.gpus.get().uuid, index=0, model="NVIDIA A100", memory_mib=40960)
    reading = HostReading(node="closed", at=time.time(), status="ok", gpus=(read,))
    live.connection().set(host_key("closed"), reading.encode())
    table = said(shell.run("gpus"))
    rows = {line.split()[0]: line for line in table.splitlines() if line and ":" not in line}
    assert rows["closed"].endswith("closed to new jobs")
    assert rows["silent"].endswith("no reading")
    assert "free" not in table
    assert "no sign of life" in table


def test_a_job_that_can_never_start_is_told_first_of_all(shell: Shell, team_of_alice: User) -> None:
    factories.make_node("alpha", gpus=2)
    reasons = [{"code": "PAUSED"}, {"code": "TOO_LARGE_GPUS", "asked": 8, "most": 2, "node": "alpha"}]
    job = factories.make_job(team_of_alice, gpus=8, wait_reasons=reasons)
    lines = said(shell.run("why", str(job.pk))).splitlines()
    assert lines[0] == f"#{job.pk} Cannot start: No host has 8 GPUs; the largest, alpha, has 2 GPUs."
    assert "paused" in lines[1]
    assert lines[2] == "What might help: It could start with 2 GPUs."
    assert len(lines) == 3
    Job.objects.filter(pk=job.pk).update(wait_reasons=reasons[:1])
    assert "Cannot start" not in said(shell.run("why", str(job.pk)))


def test_what_was_asked_for_is_said_in_the_plural(shell: Shell, team_of_alice: User) -> None:
    one = factories.make_job(team_of_alice, gpus=1, millicpus=1000)
    two = factories.make_job(team_of_alice, gpus=2, millicpus=500)
    assert "1 GPU · 1 CPU ·" in said(shell.run("show", str(one.pk)))
    assert "2 GPUs · 0.5 CPUs ·" in said(shell.run("show", str(two.pk)))


def test_lists_are_whole_in_a_pipe_and_fit_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(width: int, *, terminal: bool) -> list[str]:
        console = Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None)
        monkeypatch.setattr(show, "out", console)
        listing = show.Listing("ID", "~NAME", ">GPUS", "~REASON")
        listing.row("#123456", "a name of forty characters or thereabouts", "16", "a reason " * 20)
        return [line.plain for line in listing.lines()]

    whole = shown(80, terminal=False)
    assert ("#123456" in whole[1], "thereabouts" in whole[1], whole[1].count("a reason")) == (True, True, 20)
    fitting = shown(80, terminal=True)
    assert fitting[1].startswith("#123456")
    assert "  16" in fitting[1]
    assert max(map(len, fitting)) <= 80


def test_cancel_goes_on_after_a_refusal(shell: Shell, team_of_alice: User) -> None:
    own = factories.make_job(team_of_alice)
    foreign = factories.make_job(factories.make_user("charlie", teams=(factories.make_team("audio"),)))
    done = shell.run("cancel", str(foreign.pk), str(own.pk))
    assert (done.returncode, f"#{own.pk}: cancelled." in done.stdout.decode()) == (2, True)
    assert f"#{foreign.pk}" in done.stderr.decode()
    own.refresh_from_db()
    foreign.refresh_from_db()
    assert (own.state, foreign.state) == (JobState.CANCELLED, JobState.QUEUED)


def test_hold_and_release(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    for verb, state in (("hold", JobState.HELD), ("release", JobState.QUEUED)):
        said(shell.run(verb, str(job.pk)))
        job.refresh_from_db()
        assert job.state == state


# --- language ---


@pytest.mark.parametrize(
    ("name", "catalogue"),
    [("", "en"), ("C.UTF-8", "en"), ("de_DE.UTF-8", "en"), ("zh_CN.UTF-8", "zh_Hans"), ("zh-hans", "zh_Hans"),
     ("zh_TW", "zh_Hans"), ("POSIX", "en")],
)  # fmt: skip
def test_every_locale_has_a_catalogue(name: str, catalogue: str) -> None:
    assert catalogue_of(name) == catalogue


def _is_chinese(text: str) -> bool:
    return any(letter >= "\u4e00" for letter in text)


def test_the_environment_decides_the_language_not_the_account(shell: Shell, team_of_alice: User) -> None:
    """The server's sentences, over HTTP and over the socket, are of the language of the command's own."""
    User.objects.filter(pk=team_of_alice.pk).update(language="zh-hans")
    job = factories.make_job(team_of_alice, wait_reasons=[{"code": "PAUSED"}])
    for words in (["ps"], ["why", str(job.pk)], ["show", str(job.pk)]):
        assert not _is_chinese(said(shell.run(*words)))
        assert _is_chinese(said(shell.run(*words, LANG="zh_CN.UTF-8")))
    chosen = said(shell.run("--lang", "zh", "why", str(job.pk)))
    assert chosen == said(shell.run("why", str(job.pk), LANG="zh_CN.UTF-8"))
    with following(shell, job) as reader:
        wait_until(lambda: b"paused" in reader.err, "the reason to wait")
        node = Node(job)
        node.print(b"one")
        reader.until(b"one")
        node.finish(0)
        assert reader.ends() == 0
    assert not _is_chinese(reader.err.decode())


# --- expected starts ---


@pytest.mark.parametrize(("language", "label"), [("en", "Expected start"), ("zh-hans", "预计启动")])
def test_the_expected_start_is_said_wherever_a_waiting_job_is_shown(
    shell: Shell, team_of_alice: User, language: str, label: str
) -> None:
    node, soon = factories.make_node("alpha", gpus=1), timezone.now() + timedelta(hours=2)
    running = factories.make_job(team_of_alice, limit_seconds=3600)
    factories.make_run(running, node)
    job = factories.make_job(team_of_alice, expected_earliest=soon, expected_latest=soon + timedelta(hours=1))
    with translation.override(language):
        words = wording.expected_start(job.expected_earliest, job.expected_latest)
    for command in (["ps"], ["queue"], ["why", str(job.pk)], ["show", str(job.pk)]):
        assert words in said(shell.run("--lang", language, *command)), command
    preview = ["--lang", language, "submit", "-i", "a", "-g", "1", "--limit", "2h", "--preview"]
    seen, told = said(shell.run(*preview)), json.loads(said(shell.run(*preview, "--json")))
    assert told["expected"]
    assert f"{label}: " in seen, "in words, which a minute changes"
    assert label not in said(shell.run("why", str(running.pk)))
