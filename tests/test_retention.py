"""What the settings keep for a time only is deleted, in batches, and its absence is said."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages
from django.test import Client
from django.utils import timezone

from gpus.models import GPUMinute
from jobs import logstore, retention, runlock
from jobs.models import LogSegment, Run
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories


def live_run(owner: User) -> Run:
    """A run with a log of two segments."""
    node = factories.Node.objects.first() or factories.make_node(gpus=1)
    run = factories.make_run(factories.make_job(owner, gpus=0), node)
    for offset in (0, 4):
        logstore.save(run.pk, 0, offset, b"some").save()
    return run


def ended_run(owner: User, *, days_ago: int) -> Run:
    run = live_run(owner)
    at = timezone.now() - timedelta(days=days_ago)
    assert run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=at, log_complete=True, log_bytes=8)
    return run


def names(run: Run) -> list[str]:
    return list(run.segments.values_list("name", flat=True))


def test_logs_are_kept_for_as_long_as_the_settings_say(alice: User, settings: Any) -> None:
    old, young = ended_run(alice, days_ago=31), ended_run(alice, days_ago=29)
    gone, stay = names(old), names(young)
    retention.prune_logs(timezone.now())
    assert logstore.read(old, 0, 8) == b"somesome", "LOG_DAYS=0 keeps them all"
    settings.LOG_DAYS = 30
    retention.prune_logs(timezone.now())
    old.refresh_from_db()
    young.refresh_from_db()
    assert (logstore.size(old), logstore.is_expired(old)) == (0, True)
    assert (logstore.read(young, 0, 8), logstore.is_expired(young)) == (b"somesome", False)
    assert [storages["logs"].exists(name) for name in [*gone, *stay]] == [False, False, True, True]


def test_the_absence_of_an_old_log_is_said(alice: User, client: Client, settings: Any) -> None:
    run = ended_run(alice, days_ago=31)
    settings.LOG_DAYS = 30
    retention.prune_logs(timezone.now())
    client.force_login(alice)
    for path in (f"/jobs/{run.job_id}/log", f"/api/jobs/{run.job_id}/log"):
        answer = client.get(path)
        assert (answer.content, answer.headers["X-Log-Size"], answer.headers["X-Log-Expired"]) == (b"", "0", "true")
    head = client.get(f"/jobs/{run.job_id}/status.json").json()["log"]
    assert [hole["reason"] for hole in head["holes"]] == ["EXPIRED"]


def test_logs_go_in_batches_and_the_log_of_a_run_that_lives_stays(
    alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_SEGMENTS", 2)
    settings.LOG_DAYS = 30
    live = live_run(alice)
    first, second = ended_run(alice, days_ago=40), ended_run(alice, days_ago=40)
    kept, now = retention.Retention(), timezone.now()
    kept.prune(now)
    assert [run.segments.count() for run in (live, first, second)] == [2, 0, 2]
    kept.prune(now)
    assert [run.segments.count() for run in (live, first, second)] == [2, 0, 0]
    assert LogSegment.objects.count() == 2


def test_gpu_minutes_are_kept_for_as_long_as_the_settings_say(
    settings: Any, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_MINUTES", 3)
    settings.GPU_HISTORY_DAYS = 10
    now = timezone.now()
    for gpu in factories.make_node(gpus=2).gpus.all():
        rows = (GPUMinute(gpu=gpu, minute=minute(now, days, n)) for days in (9, 11) for n in range(2))
        GPUMinute.objects.bulk_create(rows)
    assert retention.prune_minutes(now) is True, "there may be more"
    assert GPUMinute.objects.count() == 5
    assert retention.prune_minutes(now) is False
    assert {row.minute for row in GPUMinute.objects.all()} == {minute(now, 9, n) for n in range(2)}


def test_only_ended_runs_lose_their_lock_files(alice: User, settings: Any, tmp_path: Path) -> None:
    """A lock that vanished under a live run would let two processes start it."""
    settings.SPOOL_DIR = tmp_path
    live, ended = live_run(alice), ended_run(alice, days_ago=0)
    for pk in (live.pk, ended.pk, 10**9):
        with runlock.lock(pk) as is_ours:
            assert is_ours
    runlock.forget_locks()
    assert {path.name for path in (tmp_path / "locks").iterdir()} == {str(live.pk), str(10**9)}


def minute(now: datetime, days: int, n: int) -> datetime:
    return (now - timedelta(days=days, minutes=n)).replace(second=0, microsecond=0)
