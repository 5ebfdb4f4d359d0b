"""The demo's own parts: what it checks the sample job's log against, and the history it makes up."""

import io
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs import logstore, wording
from jobs.models import Job, JobEvent, Mount, Quota, Team
from jobs.states import JOB_STATE_AFTER, EndReason
from portal.busybox import busybox_path
from portal.demo.children import Children, Failed
from portal.demo.history import HISTORY
from portal.demo.sample import SCRIPT, expected_log
from portal.models import User
from portal.tokens import token_for_secret
from tests import factories
from tests.rigs.processes import wait_until


@pytest.fixture
def seeded(db: None, settings: Any, tmp_path: Path) -> Path:
    """A seeded installation; its data folder."""
    settings.DATA_DIR = tmp_path
    settings.MOUNT_ROOTS = [str(tmp_path / "mounts")]
    factories.make_node(settings.NODE_NAME)
    call_command("seed")
    return tmp_path


def test_the_sample_script_prints_exactly_what_the_demo_expects() -> None:
    script = SCRIPT.replace("sleep 0.22", ":")
    done = subprocess.run(
        [busybox_path(), "sh", "-c", script], env={"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, capture_output=True, check=True
    )
    assert done.stdout == expected_log("GPU-a")


def test_the_demo_s_people_can_log_in_with_the_printed_passwords(seeded: Path, client: Any) -> None:
    accounts = json.loads((seeded / "accounts.json").read_text())
    assert (seeded / "accounts.json").stat().st_mode & 0o077 == 0
    assert list(accounts) == ["admin", "alice", "bob"]
    assert all(User.objects.get(username=name).check_password(password) for name, password in accounts.items())
    assert list(User.objects.filter(is_superuser=True).values_list("username", flat=True)) == ["admin"]


def test_seeding_twice_changes_nothing(seeded: Path) -> None:
    def everything() -> tuple[Any, ...]:
        jobs = list(Job.objects.values_list("pk", "state", "created_at"))
        users = list(User.objects.values_list("username", "password"))
        return jobs, users, JobEvent.objects.count(), Quota.objects.count(), Mount.objects.count()

    before, passwords = everything(), (seeded / "accounts.json").read_text()
    call_command("seed")
    assert everything() == before
    assert (seeded / "accounts.json").read_text() == passwords


def test_what_an_admin_took_away_or_changed_stays_so_when_the_demo_starts_again(seeded: Path) -> None:
    bob, vision = User.objects.get(username="bob"), Team.objects.get(name="vision")
    vision.memberships.filter(user=bob).delete()
    Quota.objects.filter(user__username="alice").delete()
    Mount.objects.all().delete()
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    call_command("seed", "--reset-passwords", stdout=io.StringIO())
    assert (bob.teams.count(), Quota.objects.filter(user__isnull=False).count(), Mount.objects.count()) == (0, 0, 0)
    assert User.objects.get(pk=bob.pk).is_staff
    Team.objects.filter(pk=vision.pk).update(name="seeing")
    call_command("seed")
    assert [team.name for team in Team.objects.all()] == ["seeing"]


def test_a_password_that_its_owner_changed_is_no_longer_told(seeded: Path) -> None:
    alice = User.objects.get(username="alice")
    alice.set_password("her own choice, not the demo's")
    alice.save()
    call_command("seed")
    accounts = json.loads((seeded / "accounts.json").read_text())
    assert accounts["alice"] is None
    assert User.objects.get(username="bob").check_password(accounts["bob"])
    call_command("seed", "--reset-passwords", stdout=io.StringIO())
    accounts = json.loads((seeded / "accounts.json").read_text())
    assert all(User.objects.get(username=name).check_password(word) for name, word in accounts.items())


def test_a_token_can_be_issued_without_the_password(alice: User) -> None:
    def issue() -> str:
        printed = io.StringIO()
        call_command("token", "alice", "--name", "sample job", stdout=printed)
        return printed.getvalue().strip()

    first, second = issue(), issue()
    assert token_for_secret(first) is None
    found = token_for_secret(second)
    assert found is not None
    assert (found.user, found.name) == (alice, "sample job")
    with pytest.raises(CommandError, match="no active user"):
        call_command("token", "nobody")


# --- processes ---


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def children(tmp_path: Path, said: list[str]) -> Iterator[Children]:
    started = Children(tmp_path, said.append)
    yield started
    started.stop()


def test_a_process_that_is_killed_is_started_again(children: Children, said: list[str], tmp_path: Path) -> None:
    command = ["sh", "-c", 'read line; echo "$$ $line" >>pids; exec sleep 60']
    children.start("web", command, os.environ, stdin=b"settings\n", cwd=tmp_path, again=True)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and "settings" in pids.read_text(), "it runs")
    first, line = pids.read_text().split()
    assert line == "settings"
    os.kill(int(first), signal.SIGKILL)
    wait_until(lambda: children.check() or said, "it is started again")
    wait_until(lambda: pids.read_text().count("settings") == 2, "it runs again")
    assert said[0].startswith("web has been killed by signal 9; started again as process ")
    children.stop()
    assert not Path("/proc", pids.read_text().splitlines()[-1].split()[0]).exists()


def test_a_process_that_dies_again_and_again_ends_the_demo(children: Children, said: list[str]) -> None:
    children.start("node", ["sh", "-c", "echo no luck; exit 3"], os.environ, again=True)
    with pytest.raises(Failed, match=r"(?s)node has ended with status 3 \(4 times within a minute\).*no luck"):
        wait_until(lambda: children.check() or False, "it gives up")
    assert len(said) == 3


def test_the_engine_is_not_started_again(children: Children) -> None:
    children.start("engine", ["false"], os.environ)
    with pytest.raises(Failed, match="engine has ended with status 1"):
        wait_until(lambda: children.check() or False, "it is missed")


# --- history ---


def test_every_past_job_ended_as_its_reason_says_and_kept_its_log(seeded: Path) -> None:
    assert Job.objects.count() == len(HISTORY)
    for past in HISTORY:
        job = Job.objects.get(name=past.name)
        run = job.current_run
        assert run is not None
        assert job.state == JOB_STATE_AFTER[EndReason(past.reason)]
        assert b"".join(logstore.stream(run)).decode() == past.work.log
        assert len(run.gpu_uuids) == past.gpus
        assert job.created_at <= job.started_at < job.ended_at <= timezone.now()  # type: ignore[operator]
        assert job.ended_at - job.started_at == timedelta(minutes=past.ran)  # type: ignore[operator]
        moves = [(e.old_state, e.new_state) for e in job.events.exclude(new_state="")]
        assert all(earlier[1] == later[0] for earlier, later in itertools.pairwise(moves))
        assert moves[-1][1] == job.state


def test_a_past_job_with_a_misspelt_command_is_told_so(seeded: Path) -> None:
    job = Job.objects.get(name="export to onnx")
    assert wording.end_sentence(job, job.current_run) == "The shell did not find the command pyhton."


def test_no_gpu_ran_two_past_jobs_at_once(seeded: Path) -> None:
    spans: dict[str, list[tuple[Any, Any]]] = {}
    for job in Job.objects.order_by("started_at"):
        run = job.current_run
        for gpu in run.gpu_uuids if run else ():
            spans.setdefault(gpu, []).append((job.started_at, job.ended_at))
    for taken in spans.values():
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))
