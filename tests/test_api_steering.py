"""Steering jobs that wait or run, over the API."""

import json
from typing import Any

import pytest
from django.test import Client

from jobs import dispatch
from jobs.models import Job, Run
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(alice: User, client: Client) -> Client:
    client.force_login(alice)
    return client


def post(api: Client, path: str, body: Any = None) -> tuple[int, Any]:
    answer = api.post(f"/api/jobs{path}", json.dumps(body or {}), content_type="application/json")
    return answer.status_code, answer.json()


def test_a_job_asks_for_parts_labels_and_sizes(api: Client) -> None:
    node = factories.make_node("alpha", gpus=2, labels={"disk": "nvme"})
    node.gpus.update(slots=2)
    factories.make_gpu(node, 2, uuid="MIG-1", profile="1g.10gb")
    asked = {"image": "a", "script": "true", "gpus": 1, "node_labels": ["disk=nvme"], "movable": True}
    for extra, columns in (
        ({"gpu_percent": 37.5}, {"gpu_milli": 375}), ({"gpu_profile": "1g.10gb"}, {"gpu_profile": "1g.10gb"}),
        ({"gpus": 2, "least_gpus": 1, "stop_signal": "SIGINT"}, {"least_gpus": 1, "stop_signal": "SIGINT"}),
    ):  # fmt: skip
        status, said = post(api, "", {**asked, **extra})
        assert status == 201, said
        assert Job.objects.filter(pk=said["id"], movable=True, node_labels=["disk=nvme"], **columns).exists()
        assert {name: said[name] for name in extra} == extra


@pytest.mark.parametrize(
    ("extra", "field", "code"),
    [({"gpus": 2, "gpu_percent": 50}, "gpu_percent", "SHARE_OF_ONE"),
     ({"gpus": 2, "gpu_profile": "1g.10gb"}, "gpu_profile", "PROFILE_OF_ONE"),
     ({"gpus": 1, "gpu_profile": "half"}, "gpu_profile", "PROFILE_FORM"),
     ({"gpus": 1, "least_gpus": 2}, "least_gpus", "LEAST_RANGE"),
     ({"stop_signal": "SIGKILL"}, "stop_signal", "SIGNAL_UNKNOWN"),
     ({"node_labels": ["nvme"]}, "node_labels", "LABEL_FORM"),
     ({"gpus": 1, "node_labels": ["disk=nvme"]}, "node_labels", "NO_LABELS"),
     ({"gpus": 1, "gpu_percent": 1}, "gpu_percent", "NO_SHARED_GPU"),
     ({"gpus": 1, "gpu_profile": "7g.80gb"}, "gpu_profile", "NO_GPU_PROFILE")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_at_its_field(
    api: Client, extra: dict[str, Any], field: str, code: str
) -> None:  # fmt: skip
    """NVIDIA/k8s-device-plugin#446, nanoporetech/dorado#812: CUDA sees one MIG instance, whatever it is given."""
    factories.make_node("alpha")
    status, said = post(api, "", {"image": "a", "script": "true", **extra})
    assert (status, [(error["field"], error["code"]) for error in said["errors"]]) == (422, [(field, code)])


def test_moving_extending_and_amending(api: Client, alice: User) -> None:
    run = factories.make_run(factories.make_job(alice), factories.make_node("alpha", gpus=2))
    status, said = post(api, f"/{run.job_id}/extend", {"extension": "2h"})
    assert (status, said["granted"], said["delayed"]) == (200, True, [])
    assert said["job"]["limit_seconds"] == 3600 + 7200
    waits = factories.make_job(alice, gpus=2)
    assert post(api, f"/{waits.pk}/amend", {"limit": 600})[1]["changed"]
    assert post(api, f"/{waits.pk}/amend", {"cpus": 0.5, "memory_gib": 0.5})[1]["changed"]
    assert post(api, f"/{waits.pk}/amend", {"limit": 3700})[1]["errors"][0]["code"] == "ONLY_SHORTER"
    assert post(api, f"/{run.job_id}/move", {"gpus": 2})[1]["errors"][0]["code"] == "NOT_ELASTIC"
    assert post(api, f"/{run.job_id}/move")[1]["changed"]
    assert Run.objects.get(pk=run.pk).wish == "REBIND"
    assert post(api, f"/{run.job_id}/extend", {"extension": "x"})[1]["errors"][0]["code"] == "BAD_DURATION"


def test_who_may_not_is_told_who_may(api: Client, alice: User, bob: User) -> None:
    """An owner is not told that the owner may do what only administrators may."""
    own, other = factories.make_job(alice), factories.make_job(bob)
    for path, body, sentence in (
        (f"/{own.pk}/pin", {}, "Only an administrator may do this."),
        (f"/{own.pk}/unpin", {}, "Only an administrator may do this."),
        (f"/{other.pk}/reorder", {"to": "up"}, "Only its owner or an administrator may do this."),
        (f"/{other.pk}/cancel", {}, "Only its owner, a lead of its team or an administrator may do this."),
    ):
        status, said = post(api, path, body)
        assert (status, said["errors"][0]["message"]) == (403, sentence), path
    page = api.post(f"/jobs/{own.pk}/pin/", follow=True).content.decode()
    assert "Only an administrator may do this." in page


def test_another_model_and_fewer_labels(api: Client, alice: User) -> None:
    factories.make_node("alpha", gpus=1, labels={"disk": "nvme"})
    waits = factories.make_job(alice, gpu_model="NVIDIA H100", node_labels=["disk=nvme", "net=ib"])
    status, said = post(api, f"/{waits.pk}/amend", {"gpu_model": "", "node_labels": ["disk=nvme"]})
    assert (status, said["job"]["gpu_model"], said["job"]["node_labels"]) == (200, "", ["disk=nvme"])
    status, said = post(api, f"/{waits.pk}/amend", {"gpu_model": "NVIDIA B200"})
    assert (status, said["errors"][0]["code"]) == (422, "NO_GPU_MODEL")


def test_why_tells_what_to_post_so_that_it_starts_now_and_lists_tell_of_borrowed_gpus(api: Client, alice: User) -> None:
    factories.make_team("theory", guaranteed_gpus=2)
    run = factories.make_run(factories.make_job(alice), factories.make_node("alpha", gpus=2))
    waits = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    said = api.get(f"/api/jobs/{waits.pk}/why").json()
    assert ([way["changes"] for way in said["ways"]], said["ways_of"]) == ([{"gpus": 1}], "")
    lent = {job["id"]: job["loan"] for job in api.get("/api/jobs").json()["jobs"]}
    assert lent[run.job_id].startswith("Its GPUs are borrowed: team")
    assert lent[waits.pk] == ""
