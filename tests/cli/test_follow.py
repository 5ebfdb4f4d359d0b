"""Logs and files by the `dockyard` command: byte for byte, live, over restarts; the tests play the node."""

import os
import signal
from pathlib import Path

import pytest

from jobs import logstore
from jobs.models import Job
from jobs.states import EndReason, JobState
from portal.cli.display import Waiting
from portal.cli.follow import Follower, Patience, Position, exit_status
from portal.models import User
from tests import factories
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer
from tests.rigs.shell import Node, Reader, Shell, complaint, following, said
from tests.rigs.web import Web, running_web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


# --- logs ---


PRINTED = b"caf\xc3\xa9 10%\r20%\r\x1b[32mdone\x1b[0m\xff\x00 no newline"


def test_logs_prints_the_bytes_as_they_are(shell: Shell, team_of_alice: User) -> None:
    """dagucloud/dagu#462: carriage returns and whatever is no text come out as they went in."""
    job = factories.make_job(team_of_alice)
    node = Node(job)
    node.print(PRINTED)
    node.finish(0)
    assert shell.run("logs", str(job.pk)).stdout == PRINTED
    assert shell.run("logs", str(job.pk), "--tail", "7").stdout == PRINTED[-7:]


def test_a_log_that_is_kept_no_longer_is_told_beside_the_output(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    node.print(b"long ago")
    node.finish(0)
    logstore.forget(node.run.segments.all())
    done = shell.run("logs", str(job.pk))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"This log is kept no longer.\n")


def test_a_log_larger_than_one_answer_is_whole(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    data = os.urandom(3 << 20)
    node.print(data)
    node.finish(0)
    assert shell.run("logs", str(job.pk)).stdout == data
    done = shell.run("logs", "-f", str(job.pk))
    assert (done.returncode, done.stdout) == (0, data)


def test_following_shows_output_live_and_ends_with_the_job_s_exit_code(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice, wait_reasons=[{"code": "PAUSED", "reason": "new disks"}])
    with following(shell, job) as reader:
        wait_until(lambda: b"new disks" in reader.err, "the reason to wait")
        node = Node(job)
        for number in range(5):
            node.print(b"%d%%\r" % number)
            reader.until(b"%d%%\r" % number)
        node.finish(7, EndReason.EXIT_CODE, JobState.FAILED)
        assert reader.ends() == 7
    assert reader.out == b"0%\r1%\r2%\r3%\r4%\r"
    assert b"exit code 7" in reader.err


def test_how_far_a_job_is_by_its_own_output_is_said_beside_it(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    node.reach(120, 500)
    assert "24 %, step 120 of 500, about 4 min" in said(shell.run("ps"))
    assert "24 %, step 120 of 500" in said(shell.run("show", str(job.pk)))
    with following(shell, job) as reader:
        wait_until(lambda: b"24 %" in reader.err, "how far it is")
        node.reach(121, 500)
        node.reach(400, 500)
        wait_until(lambda: b"80 %" in reader.err, "how far it has come")
        node.finish(0)
        assert reader.ends() == 0
    assert reader.out == b""
    assert reader.err.count(b"step 12") == 1, "a line for each tenth"
    done = said(shell.run("show", str(job.pk)))
    assert "ASKED FOR" in done
    assert "24 %" not in done


def test_following_survives_a_restart_of_the_server(shell: Shell, web: Web, team_of_alice: User) -> None:
    """ansible/awx#15342, #9747: nothing lost, nothing twice."""
    job = factories.make_job(team_of_alice)
    node = Node(job)
    with following(shell, job) as reader:
        node.print(b"one ")
        reader.until(b"one ")
        web.kill()
        node.print(b"two ")
        web.start()
        reader.until(b"two ")
        node.print(b"three")
        node.finish(0)
        assert reader.ends() == 0
    assert reader.out == b"one two three"


def test_following_gives_up_when_the_server_stays_away(
    redis_server: RedisServer, team_of_alice: User, tmp_path: Path
) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    with running_web() as server:
        process = Shell(tmp_path, server.url, team_of_alice).start("logs", "-f", str(job.pk), "--patience", "1s")
        try:
            reader = Reader(process)
            node.print(b"one")
            reader.until(b"one")
            server.kill()
            assert reader.ends() == 2
        finally:
            process.kill()
    assert b"giving up" in reader.err
    assert f"dockyard logs -f {job.pk}".encode() in reader.err


def test_following_goes_on_by_ranges_where_sockets_do_not_pass(
    redis_server: RedisServer, team_of_alice: User, tmp_path: Path
) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    with running_web("--ws", "none") as server, following(Shell(tmp_path, server.url, team_of_alice), job) as reader:
        for word in (b"one ", b"two "):
            node.print(word)
            reader.until(word)
        node.finish(0)
        assert reader.ends() == 0
    assert reader.out == b"one two "


def test_interrupting_leaves_the_job_alone(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    node = Node(job)
    node.print(b"x")
    with following(shell, job) as reader:
        reader.until(b"x")
        reader.process.send_signal(signal.SIGINT)
        assert reader.ends() in (130, -signal.SIGINT)  # one to a shell; Python chooses where it comes within an import
    assert b"dockyard cancel" in reader.err
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_submit_and_follow_in_one(shell: Shell) -> None:
    process = shell.start("submit", "-i", "a", "--follow", "--", "true")
    try:
        reader = Reader(process)
        job = wait_until(lambda: Job.objects.first(), "the job")
        node = Node(job)
        node.print(b"done\n")
        node.finish(0)
        assert reader.ends() == 0
        assert reader.out.endswith(b"done\n")
    finally:
        process.kill()


def test_waiting_for_a_cancelled_job_ends_with_130(shell: Shell, team_of_alice: User) -> None:
    job = factories.make_job(team_of_alice)
    process = shell.start("wait", str(job.pk))
    try:
        reader = Reader(process)
        wait_until(lambda: reader.err, "it looked")
        said(shell.run("cancel", str(job.pk)))
        assert reader.ends() == 130
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [("SUCCEEDED", 0, 0), ("FAILED", 7, 7), ("FAILED", 137, 137), ("FAILED", None, 1), ("FAILED", 0, 1),
     ("CANCELLED", 143, 130), ("CANCELLED", None, 130), ("TIMED_OUT", 143, 124), ("LOST", None, 125)],
)  # fmt: skip
def test_the_exit_status_stands_for_the_end(state: str, code: int | None, status: int) -> None:
    assert exit_status({"state": state, "exit_code": code}) == status


def test_a_mended_gap_neither_repeats_nor_skips_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    follower = Follower(None, 12, Waiting(12), Patience(60))  # type: ignore[arg-type]
    follower.at = Position(run=5, generation=0, offset=90, size=100)
    assert follower._moved(5, 1, 180)
    assert (follower.at.generation, follower.at.offset) == (1, 170)
    assert follower._moved(6, 0, 0)
    assert (follower.at.run, follower.at.offset) == (6, 0)
    assert "dockyard logs 12" in capsys.readouterr().err


# --- files ---


def test_files_are_listed_and_fetched(shell: Shell, team_of_alice: User) -> None:
    from django.conf import settings

    job = factories.make_job(team_of_alice)
    folder = Path(settings.WORKSPACE_ROOT) / str(team_of_alice.pk) / "jobs" / str(job.pk) / "out"
    folder.mkdir(parents=True)
    (folder / "a b#?.bin").write_bytes(b"\0\1\2")
    assert "out/a b#?.bin" in said(shell.run("files", str(job.pk)))
    said(shell.run("get", str(job.pk), "out/a b#?.bin"))
    assert (Path(shell.env["HOME"]) / "a b#?.bin").read_bytes() == b"\0\1\2"
    assert shell.run("get", str(job.pk), "out/a b#?.bin", "-o", "-").stdout == b"\0\1\2"
    said(shell.run("get", str(job.pk), "./out//a b#?.bin", "-o", "tidied"))
    for wrong in ("out/nothing", "../../etc/passwd", "out/../../../etc/passwd", "/etc/passwd", "..", ""):
        assert "no such file" in complaint(shell.run("get", str(job.pk), wrong))
