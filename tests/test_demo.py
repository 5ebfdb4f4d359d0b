"""The demo's own parts: what it checks the sample job's log against, and the history it makes up."""

import itertools
import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs import logstore
from jobs.models import Job, JobEvent, Mount, Quota
from jobs.states import JOB_STATE_AFTER, EndReason
from portal.busybox import busybox_path
from portal.demo.history import HISTORY
from portal.demo.sample import SCRIPT, expected_log
from portal.models import User
from tests import factories


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


def test_no_gpu_ran_two_past_jobs_at_once(seeded: Path) -> None:
    spans: dict[str, list[tuple[Any, Any]]] = {}
    for job in Job.objects.order_by("started_at"):
        run = job.current_run
        for gpu in run.gpu_uuids if run else ():
            spans.setdefault(gpu, []).append((job.started_at, job.ended_at))
    for taken in spans.values():
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))
