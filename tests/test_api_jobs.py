"""Jobs looked at and acted on over the API: the same answers as the pages."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils import timezone

from gpus.history import host_key
from gpus.models import Node
from gpus.readings import GpuReading, HostReading, Process
from jobs import logstore
from jobs.dashboard import dashboard_of
from jobs.models import AllocationSlot, Job, Quota, Run, Team
from jobs.states import EndReason, JobState, RunState
from jobs.status import status
from portal import live
from portal.models import User
from tests import factories
from tests.rigs.api import Api, errors, whole
from tests.rigs.redis import RedisServer

PRINTED = b"caf\xc3\xa9\r\x1b[31m\xff\x00 end"


# --- looking ---


def test_one_job_is_the_answer_of_its_page_and_nothing_is_left_out(alice: User) -> None:
    """NVIDIA/DIGITS#729: list, detail and JSON come from one function."""
    job = factories.make_job(alice)
    factories.make_run(job, factories.make_node("alpha"))
    found, row = Api(alice).get(f"/jobs/{job.pk}").json(), Api(alice).get("/jobs").json()["jobs"][0]
    expected = status(Job.objects.get(), alice)
    assert set(found) == set(expected)
    same = set(found) - {"server_time"}
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    assert row.pop("position") is None
    assert row == {name: found[name] for name in row}


def test_the_list_filters_and_pages_by_key(alice: User, bob: User) -> None:
    mine = [factories.make_job(alice, name=f"mine {n}") for n in range(3)]
    theirs = factories.make_job(bob, name="theirs")
    ended = factories.make_job(alice, name="old", state=JobState.FAILED, ended_at=timezone.now())
    api = Api(alice)

    def ids(**params: Any) -> list[int]:
        return [job["id"] for job in api.get("/jobs", **params).json()["jobs"]]

    assert ids() == [ended.pk, theirs.pk, *(job.pk for job in reversed(mine))]
    assert ids(mine=True, state="active") == [job.pk for job in reversed(mine)]
    assert ids(state=["FAILED", "RUNNING"]) == [ended.pk]
    assert ids(search="theirs") == ids(search="bob") == ids(search=str(theirs.pk)) == [theirs.pk]
    assert ids(search="\0") == ids()
    first = api.get("/jobs", limit=2).json()
    assert [job["id"] for job in first["jobs"]] == [ended.pk, theirs.pk]
    assert ids(limit=10, before=first["next"]) == [job.pk for job in reversed(mine)]
    assert api.get("/jobs", limit=10).json()["next"] is None
    assert errors(api.get("/jobs", state="SLEEPING")) == [("state", "STATE_UNKNOWN")]


def test_a_long_list_costs_no_more_queries_than_a_short_one(alice: User, django_assert_max_num_queries: Any) -> None:
    node = factories.make_node("alpha", gpus=8)
    for _ in range(6):
        factories.make_run(factories.make_job(alice), node)
        factories.make_job(alice)
    api = Api(alice)
    with django_assert_max_num_queries(27):
        assert len(api.get("/jobs").json()["jobs"]) == 12


def test_the_list_shows_a_team_s_jobs_to_the_team_and_to_nobody_else(alice: User, bob: User, charlie: User) -> None:
    job = factories.make_job(alice)
    assert [row["id"] for row in Api(bob).get("/jobs").json()["jobs"]] == [job.pk]
    assert Api(charlie).get("/jobs").json()["jobs"] == []


def test_why_tells_all_reasons_and_the_place(alice: User) -> None:
    factories.make_job(alice, priority=2)
    job = factories.make_job(
        alice, wait_reasons=[{"code": "PAUSED", "reason": "new disks"}, {"code": "AHEAD", "count": 1, "first": 7}]
    )
    found = Api(alice).get(f"/jobs/{job.pk}/why").json()
    assert [reason["code"] for reason in found["reasons"]] == ["PAUSED", "AHEAD"]
    assert "new disks" in found["reasons"][0]["message"]
    assert (found["position"], found["queue_length"]) == (2, 2)


def test_why_of_an_ended_job_tells_the_end_and_what_would_help(alice: User) -> None:
    job = factories.make_job(alice, state=JobState.FAILED, end_reason="OOM_KILLED", ended_at=timezone.now())
    found = Api(alice).get(f"/jobs/{job.pk}/why").json()
    assert (found["end_reason"], found["reasons"], found["position"]) == ("OOM_KILLED", [], None)
    assert "1 GiB" in found["headline"]
    assert found["suggestion"]


def test_the_journal_is_told_in_sentences(alice: User) -> None:
    api = Api(alice)
    job = api.submit().json()["id"]
    api.post(f"/jobs/{job}/hold")
    told = api.get(f"/jobs/{job}/events").json()["events"]
    assert [(event["kind"], event["actor"]) for event in told] == [("SUBMITTED", "alice"), ("HELD", "alice")]
    assert all(event["message"] for event in told)


def test_the_queue_hides_what_strangers_may_not_know(alice: User, charlie: User) -> None:
    secret = factories.make_job(alice, name="secret plan", wait_reasons=[{"code": "PAUSED", "reason": "x"}])
    own = factories.make_job(charlie)
    found = Api(charlie).get("/queue").json()
    assert [(entry["id"], entry["place"]) for entry in found["queued"]] == [(secret.pk, 1), (own.pk, 2)]
    hidden, shown = found["queued"]
    assert (hidden["owner"], hidden["gpus"], hidden["name"], hidden["image"]) == ("alice", 1, None, None)
    assert [reason["code"] for reason in hidden["reasons"]] == ["PAUSED"], "as the queue's page tells everybody"
    assert (shown["name"], shown["mine"]) == (own.name, True)
    assert "secret plan" not in json.dumps(found)


def test_quota_tells_limits_and_use_of_user_and_teams(alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, gpus=4, priority=2)
    Quota.objects.create(team=vision, gpu_hours=100)
    factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
    mine, team = Api(alice).get("/quota").json()["levels"]
    assert (mine["limits"]["gpus"], mine["use"]["gpus"], mine["limits"]["priority"]) == (4, 1, "high")
    assert (team["name"], team["limits"]["gpu_seconds"]) == ("vision", 360000)
    assert 3500 < team["use"]["gpu_seconds"] <= 3600


def test_gpus_tells_holders_and_why_a_gpu_is_not_given_away(alice: User, root_admin: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    node.gpus.filter(index=1).update(quarantine_reason="ECC errors")
    job = factories.make_job(factories.make_user("bob"), factories.make_team("speech"), name="plan")
    factories.make_run(job, node)
    process = Process(pid=1, memory_mib=3, user="eve", name="miner", kind="foreign")
    gpu = GpuReading(uuid="GPU-alpha-0000", index=0, utilisation=0, processes=(process,))
    reading = HostReading(node="alpha", at=timezone.now().timestamp(), status="ok", gpus=(gpu,))
    live.connection().set(host_key("alpha"), reading.encode())
    first, second = Api(alice).get("/gpus").json()["nodes"][0]["gpus"]
    assert (first["job"], first["owner"], first["utilisation"], first["unavailable"]) == (job.pk, "bob", 0, None)
    assert first["job_name"] is None
    seen = first["processes"][0]
    assert (seen["kind"], seen["user"], seen["name"]) == ("foreign", "eve", None)
    assert (second["utilisation"], second["unavailable"]["code"]) == (None, "GPU_QUARANTINED")
    told = Api(root_admin).get("/gpus").json()["nodes"][0]["gpus"][0]
    assert (told["processes"][0]["name"], told["job_name"]) == ("miner", "plan")


def test_a_shared_gpu_tells_all_its_holders(alice: User, client: Client) -> None:
    node = factories.make_node("alpha", gpus=2)
    node.gpus.filter(index=0).update(slots=4)
    mine, theirs = _sharing(node, alice, factories.make_user("bob"))
    shared, free = Api(alice).get("/gpus").json()["nodes"][0]["gpus"]
    assert shared["holders"] == [
        {"job": theirs.pk, "owner": "bob", "job_name": None}, {"job": mine.pk, "owner": "alice", "job_name": "mine"}
    ]  # fmt: skip
    assert (shared["job"], shared["owner"], free["holders"]) == (theirs.pk, "bob", [])
    client.force_login(alice)
    (cells,) = [cells for _host, cells in client.get("/").context["hosts"]]
    assert (cells[0].kind, cells[0].job) == ("mine", mine.pk)
    assert [holder.job for holder in cells[0].holders] == [mine.pk, theirs.pk]
    assert f"bob #{theirs.pk}" in client.get("/").text


def _sharing(node: Node, owner: User, other: User) -> tuple[Job, Job]:
    """Two jobs on the first GPU of the node, the other's two slots first."""
    gpu = node.gpus.get(index=0)
    mine = factories.make_job(owner, gpu_milli=250, name="mine")
    theirs = factories.make_job(other, factories.make_team("speech"), gpu_milli=500, name="theirs")
    for job, slots in ((mine, [2]), (theirs, [0, 1])):
        allocation = factories.make_run(job, node, gpus=()).allocation
        AllocationSlot.objects.bulk_create(AllocationSlot(allocation=allocation, gpu=gpu, slot=n) for n in slots)
    return mine, theirs


def test_hidden_gpus_are_for_admins(alice: User, root_admin: User) -> None:
    factories.make_node("alpha", gpus=2).gpus.filter(index=1).update(hidden=True)
    assert [gpu["index"] for gpu in Api(alice).get("/gpus").json()["nodes"][0]["gpus"]] == [0]
    hidden = Api(root_admin).get("/gpus").json()["nodes"][0]["gpus"][1]
    assert (hidden["state"], hidden["unavailable"]["code"]) == ("hidden", "GPU_HIDDEN")


def test_a_gpu_that_is_hidden_while_a_job_runs_on_it_stays_in_sight_until_the_job_ends(alice: User, bob: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice)
    run = factories.make_run(job, node)
    node.gpus.update(hidden=True)
    for reader in (alice, bob):
        [gpu] = Api(reader).get("/gpus").json()["nodes"][0]["gpus"]
        assert (gpu["state"], gpu["hidden"], gpu["job"]) == ("used", True, job.pk)
        assert dashboard_of(reader)["gpus"] == 1
    run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())
    assert Api(alice).get("/gpus").json()["nodes"][0]["gpus"] == []


@pytest.mark.parametrize(
    ("node", "gpu", "age", "state"),
    [
        ({}, {}, 0, "free"),
        ({}, {}, 60, "unknown"),
        ({}, {}, None, "unknown"),
        ({"cordoned": True}, {}, 0, "cordoned"),
        ({"cordoned": True}, {}, 60, "unknown"),
        ({}, {"quarantine_reason": "ECC"}, 0, "closed"),
        ({"gpu_status": "hung"}, {}, 60, "closed"),
        ({}, {"hidden": True}, 0, "hidden"),
    ],
)
def test_a_gpu_is_free_only_where_a_fresh_reading_of_an_open_host_says_so(
    root_admin: User, node: dict[str, Any], gpu: dict[str, Any], age: int | None, state: str
) -> None:
    host = factories.make_node("alpha", gpus=1, **node)
    host.gpus.update(**gpu)
    if age is not None:
        read = GpuReading(uuid="GPU-alpha-0000", index=0, model="NVIDIA A100", memory_mib=40960)
        reading = HostReading(node="alpha", at=time.time() - age, status="ok", gpus=(read,))
        live.connection().set(host_key("alpha"), reading.encode())
    assert Api(root_admin).get("/gpus").json()["nodes"][0]["gpus"][0]["state"] == state


def test_gpus_without_redis_are_unknown_not_zero(alice: User, redis_server: RedisServer) -> None:
    factories.make_node("alpha", gpus=1)
    redis_server.stop()
    gpu = Api(alice).get("/gpus").json()["nodes"][0]["gpus"][0]
    assert (gpu["utilisation"], gpu["job"], gpu["memory_mib"]) == (None, None, 40960)


# --- acting ---


def test_cancel_hold_and_release_tell_whether_anything_changed(alice: User) -> None:
    """harness/harness#1328: a second press is harmless."""
    api, job = Api(alice), factories.make_job(alice)
    states = []
    for verb in ("hold", "hold", "release", "release", "cancel", "cancel"):
        answer = api.post(f"/jobs/{job.pk}/{verb}").json()
        states.append((answer["changed"], answer["job"]["state"]))
    assert states == [(True, "HELD"), (False, "HELD"), (True, "QUEUED"), (False, "QUEUED"), (True, "CANCELLED"),
                      (False, "CANCELLED")]  # fmt: skip


def test_a_team_mate_sees_but_does_not_stop(alice: User, bob: User) -> None:
    job = factories.make_job(alice)
    assert Api(bob).get(f"/jobs/{job.pk}").status_code == 200
    assert Api(bob).post(f"/jobs/{job.pk}/cancel").status_code == 403
    assert Job.objects.get().state == JobState.QUEUED


# --- log and files ---


@pytest.fixture
def logged(alice: User) -> Run:
    """A running job that has printed bytes which are no text."""
    run = factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
    logstore.save(run.pk, run.log_generation, 0, PRINTED).save()
    return run


def test_the_log_is_handed_out_raw_by_ranges(alice: User, logged: Run) -> None:
    api = Api(alice)
    whole = api.get(f"/jobs/{logged.job_id}/log")
    assert whole.content == PRINTED
    assert whole.headers["Content-Type"] == "application/octet-stream"
    assert (whole.headers["X-Log-Size"], whole.headers["X-Log-Run"], whole.headers["X-Log-Complete"]) == (
        str(len(PRINTED)), "1", "false",
    )  # fmt: skip
    assert api.get(f"/jobs/{logged.job_id}/log", start=2, end=5).content == PRINTED[2:5]
    tail = api.get(f"/jobs/{logged.job_id}/log", start=-3)
    assert (tail.content, tail.headers["X-Log-Start"]) == (PRINTED[-3:], str(len(PRINTED) - 3))
    assert api.get(f"/jobs/{logged.job_id}/log", start=10**15).content == b""
    assert api.get(f"/jobs/{logged.job_id}/log", run=9).status_code == 404


def test_a_job_that_has_not_run_has_an_empty_log(alice: User) -> None:
    answer = Api(alice).get(f"/jobs/{factories.make_job(alice).pk}/log")
    assert (answer.status_code, answer.content) == (200, b"")


def test_the_files_of_a_job_are_listed_and_downloaded(alice: User, settings: Any, tmp_path: Path) -> None:
    settings.WORKSPACE_ROOT = tmp_path
    job = factories.make_job(alice)
    folder = tmp_path / str(alice.pk) / "jobs" / str(job.pk)
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "model.bin").write_bytes(b"\0\1")
    (folder / "link").symlink_to("/etc/passwd")
    api = Api(alice)
    assert [(f["path"], f["size"]) for f in api.get(f"/jobs/{job.pk}/files").json()["files"]] == [("sub/model.bin", 2)]
    answer = api.get(f"/jobs/{job.pk}/files/sub/model.bin")
    assert async_to_sync(whole)(answer) == b"\0\1"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="model.bin"'
    for path in ("link", "sub", "nothing", "../../etc/passwd", "%2e%2e/x", "sub/../sub/model.bin", "%00"):
        assert api.get(f"/jobs/{job.pk}/files/{path}").status_code == 404
