"""Images that have to be fetched: progress while they come, and each refusal of a registry told apart."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs import secretbox, wording
from jobs.models import Job, RegistryLogin
from tests.rigs.processes import wait_until
from tests.rigs.registry import Registry, running_registry
from tests.rigs.stack import Stack
from tests.way.lab import Lab

LIMIT = (429, "TOOMANYREQUESTS", "You have reached your pull rate limit.")


@pytest.fixture(scope="module")
def _quick_retries(stack: Stack) -> Iterator[None]:
    stack.restart("node", PULL_RETRY="2")
    yield
    stack.restart("node")


@pytest.fixture
def registry(_quick_retries: None) -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def progress(lab: Lab, job: Job) -> dict[str, Any]:
    """What the run says of its start; empty while there is no run, and once it runs."""
    run = lab.call(lambda: job.runs.select_related("node").first())
    return run.progress if run is not None and run.state == "STARTING" else {}


def test_a_slow_pull_shows_its_progress_and_runs_only_once_it_runs(lab: Lab, registry: Registry) -> None:
    """microsoft/pai#2099, NVIDIA/DIGITS#729: RUNNING, and counted, while the image was still on its way."""
    registry.seconds = 60
    job = lab.submit("echo here", image=registry.image("slow"), gpus=1)
    wait_until(lambda: progress(lab, job).get("total_bytes", 0) > 0, "bytes of the pull")
    seen = lab.run(job)
    assert (seen.state, seen.started_at) == ("STARTING", None)
    assert seen.progress["done_bytes"] <= seen.progress["total_bytes"]
    assert lab.fresh(job).started_at is None
    registry.seconds = 0
    job = lab.end(job)
    assert (job.state, lab.log(job)) == ("SUCCEEDED", b"here\n")
    moves = lab.call(lambda: list(job.events.exclude(new_state="").values_list("new_state", flat=True)))
    assert moves == ["QUEUED", "PLACED", "STARTING", "RUNNING", "SUCCEEDED"]


def test_jobs_that_wait_for_one_image_share_one_pull(lab: Lab, registry: Registry) -> None:
    registry.seconds = 2
    jobs = [lab.submit("true", image=registry.image("shared")) for _ in range(3)]
    assert {lab.end(job).state for job in jobs} == {"SUCCEEDED"}
    assert len([line for line in registry.asked if "/blobs/" in line]) == 2, "config and layer, once each"
    assert len([line for line in registry.asked if "/manifests/" in line]) <= 4, "not again while they start"


def test_a_pull_that_breaks_off_with_its_engine_is_begun_anew(lab: Lab, registry: Registry) -> None:
    """An engine that goes down refuses what it was at: that ends no job for its image's sake."""
    registry.seconds = 4
    job = lab.submit("echo brought", image=registry.image("broken-off"))
    wait_until(lambda: progress(lab, job).get("total_bytes", 0) > 0, "bytes of the pull")
    lab.engine.restart()
    registry.seconds = 0
    job = lab.end(job)
    assert (job.state, lab.log(job)) == ("SUCCEEDED", b"brought\n")
    assert lab.call(lambda: job.runs.count()) == 1


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ((404, "MANIFEST_UNKNOWN", "manifest unknown"), "IMAGE_NOT_FOUND"),
        ((404, "NAME_UNKNOWN", "repository name not known to registry"), "IMAGE_NOT_FOUND"),
        ((401, "UNAUTHORIZED", "authentication required"), "IMAGE_AUTH"),
        ((403, "DENIED", "requested access to the resource is denied"), "IMAGE_AUTH"),
        ((500, "UNKNOWN", "the disk of the registry is full"), "PULL_FAILED"),
    ],
)
def test_a_registry_s_refusal_is_told_apart_and_frees_everything(
    lab: Lab, registry: Registry, refusal: tuple[int, str, str], reason: str
) -> None:
    """docker/docker-py#2101, #397, dockupdater/dockupdater#34: "no such image" was said of all of them."""
    registry.refuses_all = refusal
    job = lab.end(lab.submit("true", image=registry.image("refused"), gpus=1))
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", reason, None)
    run = lab.run(job)
    sentence = lab.call(lambda: wording.end_sentence(job, run))
    assert sentence
    assert "Traceback" not in sentence + run.engine_message
    assert lab.held_slots() == 0


def test_a_rate_limit_is_waited_for(lab: Lab, registry: Registry) -> None:
    """docker/docker-py#2715."""
    registry.refuses_all = LIMIT
    job = lab.submit("echo after all", image=registry.image("popular"), gpus=1)
    wait_until(lambda: progress(lab, job).get("code") == "PULL_RETRY", "it waits for the next try")
    assert lab.fresh(job).state == "STARTING"
    run = lab.call(lambda: job.runs.select_related("node").get())
    assert "no more downloads" in wording.progress(run)
    registry.refuses_all = None
    job = lab.end(job)
    assert (job.state, lab.log(job)) == ("SUCCEEDED", b"after all\n")
    assert lab.call(lambda: job.runs.count()) == 1


def test_a_rate_limit_that_lasts_ends_the_job_for_that_reason(lab: Lab, registry: Registry) -> None:
    registry.refuses_all = LIMIT
    job = lab.submit("true", image=registry.image("too-popular"), gpus=1)
    wait_until(lambda: progress(lab, job).get("code") == "PULL_RETRY", "it waits for the next try")
    long_ago = timezone.now() - timedelta(days=1)
    lab.call(lambda: job.runs.update(starting_at=long_ago))
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("FAILED", "IMAGE_RATE_LIMITED")
    assert lab.held_slots() == 0


def test_a_log_in_goes_to_its_registry_and_nowhere_else(lab: Lab, registry: Registry) -> None:
    """neuro-inc/apolo-cli#2376: what is secret is opened for one call, and shown to nobody."""
    registry.login = ("robot", "s3cret-of-the-registry")
    sealed = lab.call(lambda: secretbox.seal(registry.login[1]))
    row = lab.call(
        lambda: RegistryLogin.objects.create(
            registry=registry.address, username=registry.login[0], password_encrypted=sealed
        )
    )
    try:
        with running_registry() as other:
            private = lab.submit("echo private", image=registry.image("private"))
            public = lab.submit("echo public", image=other.image("public"))
            assert lab.log(lab.end(private)) == b"private\n"
            assert lab.log(lab.end(public)) == b"public\n"
            assert registry.heard
            assert other.heard == []
    finally:
        lab.call(row.delete)
    assert registry.login[1] not in lab.stack.log_of("node")
    assert registry.login[1] not in lab.run(private).engine_message


def test_without_the_log_in_it_is_refused_for_that_reason(lab: Lab, registry: Registry) -> None:
    registry.login = ("robot", "another secret")
    job = lab.end(lab.submit("true", image=registry.image("closed")))
    assert (job.state, job.end_reason) == ("FAILED", "IMAGE_AUTH")


def test_a_cancel_does_not_wait_for_a_pull(lab: Lab, registry: Registry) -> None:
    registry.seconds = 600
    job = lab.submit("true", image=registry.image("long"), gpus=1)
    wait_until(lambda: progress(lab, job).get("code") == "PULLING", "the pull")
    lab.cancel(job)
    job = lab.end(job)
    assert (job.state, job.end_reason, job.exit_code) == ("CANCELLED", "STOPPED_BY_USER", None)
    assert lab.held_slots() == 0
