"""What the form suggests can start, the preview agrees with itself, and what cannot start has a way out."""

import uuid
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from jobs import fairshare, formhelp, quotas, wording
from jobs.fairshare import Size
from jobs.forms import JobForm
from jobs.models import Job, Quota, Team
from jobs.quotas import Limits
from jobs.status import status
from portal.cli import request
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db
NO_LIMITS = Limits(scope="user", name="alice")
TOO_LARGE = [
    {"code": "TOO_LARGE_GPUS", "asked": 8, "most": 4, "node": "alpha"},
    {"code": "TOO_LARGE_MEMORY", "asked": 65536, "most": 24576, "node": "alpha"},
    {"code": "NO_GPU_MODEL", "model": "H100", "models": ["A100"]},
]


def typed(team: Team, **changes: str) -> dict[str, str]:
    return {
        "submission": str(uuid.uuid4()), "name": "train", "team": str(team.pk), "image": "busybox:latest",
        "command_kind": "script", "script": "true", "gpus": "1", "cpus": "4", "memory": "16 GiB", "limit": "2h",
        "priority": "1", **changes,
    }  # fmt: skip


def panel(client: Client, team: Team, **changes: str) -> Any:
    return client.post("/jobs/preview/", typed(team, **changes))


@pytest.mark.parametrize(
    ("host", "gpus", "size"),
    [(Size(4, 32000, 131072), 1, Size(1, 4000, 16384)), (Size(4, 8000, 16384), 1, Size(1, 2000, 4096)),
     (Size(4, 2000, 7900), 1, Size(1, 1000, 1024)), (Size(4, 2000, 3000), 2, Size(2, 1000, 1024)),
     (Size(2, 500, 700), 1, Size(1, 500, 256)), (Size(0, 2000, 4096), 0, Size(0, 2000, 4096))],
)  # fmt: skip
def test_a_suggested_size_is_a_fair_share_of_the_largest_host(host: Size, gpus: int, size: Size) -> None:
    assert fairshare.share(host, gpus, NO_LIMITS) == size


def test_the_form_begins_with_what_a_small_host_can_start(client: Client, alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=2, millicpus=4000, memory_mib=40960)
    node = factories.make_node("beta", gpus=4, millicpus=4000, memory_mib=40960)
    type(node).objects.filter(name="beta").update(memory_mib=8192, reserved_millicpus=1000, reserved_memory_mib=1024)
    form = JobForm(user=alice)
    assert (form.initial["gpus"], form.initial["cpus"], form.initial["memory"]) == (1, "1", "1 GiB")


def test_presets_go_no_further_than_limits_and_hardware(alice: User) -> None:
    factories.make_node("alpha", gpus=8)
    Quota.objects.create(user=alice, gpus=2, millicpus=6000)
    sizes = [(p["gpus"], p["cpus"]) for p in formhelp.presets(JobForm(user=alice).limits)]
    assert sizes == [(0, "4"), (1, "4"), (2, "6")]


def test_without_any_gpu_the_form_asks_for_none(alice: User) -> None:
    factories.make_node("alpha", gpus=0)
    assert JobForm(user=alice).initial["gpus"] == 0
    assert [p["gpus"] for p in formhelp.presets(NO_LIMITS)] == [0]


# --- the preview agrees with itself ---


def test_a_job_that_would_wait_counts_as_waiting_and_not_as_running(client: Client, alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=1)
    Quota.objects.create(user=alice, running_jobs=3, queued_jobs=20)
    factories.make_run(factories.make_job(alice, gpus=1), node)
    factories.make_job(alice)
    client.force_login(alice)
    answer = panel(client, vision)
    bars = {str(bar["label"]): (bar["used"], bar["after"]) for bar in answer.context["my_bars"]}
    assert answer.context["verdict"] == "waits"
    assert bars == {"Running jobs": ("1", ""), "Waiting jobs": ("1", "2")}


def test_limits_of_user_and_team_are_one_sentence_with_the_smaller_one(
    client: Client, alice: User, vision: Team
) -> None:
    factories.make_node("alpha", gpus=8)
    Quota.objects.create(user=alice, gpus=2)
    Quota.objects.create(team=vision, gpus=4)
    client.force_login(alice)
    sentence = "Your quota is 2 GPUs, that of team vision is 4 GPUs; 6 GPUs asked. 2 GPUs would pass."
    answer = panel(client, vision, gpus="6")
    assert answer.context["verdict"] == "never"
    assert answer.context["sentences"] == [sentence]
    assert client.post("/jobs/new/", typed(vision, gpus="6")).context["form"].errors["gpus"] == [sentence]


def test_two_limits_of_one_person_on_one_field_tell_one_nearest_value() -> None:
    asked = factories.make_job(factories.make_user("carol"), gpus=4, limit_seconds=7200)
    found = quotas.never(asked, Limits(scope="user", name="carol", limit_seconds=3600, gpu_seconds=7200))
    said = [sentence for _field, _code, sentence in wording.refusals(found, reader="carol")]
    assert sum("would pass" in sentence for sentence in said) == 1
    assert "30 min would pass." in said[1]


# --- what can't start ---


def test_a_job_that_cannot_start_is_marked_everywhere_with_a_way_out(client: Client, alice: User) -> None:
    job = factories.make_job(alice, gpus=8, wait_reasons=TOO_LARGE)
    client.force_login(alice)
    for path in ("/", "/jobs/", "/queue/", job.get_absolute_url()):
        assert "data-stuck" in client.get(path).text, path
    page = client.get(job.get_absolute_url()).text
    assert f"/jobs/new/?clone={job.pk}&amp;gpu_model=A100&amp;gpus=4&amp;memory=24%20GiB" in page
    assert "Clone with this change" in page


def test_the_way_out_names_the_nearest_values(alice: User) -> None:
    job = factories.make_job(alice, gpus=8, wait_reasons=TOO_LARGE)
    said = status(job, alice)
    assert said["cannot_start"]
    assert said["suggestion"] == "It could start with A100, 4 GPUs, 24 GiB of memory."
    assert said["changes"] == {"gpu_model": "A100", "gpus": "4", "memory": "24 GiB"}
    with translation.override("zh-hans"):
        assert "4" in status(job, alice)["suggestion"]


def test_a_job_that_waits_for_what_will_come_is_not_marked(client: Client, alice: User) -> None:
    reason = {"code": "BUSY_GPUS", "asked": 2, "free": 0, "total": 4, "node": "alpha"}
    job = factories.make_job(alice, wait_reasons=[reason])
    client.force_login(alice)
    assert "data-stuck" not in client.get("/jobs/").text
    assert (status(job, alice)["cannot_start"], status(job, alice)["suggestion"]) == (False, "")


def test_a_change_may_be_any_model(client: Client, alice: User, vision: Team) -> None:
    job = factories.make_job(alice, gpus=1, gpu_model="H100")
    client.force_login(alice)
    form = client.get(f"/jobs/new/?clone={job.pk}&gpu_model=").context["form"]
    assert form.initial["gpu_model"] == ""
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [({"asked": 2, "free": 0, "free_in_all": 0, "total": 8}, "All 8 GPUs that would do are in use."),
     ({"asked": 2, "free": 0, "total": 1}, "The only GPU that would do is in use."),
     ({"asked": 2, "free": 1, "total": 4}, "2 GPUs asked, and 1 of 4 is free."),
     ({"asked": 4, "free": 1, "free_in_all": 2, "total": 8}, "4 GPUs asked, and 2 of 8 are free."),
     ({"asked": 2, "free": 1, "free_in_all": 2, "total": 8},
      "2 of 8 GPUs are free, but not on one host: 2 GPUs asked, and a has the most, 1.")],
)  # fmt: skip
def test_busy_gpus_are_told_by_what_is_free(numbers: dict[str, int], sentence: str) -> None:
    assert wording.wait_reason({"code": "BUSY_GPUS", "node": "a", **numbers}) == sentence


@pytest.mark.parametrize(("text", "mib"), [("30", 30720), ("0.5", 512), ("100Mi", 100), ("2Gi", 2048), ("512m", 512)])
def test_memory_means_the_same_in_the_form_and_on_the_command_line(
    alice: User, vision: Team, text: str, mib: int
) -> None:
    form = JobForm(typed(vision, memory=text, shm="16Mi", gpu_memory=text), user=alice)
    assert form.is_valid(), form.errors
    asked = form.to_request()
    assert (asked.memory_mib, asked.gpu_memory_mib) == (mib, mib)
    nothing = dict.fromkeys(("script", "entrypoint", "cpus", "shm", "limit", "grace", "start_after"))
    body = request.body(command=["x"], image="a", own_entrypoint=False, gpu_memory=text, memory=text, env=[], secret=[],
                        **nothing)  # fmt: skip
    assert (body["memory_gib"] * 1024, body["gpu_memory_gib"] * 1024) == (mib, mib)


def test_what_a_share_of_a_cpu_is_called_does_not_matter(alice: User, vision: Team) -> None:
    for text, millicpus in (("0.3333333333333", 333), ("500m", 500), ("1.9999999", 2000)):
        form = JobForm(typed(vision, cpus=text), user=alice)
        assert form.is_valid(), form.errors
        assert form.to_request().millicpus == millicpus
