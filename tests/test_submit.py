"""Taking requests in: everything wrong at once, nothing stored before it is right, nothing twice."""

import dataclasses
import uuid
from typing import Any

import pytest

from gpus.models import Node
from jobs import dispatch, secretbox
from jobs.images import Allowed, full_image_name
from jobs.models import Cluster, Job, Mount, Quota, Team
from jobs.preview import preview
from jobs.request import JobRequest
from jobs.states import JobState
from jobs.submit import Refused, submit
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def ask(**fields: Any) -> JobRequest:
    return JobRequest(**{"name": "train", "image": "busybox", "script": "true", "gpus": 1, **fields})


def send(request: JobRequest, owner: User, team: Team) -> Job:
    return submit(request, owner=owner, team=team, submission=uuid.uuid4())


def refusals(request: JobRequest, owner: User, team: Team) -> dict[str, Any]:
    with pytest.raises(Refused) as caught:
        send(request, owner, team)
    assert not Job.objects.exists(), "nothing is stored before it is right"
    return {**{r.code: r for r in caught.value.refusals}, **{p.code: p for p in caught.value.problems}}


def test_a_good_request_is_queued_with_an_event(alice: User, vision: Team) -> None:
    job = send(ask(), alice, vision)
    assert job.state == JobState.QUEUED
    event = job.events.get()
    assert (event.kind, event.new_state, event.actor) == ("SUBMITTED", "QUEUED", alice)


def test_a_double_post_gives_one_job(alice: User, vision: Team) -> None:
    submission = uuid.uuid4()
    jobs = [submit(ask(), owner=alice, team=vision, submission=submission) for _ in range(2)]
    assert jobs[0].pk == jobs[1].pk
    assert Job.objects.count() == 1


def test_everything_wrong_is_told_at_once_with_numbers(alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, gpus=4, job_gpus=2, limit_seconds=3600, priority=1, millicpus=4000)
    found = refusals(ask(name="", gpus=3, limit_seconds=7200, priority=3, millicpus=8000), alice, vision)
    assert set(found) == {"NAME_EMPTY", "LARGEST_JOB", "LONGEST_LIMIT", "HIGHEST_PRIORITY", "QUOTA_CPUS"}
    assert (found["LARGEST_JOB"].asked, found["LARGEST_JOB"].limit, found["LARGEST_JOB"].nearest) == (3, 2, 2)


def test_the_teams_quota_refuses_too(alice: User, vision: Team) -> None:
    Quota.objects.create(team=vision, gpus=1)
    found = refusals(ask(gpus=2), alice, vision)
    assert (found["QUOTA_GPUS"].scope, found["QUOTA_GPUS"].name) == ("team", "vision")


def test_a_user_without_a_quota_has_everybodys(alice: User, vision: Team) -> None:
    Quota.objects.create(job_gpus=1, gpus=8)
    Quota.objects.create(user=alice, gpus=2)
    found = refusals(ask(gpus=2), alice, vision)
    assert found["LARGEST_JOB"].limit == 1


def test_the_queue_itself_may_be_full(alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, queued_jobs=2)
    for _ in range(2):
        send(ask(), alice, vision)
    with pytest.raises(Refused) as caught:
        send(ask(), alice, vision)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.used, refusal.limit) == ("QUOTA_QUEUED", 2, 2)
    assert Job.objects.count() == 2


def test_a_budget_smaller_than_the_job_is_refused_with_the_limit_that_would_pass(alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, gpu_hours=10)
    found = refusals(ask(gpus=2, limit_seconds=6 * 3600), alice, vision)
    assert found["BUDGET_SIZE"].nearest == 5 * 3600


def test_no_limit_needs_permission(alice: User, vision: Team) -> None:
    assert "NO_LIMIT_FORBIDDEN" in refusals(ask(limit_seconds=None), alice, vision)
    alice.may_run_unlimited = True
    alice.save()
    assert send(ask(limit_seconds=None), alice, vision).limit_seconds is None


def test_only_members_submit_for_a_team(charlie: User, vision: Team) -> None:
    assert "NOT_IN_TEAM" in refusals(ask(), charlie, vision)


def test_only_the_teams_mounts_may_be_asked_for_and_none_as_root(alice: User, vision: Team) -> None:
    """ScottG489/conjob#11: whoever could name a path had the host."""
    theirs = Mount.objects.create(name="theirs", source="/data/theirs")
    theirs.teams.add(factories.make_team("audio"))
    everybodys = Mount.objects.create(name="sets", source="/data/sets")
    assert "MOUNT_NOT_ALLOWED" in refusals(ask(mounts=(theirs.pk,)), alice, vision)
    alice.may_run_as_root = True
    alice.save()
    assert "MOUNTS_AS_ROOT" in refusals(ask(mounts=(everybodys.pk,)), alice, vision)
    alice.may_run_as_root = False
    alice.save()
    assert list(send(ask(mounts=(everybodys.pk,)), alice, vision).mounts.all()) == [everybodys]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [({"gpus": 4}, "TOO_LARGE_GPUS", "gpus"), ({"gpu_model": "NVIDIA H100"}, "NO_GPU_MODEL", "gpu_model"),
     ({"gpu_memory_mib": 90_000}, "NO_GPU_MEMORY", "gpu_memory_mib"),
     ({"millicpus": 64_000}, "TOO_LARGE_CPUS", "millicpus"),
     ({"memory_mib": 999_999}, "TOO_LARGE_MEMORY", "memory_mib")],
)  # fmt: skip
def test_what_no_host_can_run_is_refused_at_once(
    fields: dict[str, Any], code: str, field: str, alice: User, vision: Team
) -> None:
    """codalab/codalab-worksheets#861, microsoft/pai#4985: impossible requests waited for ever."""
    factories.make_node("alpha", gpus=2, cordoned=True)
    found = refusals(ask(**fields), alice, vision)
    assert found[code].field == field
    assert found[code].params["node" if "TOO" in code else "code"]


def test_hosts_that_have_not_told_what_they_have_refuse_nothing(alice: User, vision: Team) -> None:
    """roscisz/TensorHive#70."""
    factories.make_node("alpha", gpus=2)
    factories.make_node("beta", gpus=0, gpu_status=Node.GpuStatus.UNKNOWN)
    assert send(ask(gpus=4), alice, vision).state == JobState.QUEUED


def test_a_job_taken_in_before_the_hosts_shrank_waits_and_says_that_first(alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=2)
    job = send(ask(gpus=2), alice, vision)
    Quota.objects.create(user=alice, gpus=1)
    node.gpus.filter(index=1).update(hidden=True)
    dispatch.run_pass()
    job.refresh_from_db()
    assert [reason["code"] for reason in job.wait_reasons] == ["TOO_LARGE_GPUS", "QUOTA_GPUS", "FITS_WITH"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("A=B", "VARIABLE_NAME"), ("1X", "VARIABLE_NAME"), ("", "VARIABLE_NAME"), ("A\0B", "VARIABLE_NAME"),
     ("NVIDIA_VISIBLE_DEVICES", "VARIABLE_RESERVED"), ("nvidia_visible_devices", "VARIABLE_RESERVED"),
     ("CUDA_VISIBLE_DEVICES", "VARIABLE_RESERVED"), ("LD_PRELOAD", "VARIABLE_RESERVED")],
)  # fmt: skip
def test_bad_names_of_variables_are_refused_with_their_row(name: str, code: str, alice: User, vision: Team) -> None:
    """docker/docker-py#1317: a name with `=` silently became another variable; ytsaurus/ytsaurus#269 for NVIDIA_*."""
    found = refusals(ask(environment=(("OK", "1"), (name, "all"))), alice, vision)
    assert found[code].params["row"] == 2


@pytest.mark.parametrize(
    ("image", "right"),
    [("busybox", True), ("nope/none:1", True), ("host:5000/a/b@sha256:" + "0" * 64, True), ("UPPER case", False),
     ("", False), ("a/Upper", False), ("a b", False), ("-x", False), ("a:", False), ("busybox\n", False)],
)  # fmt: skip
def test_image_references(image: str, right: bool) -> None:
    """docker/docker-py#2101: the engine's 400 came back as a traceback."""
    assert (ask(image=image).problems() == []) is right


def test_images_can_be_limited_by_an_admin(alice: User, vision: Team) -> None:
    Cluster.objects.create(pk=1, image_patterns="registry.lab/*\nbusybox")
    assert "IMAGE_NOT_ALLOWED" in refusals(ask(image="evil/miner"), alice, vision)
    assert send(ask(image="registry.lab/a/b:2"), alice, vision)
    assert send(ask(image="docker.io/library/busybox:latest"), alice, vision)


def test_full_names_of_images() -> None:
    assert full_image_name("busybox") == "docker.io/library/busybox:latest"
    assert full_image_name("a/b:1") == "docker.io/a/b:1"
    assert not Allowed("busybox*")("busybox.evil/x")


def test_secrets_are_stored_sealed_and_only_sealed(alice: User, vision: Team) -> None:
    """azkaban/azkaban#2396: secrets lay readable in the database and on pages."""
    request = ask(environment=(("TOKEN", "hunter2"), ("PLAIN", "x=y=z")), secret_names=frozenset({"TOKEN"}))
    job = Job.objects.get(pk=send(request, alice, vision).pk)
    assert job.environment == {"PLAIN": "x=y=z"}
    assert "hunter2" not in str(Job.objects.values().get(pk=job.pk))
    assert secretbox.open_(job.secrets_encrypted["TOKEN"]) == "hunter2"


def test_values_of_variables_keep_every_byte(alice: User, vision: Team) -> None:
    rows = (("A", "x=y=z"), ("B", "two\nlines"), ("C", "žluťoučký 🎯"), ("D", ""), ("E", '"q"'), ("F", " lead"))
    assert Job.objects.get(pk=send(ask(environment=rows), alice, vision).pk).environment == dict(rows)


@pytest.mark.parametrize("model", ["", "NVIDIA A100-SXM4-40GB"])
def test_more_of_the_only_model_than_a_quota_allows_is_refused_by_name_or_not(
    model: str, alice: User, vision: Team
) -> None:
    gpu = factories.make_node("alpha", gpus=4).gpus.all()[0]
    Quota.objects.create(user=alice, gpus_by_model={gpu.model: 1})
    request = ask(gpus=2, gpu_model=model and gpu.model)
    found = refusals(request, alice, vision)["QUOTA_MODEL"]
    assert (found.model, found.asked, found.limit, found.nearest) == (gpu.model, 2, 1, 1)
    seen = preview(request, owner=alice, team=vision)
    assert (seen.verdict, [r.code for r in seen.refusals]) == ("never", ["QUOTA_MODEL"])
    assert send(ask(gpus=1), alice, vision)


def test_a_quota_by_model_refuses_nothing_that_other_models_would_do_for(alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=2)
    Quota.objects.create(user=alice, gpus_by_model={node.gpus.all()[0].model: 1})
    factories.make_gpu(node, 2, model="NVIDIA L4")
    assert send(ask(gpus=2), alice, vision)
    hidden = node.gpus.filter(model="NVIDIA L4")
    hidden.update(hidden=True)
    with pytest.raises(Refused):
        send(ask(gpus=2), alice, vision)


def test_a_share_is_refused_where_no_gpu_is_cut(alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=2)
    found = refusals(ask(gpu_milli=10), alice, vision)["NO_SHARED_GPU"]
    assert found.field == "gpu_milli"
    assert preview(ask(gpu_milli=10), owner=alice, team=vision).verdict == "never"
    node.gpus.filter(index=0).update(slots=4)
    seen = preview(ask(gpu_milli=300), owner=alice, team=vision)
    assert (seen.verdict, seen.gpu_milli) == ("now", 500), "the panel counts what will be charged"
    assert send(ask(gpu_milli=300), alice, vision).gpu_milli == 300, "the job keeps what it asked for"


def test_a_budget_that_the_slots_of_a_share_pass_is_never_enough(alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=1).gpus.update(slots=2)
    Quota.objects.create(user=alice, gpu_hours=1)
    assert "BUDGET_SIZE" in refusals(ask(gpu_milli=300, limit_seconds=3 * 3600), alice, vision)
    assert send(ask(gpu_milli=300, limit_seconds=2 * 3600), alice, vision)


class TestPreview:
    def test_says_where_it_would_start_now(self, alice: User, vision: Team) -> None:
        factories.make_node("alpha")
        found = preview(ask(), owner=alice, team=vision)
        assert (found.verdict, found.node) == ("now", "alpha")
        assert not Job.objects.exists()

    def test_says_what_it_would_wait_for_and_in_which_place(self, alice: User, bob: User, vision: Team) -> None:
        node = factories.make_node("alpha", gpus=1)
        factories.make_run(factories.make_job(bob), node)
        factories.make_job(alice)
        found = preview(ask(), owner=alice, team=vision)
        assert (found.verdict, found.position) == ("waits", 2)
        assert found.reasons[0]["code"] == "BUSY_GPUS"

    def test_says_never_and_why(self, alice: User, vision: Team) -> None:
        """codalab/codalab-worksheets#861: impossible requests waited for ever."""
        factories.make_node("alpha", gpus=2)
        found = preview(ask(gpus=4), owner=alice, team=vision)
        assert (found.verdict, found.reasons[0]["most"]) == ("never", 2)

    def test_says_never_for_a_quota_that_the_job_alone_passes(self, alice: User, vision: Team) -> None:
        factories.make_node("alpha")
        Quota.objects.create(user=alice, gpus=1)
        found = preview(ask(gpus=2), owner=alice, team=vision)
        assert (found.verdict, [r.code for r in found.refusals]) == ("never", ["QUOTA_GPUS"])

    def test_knows_a_silent_host(self, alice: User, vision: Team) -> None:
        Node.objects.filter(pk=factories.make_node("alpha").pk).update(last_seen=None)
        found = preview(ask(), owner=alice, team=vision)
        assert (found.verdict, found.reasons[0]["code"]) == ("waits", "NODES_SILENT")


def test_the_default_request_has_no_problems() -> None:
    assert ask().problems() == []
    assert dataclasses.replace(ask(), command_kind="image", script="").problems() == []
