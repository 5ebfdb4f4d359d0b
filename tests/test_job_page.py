"""A job's page, its JSON, its log and files: what is said, and to whom."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import get_resolver
from django.utils import timezone

from gpus import history
from gpus.models import GPUMinute
from jobs import logstore, secretbox, workspace
from jobs.models import Job, JobEvent, Run
from jobs.states import JOB_STATE_AFTER, EndReason, JobState, RunState
from portal import live
from tests import factories

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"
PATHS = [
    "",
    "status.json",
    "charts.json",
    "metrics.json",
    "log",
    "log/search?q=x",
    "log/find?line=1",
    "log/notes",
    "log/download",
    "files/a.txt",
    "?part=head",
    "?part=files",
]
POSTS = [
    "cancel/", "hold/", "release/", "move/", "extend/", "amend/", "pin/", "unpin/", "priority/", "reorder/",
    "resubmit/",
]  # fmt: skip


@pytest.fixture
def cast(settings: Any, tmp_path: Any) -> dict[str, Any]:
    settings.WORKSPACE_ROOT = tmp_path / "workspaces"
    vision, speech = factories.make_team("vision"), factories.make_team("speech")
    people = {"alice": vision, "bob": vision, "mallory": speech}
    users = {name: factories.make_user(name, teams=(team,)) for name, team in people.items()}
    job = factories.make_job(users["alice"], vision, gpus=1)
    return {**users, "node": factories.make_node("alpha"), "job": job, "admin": factories.make_admin()}


def _as(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def _print(run: Run, data: bytes) -> None:
    logstore.save(run.pk, run.log_generation, 0, data).save()
    Run.objects.filter(pk=run.pk).update(log_bytes=len(data), log_complete=True)


# --- who may see it ---


@pytest.mark.parametrize("path", PATHS)
def test_a_stranger_gets_404_as_for_a_job_that_does_not_exist(cast: dict[str, Any], path: str) -> None:
    """xuxueli/xxl-job#3983, conaonda/EXTube#171"""
    client = _as(cast["mallory"])
    assert client.get(f"/jobs/{cast['job'].pk}/{path}").status_code == 404
    assert client.get(f"/jobs/999999/{path}").status_code == 404


@pytest.mark.parametrize("path", POSTS)
def test_a_stranger_changes_nothing(cast: dict[str, Any], path: str) -> None:
    assert _as(cast["mallory"]).post(f"/jobs/{cast['job'].pk}/{path}").status_code == 404
    cast["job"].refresh_from_db()
    assert (cast["job"].state, Job.objects.count()) == (JobState.QUEUED, 1)


def test_the_walk_covers_every_address_under_a_job() -> None:
    """A new address must be added to the walk above."""
    from jobs.job_urls import urlpatterns

    walked = {path.partition("?")[0].replace("a.txt", "<path:relpath>") for path in [*PATHS, *POSTS]}
    assert {str(pattern.pattern) for pattern in urlpatterns} == walked
    assert get_resolver()


@pytest.mark.parametrize("path", PATHS)
def test_a_visitor_is_sent_to_the_log_in(cast: dict[str, Any], client: Client, path: str) -> None:
    answer = client.get(f"/jobs/{cast['job'].pk}/{path}")
    assert (answer.status_code, answer.headers["Location"].split("?")[0]) == (302, "/accounts/login/")


def test_the_actions_need_a_post_with_a_token(cast: dict[str, Any]) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(cast["alice"])
    for path in POSTS:
        assert strict.post(f"/jobs/{cast['job'].pk}/{path}").status_code == 403
        assert strict.get(f"/jobs/{cast['job'].pk}/{path}").status_code == 405


@pytest.mark.parametrize("query", ["start=x", "end=1e9", "run=abc", f"start={10**30}", "run=-5", f"run={10**25}"])
def test_nonsense_in_a_log_address_is_no_error_of_ours(cast: dict[str, Any], query: str) -> None:
    _print(factories.make_run(cast["job"], cast["node"]), b"x")
    assert _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/log?{query}").status_code == 404


# --- what is said ---


def test_list_detail_and_json_say_the_same(cast: dict[str, Any]) -> None:
    """NVIDIA/DIGITS#729"""
    factories.make_run(cast["job"], cast["node"])
    client = _as(cast["alice"])
    said = client.get(f"/jobs/{cast['job'].pk}/status.json").json()
    page = client.get(f"/jobs/{cast['job'].pk}/").content.decode()
    listed = client.get("/jobs/").content.decode()
    assert said["state"] == "RUNNING"
    for text in (page, listed):
        assert f'data-state="{said["state"]}"' in text
        assert f"<span>{said['state_label']}</span>" in text
        assert said["headline"] in text


def test_a_waiting_job_says_why_and_where_it_stands(cast: dict[str, Any]) -> None:
    """determined-ai/determined#2937"""
    factories.make_job(cast["bob"], priority=2)
    job = cast["job"]
    Job.objects.filter(pk=job.pk).update(
        wait_reasons=[{"code": "PAUSED", "reason": "power work"}, {"code": "START_AFTER", "at": "2031-01-01T00:00:00Z"}]
    )
    said = _as(cast["alice"]).get(f"/jobs/{job.pk}/status.json").json()
    assert (said["place"]["position"], said["place"]["length"], said["place"]["text"]) == (2, 2, "2nd of 2")
    assert len(said["reasons"]) == 2
    assert "power work" in said["reasons"][0]
    page = _as(cast["alice"]).get(f"/jobs/{job.pk}/").content.decode()
    assert "power work" in page
    assert "2nd of 2" in page


@pytest.mark.parametrize("reason", list(EndReason))
def test_every_end_has_a_page(cast: dict[str, Any], reason: EndReason) -> None:
    run = factories.make_run(cast["job"], cast["node"])
    after = JOB_STATE_AFTER[reason]
    run.end(RunState.RUNNING, reason, after, now=timezone.now(), exit_code=1, engine_message="the daemon's words")
    answer = _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/")
    page = answer.content.decode()
    assert answer.status_code == 200
    if after is not JobState.QUEUED:
        assert "<details" in page
        assert "the daemon&#x27;s words" in page


@pytest.mark.parametrize("state", [RunState.PLACED, RunState.STARTING, RunState.RUNNING, RunState.STOPPING])
def test_every_live_state_has_a_page(cast: dict[str, Any], state: RunState) -> None:
    factories.make_run(cast["job"], cast["node"], state=state, warnings=[{"code": "KILL_STUCK"}])
    client = _as(cast["alice"])
    assert "does not end although it was killed" in client.get(f"/jobs/{cast['job'].pk}/").content.decode()
    assert client.get(f"/jobs/{cast['job'].pk}/?part=head").status_code == 200


def test_the_version_changes_with_the_state_and_not_with_the_log(cast: dict[str, Any]) -> None:
    run = factories.make_run(cast["job"], cast["node"])
    client = _as(cast["alice"])
    before = client.get(f"/jobs/{cast['job'].pk}/status.json").json()
    _print(run, b"some output")
    printed = client.get(f"/jobs/{cast['job'].pk}/status.json").json()
    assert (printed["version"], printed["log"]["end"]) == (before["version"], 11)
    client.post(f"/jobs/{cast['job'].pk}/cancel/")
    assert client.get(f"/jobs/{cast['job'].pk}/status.json").json()["version"] != before["version"]


def test_progress_of_a_pull_is_a_number(cast: dict[str, Any]) -> None:
    progress = {"code": "PULLING", "image": "x", "done_bytes": 1 << 20, "total_bytes": 4 << 20}
    factories.make_run(cast["job"], cast["node"], state=RunState.STARTING, progress=progress)
    assert _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/status.json").json()["progress"]["percent"] == 25


def test_what_was_not_verified_says_so(cast: dict[str, Any]) -> None:
    granted = {"verified": False, "why": "ENDED_FIRST", "gpus": []}
    factories.make_run(cast["job"], cast["node"], granted=granted)
    assert "not verified" in _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/").content.decode()


def test_a_job_that_ran_twice_shows_both_runs_and_the_log_of_each(cast: dict[str, Any]) -> None:
    first = factories.make_run(cast["job"], cast["node"])
    _print(first, b"first attempt")
    first.end(RunState.RUNNING, EndReason.PREEMPTED, JobState.QUEUED, now=timezone.now(), exit_code=143)
    second = factories.make_run(cast["job"], cast["node"])
    _print(second, b"second")
    client = _as(cast["alice"])
    page = client.get(f"/jobs/{cast['job'].pk}/").content.decode()
    assert 'id="log-run"' in page
    assert 'id="runs-tab-item" hidden' not in page
    assert "preempted" in page
    assert client.get(f"/jobs/{cast['job'].pk}/log?run={first.pk}").content == b"first attempt"
    assert client.get(f"/jobs/{cast['job'].pk}/log").content == b"second"


def test_a_container_of_unknown_limits_has_a_page(cast: dict[str, Any]) -> None:
    factories.make_run(cast["job"], cast["node"], facts={"image_id": "sha256:1", "nano_cpus": None, "cap_drop": None})
    assert "sha256:1" in _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/").content.decode()


# --- what users wrote is text ---


def test_script_in_every_field_is_text(cast: dict[str, Any]) -> None:
    """rundeck/rundeck#2068, cvquesty/openvox-gui#26"""
    job = cast["job"]
    Job.objects.filter(pk=job.pk).update(
        name=SCRIPT, image=SCRIPT, script=SCRIPT, environment={"NOTE": SCRIPT}, wait_reasons=[{"code": SCRIPT}]
    )
    run = factories.make_run(job, cast["node"])
    run.end(RunState.RUNNING, EndReason.CREATE_FAILED, JobState.FAILED, now=timezone.now(), engine_message=SCRIPT)
    JobEvent.objects.create(job=job, kind="<img src=x>", actor=cast["alice"])
    workspace.prepare(job, 0, 0)
    (workspace.of_user(job.owner_id) / "jobs" / str(job.pk) / "<img src=x onerror=alert(1)>").write_text("")
    client = _as(cast["alice"])
    for path in ("", "?part=head", "?part=files"):
        text = client.get(f"/jobs/{job.pk}/{path}").content.decode()
        assert SCRIPT not in text
        assert "<img" not in text.replace('<img src="/static/', "")


def test_a_secret_is_known_by_name_only(cast: dict[str, Any]) -> None:
    """neuro-inc/apolo-cli#2376, ansible/awx#10352"""
    Job.objects.filter(pk=cast["job"].pk).update(secrets_encrypted={"API_KEY": secretbox.seal("hunter2hunter2")})
    token = Job.objects.get(pk=cast["job"].pk).secrets_encrypted["API_KEY"]
    for name in ("alice", "bob", "admin"):
        for path in ("", "status.json"):
            text = _as(cast[name]).get(f"/jobs/{cast['job'].pk}/{path}").content.decode()
            assert "hunter2" not in text
            assert token not in text
    assert "API_KEY=••••" in _as(cast["bob"]).get(f"/jobs/{cast['job'].pk}/").content.decode()


# --- the log and the files ---


def test_a_log_is_read_by_range(cast: dict[str, Any]) -> None:
    run = factories.make_run(cast["job"], cast["node"])
    _print(run, b"0123456789")
    client = _as(cast["alice"])
    for query, data in [("", b"0123456789"), ("start=3&end=6", b"345"), ("start=-4", b"6789"), ("start=99", b"")]:
        answer = client.get(f"/jobs/{cast['job'].pk}/log?{query}")
        assert (answer.content, answer.headers["X-Log-Size"]) == (data, "10")
        assert answer.headers["Content-Type"] == "application/octet-stream"


def test_the_log_of_another_jobs_run_is_not_reached_through_ones_own(cast: dict[str, Any]) -> None:
    """dstackai/dstack#1814"""
    theirs = factories.make_run(factories.make_job(cast["mallory"]), cast["node"])
    _print(theirs, b"not yours")
    for path in ("log", "log/search", "log/find", "log/notes", "log/download", "charts.json"):
        assert _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/{path}?run={theirs.pk}").status_code == 404


@pytest.mark.django_db(transaction=True)
async def test_a_log_downloads_whole_and_raw(cast: dict[str, Any]) -> None:
    data = b"\r 10%\r 20%\n\xff\x00" + b"x" * 3_000_000

    from tests.sockets import in_db

    run = await in_db(factories.make_run)(cast["job"], cast["node"])
    await in_db(_print)(run, data)
    client = AsyncClient()
    await client.aforce_login(cast["alice"])
    answer = await client.get(f"/jobs/{cast['job'].pk}/log/download")
    pieces = [piece async for piece in answer.streaming_content]
    assert b"".join(pieces) == data
    assert len(pieces) > 1, "it is streamed"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="job-{cast["job"].pk}-run-1.log"'


@pytest.mark.django_db(transaction=True)
async def test_a_file_downloads_and_is_never_shown_as_a_page(cast: dict[str, Any]) -> None:
    from tests.sockets import in_db

    folder = await in_db(workspace.prepare)(cast["job"], 0, 0) / "jobs" / str(cast["job"].pk)
    (folder / "evil page.html").write_text(SCRIPT)
    client = AsyncClient()
    await client.aforce_login(cast["alice"])
    answer = await client.get(f"/jobs/{cast['job'].pk}/files/evil%20page.html")
    assert b"".join([piece async for piece in answer.streaming_content]) == SCRIPT.encode()
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith("attachment")


@pytest.mark.parametrize("path", ["../../secret", "..%2f..%2fsecret", "%00", "nothing"])
def test_no_path_leads_out_of_the_jobs_folder(cast: dict[str, Any], path: str) -> None:
    root = workspace.prepare(cast["job"], 0, 0)
    (root / "secret").write_text("another job's")
    assert _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/files/{path}").status_code == 404


def test_a_name_that_is_not_utf8_is_listed_without_a_link(cast: dict[str, Any]) -> None:
    folder = workspace.prepare(cast["job"], 0, 0) / "jobs" / str(cast["job"].pk)
    with open(bytes(folder) + b"/caf\xe9", "w"):
        pass
    text = _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/?part=files").content.decode()
    assert "caf?" in text
    assert f"/jobs/{cast['job'].pk}/files/" not in text


# --- charts ---


def test_charts_have_the_seconds_that_are_kept_and_the_minutes_before(cast: dict[str, Any]) -> None:
    now = timezone.now()
    run = factories.make_run(cast["job"], cast["node"], started_at=now - timedelta(hours=3))
    gpu = cast["node"].gpus.get(uuid=run.gpu_uuids[0])
    GPUMinute.objects.create(gpu=gpu, minute=now - timedelta(hours=2), utilisation=40, memory_mib=100, power_w=None)
    GPUMinute.objects.create(gpu=gpu, minute=now - timedelta(hours=9), utilisation=1)
    sample = {"at": now.timestamp() - 10, "utilisation": 90, "memory_used_mib": 200, "power_w": 250.5}
    live.connection().lpush(history.gpu_key(gpu.uuid), json.dumps(sample))
    (found,) = _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/charts.json").json()["gpus"]
    assert found["uuid"] == gpu.uuid
    assert found["utilisation"] == [40, None, 90], "no line through what was not read"
    assert found["memory_mib"] == [100, None, 200]
    assert found["power_w"] == [None, None, 250.5], "not read is not zero"


def test_charts_count_only_minutes_of_the_run_itself_and_seconds_where_there_are_any(cast: dict[str, Any]) -> None:
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=10)
    start = minute + timedelta(seconds=20)
    run = factories.make_run(cast["job"], cast["node"], started_at=start)
    gpu = cast["node"].gpus.get(uuid=run.gpu_uuids[0])
    for n, busy in enumerate((3, 61, 62, 63)):  # the first began before the run, the last has seconds
        GPUMinute.objects.create(gpu=gpu, minute=minute + timedelta(minutes=n), utilisation=busy)
    first = minute.timestamp() + 190
    for n in range(20):
        sample = {"at": first + n, "utilisation": 70}
        live.connection().lpush(history.gpu_key(gpu.uuid), json.dumps(sample))
    (found,) = _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/charts.json").json()["gpus"]
    assert found["utilisation"] == [61, 62, *[70] * 20]
    assert found["at"] == sorted(found["at"])


def test_charts_of_a_long_run_stay_small(cast: dict[str, Any]) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    run = factories.make_run(cast["job"], cast["node"], started_at=now - timedelta(days=3))
    gpu = cast["node"].gpus.get(uuid=run.gpu_uuids[0])
    GPUMinute.objects.bulk_create(
        GPUMinute(gpu=gpu, minute=now - timedelta(minutes=n), utilisation=50) for n in range(90, 3000)
    )
    (found,) = _as(cast["alice"]).get(f"/jobs/{cast['job'].pk}/charts.json").json()["gpus"]
    assert 300 < len(found["at"]) <= 720


def test_the_page_needs_no_redis(cast: dict[str, Any], redis_server: Any) -> None:
    _print(factories.make_run(cast["job"], cast["node"]), b"kept")
    redis_server.stop()
    client = _as(cast["alice"])
    for path in ("", "status.json", "charts.json"):
        assert client.get(f"/jobs/{cast['job'].pk}/{path}").status_code == 200
    assert client.get(f"/jobs/{cast['job'].pk}/log").content == b"kept"
