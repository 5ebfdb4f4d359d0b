"""The lines behind a job's charts: minutes and seconds in one row, the container's beside the GPUs', and events."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus import history
from gpus.models import ContainerMinute, GPUMinute
from gpus.series import line
from jobs.models import JobEvent, Run
from jobs.states import EndReason, JobState, RunState
from portal import live
from portal.models import User
from tests import factories

NAMES = ("load", "throttle")


def drawn(minutes: list[Any], seconds: list[Any], most: int = 100) -> dict[str, list[Any]]:
    return line(minutes, seconds, NAMES, apart=10, minutes_apart=150, most=most)


def test_minutes_go_over_into_seconds_and_gaps_are_told() -> None:
    found = drawn([(0, 1, 0), (60, 2, 0), (600, 3, 0)], [(650, 4, 0), (651, 5, 0), (700, 6, 0)])
    assert found["load"] == [1, 2, None, 3, 4, 5, None, 6]
    assert found["at"] == sorted(found["at"])


def test_what_is_too_much_becomes_means_and_no_reason_of_throttling_is_lost() -> None:
    found = drawn([], [(at, at % 2 * 100, 4 if at == 500 else 1) for at in range(1000)], most=100)
    assert 90 <= len(found["at"]) <= 100
    assert all(40 <= load <= 60 for load in found["load"])
    assert {mask for mask in found["throttle"] if mask & 4} == {5}
    assert found["at"] == sorted(found["at"])


def test_a_value_nobody_told_stays_unknown_in_a_mean() -> None:
    found = drawn([], [(at, None, None) for at in range(500)], most=50)
    assert set(found["load"]) == set(found["throttle"]) == {None}


def test_no_reading_is_no_line() -> None:
    assert drawn([], []) == {"at": [], "load": [], "throttle": []}


# --- over HTTP ---


@pytest.fixture
def run(alice: User) -> Run:
    """A job of one GPU that has run for three hours."""
    node = factories.make_node("alpha")
    return factories.make_run(factories.make_job(alice), node, started_at=timezone.now() - timedelta(hours=3))


def charts(client: Client, run: Run, query: str = "") -> dict[str, Any]:
    client.force_login(run.job.owner)
    return dict(client.get(f"/jobs/{run.job_id}/charts.json{query}").json())


def sampled(run: Run, at: float, **values: Any) -> None:
    sample = {"at": at, "job": run.job_id, "run": run.pk, **values}
    live.connection().lpush(history.run_key(run.pk), json.dumps(sample))


def test_the_container_has_its_lines_from_its_first_minute_on(run: Run, client: Client) -> None:
    """dstackai/dstack#2618: also those of the minutes that are no whole ones, since nobody shares them."""
    assert run.started_at is not None
    first = run.started_at.replace(second=0, microsecond=0)
    ContainerMinute.objects.create(run=run.pk, minute=first, cpu_percent=80, memory_mib=100)
    ContainerMinute.objects.create(run=run.pk + 1, minute=first, cpu_percent=1)
    sampled(run, timezone.now().timestamp() - 3, cpu_percent=150.0, memory_mib=300, read_kib_s=12.0)
    found = charts(client, run)
    assert found["run"] == run.pk
    assert found["container"]["cpu_percent"] == [80, None, 150]
    assert found["container"]["read_kib_s"] == [None, None, 12]
    assert run.started_at.timestamp() <= found["container"]["at"][0] <= first.timestamp() + 60


def test_a_job_without_gpus_has_charts_of_its_container(alice: User, client: Client) -> None:
    job = factories.make_job(alice, gpus=0)
    run = factories.make_run(job, factories.make_node("alpha"), started_at=timezone.now() - timedelta(minutes=5))
    sampled(run, timezone.now().timestamp() - 3, cpu_percent=50.0, memory_mib=10)
    found = charts(client, run)
    assert (found["gpus"], found["container"]["cpu_percent"]) == ([], [50])
    text = client.get(f"/jobs/{job.pk}/").content.decode()
    assert 'data-figure="cpu"' in text
    assert 'data-figure="utilisation"' not in text


def test_looking_closer_gives_what_the_whole_run_had_no_room_for(
    run: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.readings.MOST_POINTS", 50)
    now = timezone.now().timestamp()
    for second in range(200, 0, -1):
        sampled(run, now - second, cpu_percent=float(second))
    assert len(charts(client, run)["container"]["at"]) <= 50
    close = charts(client, run, f"?from={now - 120.5}&to={now - 100.5}")
    assert close["container"]["cpu_percent"] == [float(n) for n in range(120, 100, -1)]
    assert (close["from"], close["to"]) == (pytest.approx(now - 120.5), pytest.approx(now - 100.5))


def test_of_a_run_of_days_only_some_minutes_are_read(run: Run, client: Client) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    Run.objects.filter(pk=run.pk).update(started_at=now - timedelta(days=3))
    gpu = run.node.gpus.get(uuid=run.gpu_uuids[0])
    rows = (GPUMinute(gpu=gpu, minute=now - timedelta(minutes=n), utilisation=50) for n in range(90, 4_300))
    GPUMinute.objects.bulk_create(rows, batch_size=2000)
    (found,) = charts(client, run)["gpus"]
    assert 300 < len(found["at"]) <= 720
    assert None not in found["utilisation"], "minutes left out are no gaps"


def test_what_befell_the_run_is_marked_on_its_axis(run: Run, client: Client) -> None:
    assert run.started_at is not None
    run.job.note("WARNED", run=run, code="GPU_LOST", uuid="GPU-1")
    run.job.note("SIGNALLED", run=run, signal="SIGTERM")
    run.job.note("PINNED", run=run)
    JobEvent.objects.filter(kind="WARNED").update(at=run.started_at + timedelta(minutes=5))
    found = charts(client, run)["events"]
    assert [event["kind"] for event in found] == ["WARNED", "SIGNALLED"]
    assert found[1]["text"] == "Sent SIGTERM to its processes"
    assert found[0]["at"] == pytest.approx((run.started_at + timedelta(minutes=5)).timestamp())


def test_the_end_is_marked_where_the_lines_end(run: Run, client: Client) -> None:
    ended = timezone.now() - timedelta(seconds=2)  # its event is written now
    assert run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=ended)
    found = charts(client, run)
    assert [event["text"] for event in found["events"]] == ["Run ended: completed"]
    assert found["events"][0]["at"] == found["to"] == pytest.approx(ended.timestamp())


@pytest.mark.parametrize("query", ["?from=x", "?from=nan", "?to=-1", "?from=1e300"])
def test_nonsense_in_the_address_is_no_error_of_ours(run: Run, client: Client, query: str) -> None:
    client.force_login(run.job.owner)
    assert client.get(f"/jobs/{run.job_id}/charts.json{query}").status_code == 404


@pytest.mark.parametrize("query", ["?from=0&to=1", "?from=9e10", "?to=0"])
def test_a_time_outside_the_run_is_nothing(run: Run, client: Client, query: str) -> None:
    found = charts(client, run, query)
    assert found["container"]["at"] == []
    assert found["from"] <= found["to"]
