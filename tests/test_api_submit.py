"""Jobs submitted and previewed over the API: the same checks and words as the form."""

import json
import re
import uuid
from typing import Any

import pytest

from jobs.models import Job, Mount, Quota, Team
from jobs.states import JobState
from portal.models import User
from tests import factories
from tests.rigs.api import JOB, Api, errors

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
     '{"image": "a", "start_after": "0001-01-01T00:00:00+14:00"}',
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
    assert [reason["code"] for reason in never["reasons"]] == ["TOO_LARGE_GPUS", "FITS_WITH"]
    assert never["reasons"][0]["message"]
    assert not Job.objects.exists()


def test_a_preview_above_the_quota_is_never(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    factories.make_node("alpha", gpus=2)
    answer = Api(alice).post("/jobs/preview", JOB | {"gpus": 2}).json()
    assert answer["verdict"] == "never"
    assert answer["reasons"][0]["code"] == "QUOTA_GPUS"


def test_all_mistakes_are_told_at_once(alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=4)
    Quota.objects.create(user=alice, millicpus=2000)
    wrong = {"gpus": 9, "cpus": 3, "name": "", "limit": "soon", "mounts": ["nothing"]}
    told = [("cpus", "QUOTA_CPUS"), ("gpus", "TOO_LARGE_GPUS"), ("name", "NAME_EMPTY")]
    assert sorted(errors(Api(alice).submit(**wrong))) == sorted(
        [*told, ("limit", "BAD_DURATION"), ("mounts", "MOUNT_UNKNOWN")]
    )
    assert sorted(errors(Api(alice).submit(gpus=9, cpus=3, name=""))) == told


def test_who_is_in_several_teams_or_none_is_told_what_to_do(alice: User) -> None:
    factories.make_team("audio").members.add(alice)
    (told,) = Api(alice).submit().json()["errors"]
    assert "--team" in told["message"]
    (told,) = Api(factories.make_user("dora")).submit().json()["errors"]
    assert "ask an administrator" in told["message"]
