"""The API as programs use it: the same checks and words as the form, the same answers as the pages."""

import json
import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils import timezone

from gpus.history import host_key
from gpus.readings import GpuReading, HostReading, Process
from jobs import logstore
from jobs.models import Job, Mount, Quota, Run, Team
from jobs.states import JobState
from jobs.status import status
from portal import live
from portal.models import ApiToken, User
from tests import factories
from tests.rigs.redis import RedisServer

PRINTED = b"caf\xc3\xa9\r\x1b[31m\xff\x00 end"
JOB = {"image": "dockyard-test/busybox", "script": "echo hello"}


class Api:
    """A program that speaks for a user."""

    def __init__(self, user: User, scope: str = "write") -> None:
        self.token, self.secret = ApiToken.issue(user, name="test", scope=scope, expires_at=None)
        self.client = Client(headers={"authorization": f"Bearer {self.secret}"})

    def get(self, path: str, **params: Any) -> Any:
        return self.client.get(f"/api{path}", params)

    def post(self, path: str, body: Any = None) -> Any:
        return self.client.post(f"/api{path}", json.dumps(body or {}), content_type="application/json")

    def submit(self, **fields: Any) -> Any:
        return self.post("/jobs", JOB | fields)


async def whole(answer: Any) -> bytes:
    return b"".join([piece async for piece in answer.streaming_content])


def errors(answer: Any) -> list[tuple[str, str]]:
    return [(error["field"], error["code"]) for error in answer.json()["errors"]]


# --- who ---


def test_a_stranger_is_told_to_log_in(client: Client, db: None) -> None:
    answer = client.get("/api/jobs")
    assert answer.status_code == 401
    assert errors(answer) == [("", "NOT_LOGGED_IN")]


def test_a_token_speaks_for_its_user(alice: User) -> None:
    me = Api(alice).get("/me").json()
    assert (me["username"], me["teams"], me["staff"]) == ("alice", ["vision"], False)


def test_a_token_is_kept_only_as_its_hash(alice: User) -> None:
    api = Api(alice)
    assert api.secret not in json.dumps(list(ApiToken.objects.values()), default=str)


def test_a_token_that_may_only_read_submits_nothing(alice: User) -> None:
    api = Api(alice, scope="read")
    assert api.get("/jobs").status_code == 200
    assert api.post("/jobs/preview", JOB).status_code == 200
    answer = api.submit()
    assert (answer.status_code, errors(answer)) == (403, [("", "FORBIDDEN")])
    assert not Job.objects.exists()


def test_an_expired_token_is_refused(alice: User) -> None:
    api = Api(alice)
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert api.get("/me").status_code == 401


def test_the_token_of_a_deactivated_user_is_refused(alice: User) -> None:
    api = Api(alice)
    User.objects.update(is_active=False)
    assert api.get("/me").status_code == 401


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer dky_nothing", "Basic YTpi", "dky_x", "Bearer \x00"])
def test_what_is_no_token_is_refused(header: str, alice: User) -> None:
    assert Client(headers={"authorization": header}).get("/api/me").status_code == 401


def test_a_bad_token_does_not_fall_back_to_the_session(alice: User) -> None:
    client = Client(headers={"authorization": "Bearer dky_nothing"})
    client.force_login(alice)
    assert client.get("/api/me").status_code == 401


def test_use_is_remembered_at_most_once_a_minute(alice: User) -> None:
    api = Api(alice)
    api.get("/me")
    first = ApiToken.objects.get().last_used_at
    api.get("/me")
    assert first is not None
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=2))
    api.get("/me")
    assert ApiToken.objects.get().last_used_at >= first


def test_a_browser_needs_the_csrf_token_to_write(alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.get("/api/me").status_code == 200
    answer = client.post("/api/jobs", json.dumps(JOB), content_type="application/json")
    assert (answer.status_code, errors(answer)) == (403, [("", "CSRF")])
    client.cookies["csrftoken"] = "a" * 32
    answer = client.post(
        "/api/jobs", json.dumps(JOB), content_type="application/json", headers={"x-csrftoken": "a" * 32}
    )
    assert answer.status_code == 201


# --- log-in ---


def log_in(client: Client, **fields: Any) -> Any:
    body = {"username": "alice", "password": factories.PASSWORD} | fields
    return client.post("/api/login", json.dumps(body), content_type="application/json")


def test_a_password_is_traded_for_a_token(client: Client, alice: User) -> None:
    answer = log_in(client, name="laptop", scope="read", days=7)
    assert answer.status_code == 201
    token = ApiToken.objects.get()
    assert (token.name, token.scope, token.user) == ("laptop", "read", alice)
    assert timedelta(days=6) < token.expires_at - timezone.now() < timedelta(days=8)
    me = client.get("/api/me", headers={"authorization": f"Bearer {answer.json()['token']}"})
    assert me.json()["username"] == "alice"


def test_a_wrong_password_and_an_unknown_user_look_the_same(client: Client, alice: User) -> None:
    wrong, unknown = log_in(client, password="nonsense"), log_in(client, username="nobody")
    assert (wrong.status_code, wrong.json()) == (unknown.status_code, unknown.json())
    assert wrong.status_code == 401


def test_a_deactivated_user_gets_no_token(client: Client, alice: User) -> None:
    User.objects.update(is_active=False)
    assert log_in(client).status_code == 401
    assert not ApiToken.objects.exists()


def test_guessing_passwords_is_stopped(client: Client, alice: User) -> None:
    codes = [log_in(client, password=f"guess {n}").status_code for n in range(8)]
    assert (codes[0], codes[-1]) == (401, 429)
    assert log_in(client).status_code == 429


def test_logging_out_revokes_the_token(alice: User) -> None:
    api = Api(alice)
    assert api.client.delete("/api/login").status_code == 204
    assert api.get("/me").status_code == 401


# --- submitting ---


def test_a_submitted_job_is_queued_as_asked(alice: User) -> None:
    answer = Api(alice).submit(
        name="train", gpus=2, gpu_model="A100", gpu_memory_gib=39.5, cpus=1.5, memory_gib=16, shm_gib=2, limit="1d 4h",
        priority="low", environment={"A": "x=y=z"}, secrets={"KEY": "hush"},
    )  # fmt: skip
    assert answer.status_code == 201
    job = Job.objects.get(pk=answer.json()["id"])
    assert (job.name, job.gpus, job.gpu_model, job.gpu_memory_mib) == ("train", 2, "A100", 40448)
    assert (job.millicpus, job.memory_mib, job.shm_mib, job.limit_seconds) == (1500, 16384, 2048, 100800)
    assert (job.priority, job.environment, list(job.secrets_encrypted)) == (0, {"A": "x=y=z"}, ["KEY"])
    assert (job.state, job.team.name, job.owner) == (JobState.QUEUED, "vision", alice)


def test_only_the_image_is_needed(alice: User) -> None:
    answer = Api(alice).post("/jobs", {"image": "registry:5000/team/trainer:v2"})
    assert answer.status_code == 201
    job = Job.objects.get()
    assert (job.name, job.command_kind, job.gpus, job.limit_seconds) == ("trainer", "image", 0, 86400)


def test_little_memory_brings_no_complaint_about_shared_memory(alice: User) -> None:
    assert Api(alice).submit(memory_gib=0.125).status_code == 201
    assert Job.objects.get().shm_mib == 64, "half of it, as the form has it"


def test_the_image_s_own_entry_point_gets_its_arguments(alice: User) -> None:
    body = {"image": "trainer", "entrypoint": ["python", "-m"], "arguments": ["train", "--lr", "0.1"]}
    assert Api(alice).post("/jobs", body).status_code == 201
    job = Job.objects.get()
    assert (job.command_kind, job.entrypoint, job.arguments) == ("image", ["python", "-m"], ["train", "--lr", "0.1"])


def test_the_same_submission_is_the_same_job(alice: User) -> None:
    api, submission = Api(alice), str(uuid.uuid4())
    first, second = api.submit(submission=submission), api.submit(submission=submission, name="other")
    assert first.json()["id"] == second.json()["id"]
    assert Job.objects.count() == 1


def test_everything_wrong_is_said_at_once_in_the_form_s_words(alice: User) -> None:
    answer = Api(alice).submit(
        image="UPPER case", name=" ", cpus=0.01, shm_gib=4, environment={"NVIDIA_VISIBLE_DEVICES": "all", "1": ""}
    )
    assert answer.status_code == 422
    assert errors(answer) == [
        ("name", "NAME_EMPTY"), ("image", "BAD_IMAGE_REF"), ("cpus", "CPUS_SMALL"), ("shm_gib", "SHM_ABOVE_MEMORY"),
        ("environment", "VARIABLE_RESERVED"), ("environment", "VARIABLE_NAME"),
    ]  # fmt: skip
    assert all(error["message"] for error in answer.json()["errors"])


def test_a_quota_refuses_with_its_numbers(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=2, limit_seconds=3600)
    answer = Api(alice).submit(gpus=3, limit="2h")
    assert answer.status_code == 422
    by_code = {error["code"]: error for error in answer.json()["errors"]}
    assert set(by_code) == {"QUOTA_GPUS", "LONGEST_LIMIT"}
    assert {"asked": 3, "limit": 2, "nearest": 2}.items() <= by_code["QUOTA_GPUS"]["params"].items()
    assert (by_code["QUOTA_GPUS"]["field"], by_code["LONGEST_LIMIT"]["field"]) == ("gpus", "limit")
    assert "2 GPUs" in by_code["QUOTA_GPUS"]["message"]


def test_limits_of_user_and_team_are_one_error_in_the_form_s_words(alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=8)
    Quota.objects.create(user=alice, gpus=4)
    Quota.objects.create(team=vision, gpus=2)
    sentence = "Your quota is 4 GPUs, that of team vision is 2 GPUs; 6 GPUs asked. 2 GPUs would pass."
    (refused,) = Api(alice).submit(gpus=6).json()["errors"]
    assert (refused["field"], refused["code"], refused["message"]) == ("gpus", "QUOTA_GPUS", sentence)
    assert (refused["params"]["scope"], refused["params"]["nearest"]) == ("team", 2)
    seen = Api(alice).post("/jobs/preview", JOB | {"gpus": 6}).json()
    assert [reason["message"] for reason in seen["reasons"] if reason["code"] == "QUOTA_GPUS"] == [sentence]


def test_no_time_limit_needs_permission(alice: User) -> None:
    answer = Api(alice).submit(limit=None)
    assert errors(answer) == [("limit", "NO_LIMIT_FORBIDDEN")]
    User.objects.update(may_run_unlimited=True)
    assert Api(alice).submit(limit=None).status_code == 201


def test_members_of_several_teams_say_which(alice: User) -> None:
    audio = factories.make_team("audio")
    audio.members.add(alice)
    api = Api(alice)
    assert errors(api.submit()) == [("team", "TEAM_NEEDED")]
    assert errors(api.submit(team="nobody's")) == [("team", "TEAM_UNKNOWN")]
    assert api.submit(team="audio").json()["team"] == "audio"


def test_somebody_without_a_team_is_told(db: None) -> None:
    assert errors(Api(factories.make_user("dora")).submit()) == [("team", "NO_TEAM")]


def test_mounts_are_asked_for_by_name_and_only_one_s_own(alice: User, vision: Team) -> None:
    data = Mount.objects.create(name="imagenet", source="/data/imagenet")
    data.teams.add(vision)
    other = Mount.objects.create(name="theirs", source="/data/theirs")
    other.teams.add(factories.make_team("audio"))
    api = Api(alice)
    job = Job.objects.get(pk=api.submit(mounts=["imagenet"]).json()["id"])
    assert list(job.mounts.all()) == [data]
    for name in ("theirs", "nothing", "/etc", "../..", "/var/run/docker.sock", "imagenet/", "imagenet:rw"):
        assert errors(api.submit(mounts=[name])) == [("mounts", "MOUNT_UNKNOWN")]


@pytest.mark.parametrize(
    "field",
    ["privileged", "devices", "cap_add", "cap_drop", "pid_mode", "ipc_mode", "network_mode", "security_opt", "runtime",
     "volumes", "binds", "user", "uid", "host_config", "device_requests", "owner", "state", "millicpus"],
)  # fmt: skip
def test_fields_that_are_not_offered_are_refused(field: str, alice: User) -> None:
    """NVIDIA/nvidia-docker#764, #1405: no privileged mode, devices, capabilities or host namespaces by any field."""
    answer = Api(alice).submit(**{field: True})
    assert answer.status_code == 422
    assert errors(answer) == [(field, "UNKNOWN_FIELD")]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", "1", '"text"', '{"image": NaN}', '{"image": "a", "cpus": Infinity}', "\xff",
     '{"image": "a", "gpus": 1e400}', '{"image": "a", "gpus": ' + "9" * 5000 + "}", '{"image": "\\ud800"}',
     '{"image": "a", "team": "\\u0000"}', '{"image": "a", "environment": {"A": 1}}', '{"image": "a", "gpus": "many"}',
     '{"image": "a", "limit": "soon"}', '{"image": "a", "limit": true}', '{"image": "a", "start_after": "2026-01-01"}',
     '{"image": "a", "gpus": -1}', '{"image": "a", "memory_gib": 1e9}', '{"image": "a", "mounts": ["\\u0000"]}',
     '{"image": "a", "environment": {"A": "\\u0000"}}', '{"image": "a", "gpu_model": "\\u0000", "gpus": 1}',
     '{"image": "a", "script": "\\u0000"}', '{"image": "a", "name": "\\u0000"}', "[" * 10000],
)  # fmt: skip
def test_a_malformed_body_is_refused_in_a_sentence(body: str, alice: User) -> None:
    for path in ("/api/jobs", "/api/jobs/preview"):
        answer = Api(alice).client.post(path, body.encode("latin-1"), content_type="application/json")
        assert answer.status_code in (400, 422), answer.content
        assert all(error["code"] and error["message"] for error in answer.json()["errors"])
    assert not Job.objects.exists()


MISTAKES: list[tuple[str, Any]] = [
    ("image", 1), ("image", "a" * 400), ("script", ["a"]), ("gpus", "many"), ("gpus", 1.5), ("gpus", -1),
    ("gpus", 10**6), ("cpus", None), ("environment", []), ("environment", {"A": 1}), ("mounts", "data"),
    ("mounts", ["m"] * 200), ("priority", "huge"), ("submission", "x"), ("start_after", "2026-01-01"), ("limit", True),
    ("limit", "soon"), ("privileged", True), ("image", "\0"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), MISTAKES)
def test_refusals_are_in_the_reader_s_language(field: str, value: Any, alice: User) -> None:
    body, said = json.dumps(JOB | {field: value}), {}
    for language in ("en", "zh-hans"):
        headers = {"accept-language": language}
        answer = Api(alice).client.post("/api/jobs", body, content_type="application/json", headers=headers)
        assert (answer.status_code, answer.headers["Content-Language"]) == (422, language)
        said[language] = [error["message"] for error in answer.json()["errors"]]
    assert len(said["en"]) == len(said["zh-hans"])
    for english, chinese in zip(said["en"], said["zh-hans"], strict=True):
        assert re.search(r"[\u4e00-\u9fff]", chinese), chinese
        assert "does not do" not in english, "it has words of its own"


# --- previewing ---


def test_a_preview_says_now_waits_or_never_and_stores_nothing(alice: User) -> None:
    api = Api(alice)
    assert api.post("/jobs/preview", JOB | {"gpus": 1}).json()["verdict"] == "waits"
    factories.make_node("alpha", gpus=2)
    now = api.post("/jobs/preview", JOB | {"gpus": 1}).json()
    assert (now["verdict"], now["node"]) == ("now", "alpha")
    never = api.post("/jobs/preview", JOB | {"gpus": 4}).json()
    assert never["verdict"] == "never"
    assert [reason["code"] for reason in never["reasons"]] == ["TOO_LARGE_GPUS"]
    assert never["reasons"][0]["message"]
    assert not Job.objects.exists()


def test_a_preview_above_the_quota_is_never(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    factories.make_node("alpha", gpus=2)
    answer = Api(alice).post("/jobs/preview", JOB | {"gpus": 2}).json()
    assert answer["verdict"] == "never"
    assert answer["reasons"][0]["code"] == "QUOTA_GPUS"


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
    with django_assert_max_num_queries(25):
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
    assert (hidden["owner"], hidden["gpus"], hidden["name"], hidden["image"], hidden["reasons"]) == (
        "alice", 1, None, None, None,
    )  # fmt: skip
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


def test_hidden_gpus_are_for_admins(alice: User, root_admin: User) -> None:
    factories.make_node("alpha", gpus=2).gpus.filter(index=1).update(hidden=True)
    assert [gpu["index"] for gpu in Api(alice).get("/gpus").json()["nodes"][0]["gpus"]] == [0]
    hidden = Api(root_admin).get("/gpus").json()["nodes"][0]["gpus"][1]
    assert hidden["unavailable"]["code"] == "GPU_HIDDEN"


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


# --- secrets and the OpenAPI page ---


def test_the_value_of_a_secret_is_never_shown_again(alice: User, bob: User, root_admin: User) -> None:
    """neuro-inc/apolo-cli#2376, ansible/awx#10352, azkaban/azkaban#2396: only the name, to nobody the value."""
    made = Api(alice).submit(secrets={"API_KEY": "hush-hush-value"})
    assert b"hush-hush-value" not in made.content
    job = made.json()["id"]
    assert "hush-hush-value" not in json.dumps(list(Job.objects.values()), default=str)
    paths = [f"/jobs/{job}", f"/jobs/{job}/why", f"/jobs/{job}/events", "/jobs", "/queue"]
    for user in (alice, bob, root_admin):
        for path in paths:
            assert b"hush-hush-value" not in Api(user).get(path).content


def test_a_refused_secret_is_not_repeated_in_the_refusal(alice: User) -> None:
    answer = Api(alice).submit(secrets={"1 bad name": "hush-hush-value"})
    assert answer.status_code == 422
    assert b"hush-hush-value" not in answer.content


def test_the_openapi_page_needs_a_log_in_and_nothing_from_elsewhere(alice: User, client: Client) -> None:
    assert client.get("/api/docs").status_code == 302
    client.force_login(alice)
    page = client.get("/api/docs").content.decode()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    scripts = re.findall(r"<script([^>]*)>", page)
    assert all("src=" in script or "application/json" in script for script in scripts)
    schema = client.get("/api/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    assert "/api/jobs" in schema["paths"]
