"""The admin's list of allowed images, also for jobs that were taken in before it."""

from typing import Any

import pytest
from django.test import Client

from jobs.board import board
from jobs.dispatch import run_pass
from jobs.images import Allowed
from jobs.looks import cannot_start
from jobs.models import Cluster, Job, Run
from jobs.rebind import rebind
from jobs.states import JobState
from jobs.status import status
from jobs.submit import Refused
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def allow(patterns: str) -> None:
    Cluster.get()
    Cluster.objects.update(image_patterns=patterns)


@pytest.mark.parametrize(("patterns", "image", "right"), [
    ("", "evil/miner", True), (" \n", "evil/miner", True), ("registry.lab/*", "registry.lab/a/b:2", True),
    ("registry.lab/*\nbusybox", "docker.io/library/busybox:latest", True), ("busybox", "busybox:1", False),
    ("registry.lab/*", "registry.lab.evil/a", False), ("a/*", "docker.io/a/b", True),
])  # fmt: skip
def test_images_are_allowed_by_their_full_names(patterns: str, image: str, right: bool) -> None:
    assert Allowed(patterns)(image) is right


@pytest.fixture
def barred(alice: User) -> Job:
    """A waiting job whose image is no longer allowed, with room for it."""
    factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice, image="evil/miner")
    allow("registry.lab/*")
    run_pass()
    job.refresh_from_db()
    return job


def test_a_waiting_job_whose_image_is_no_longer_allowed_does_not_start(barred: Job, alice: User) -> None:
    assert (barred.state, barred.wait_reasons) == (JobState.QUEUED, [{"code": "HELD_BY_IMAGE"}])
    assert cannot_start(barred)
    said = status(barred, alice)
    assert "no longer among those that an administrator allows" in said["headline"]
    assert "ask an administrator to allow it" in said["suggestion"]
    assert (said["place"], said["expected"]) == (None, None)


def test_such_a_job_is_ahead_of_nobody_and_stays_on_the_queue(barred: Job, alice: User, client: Client) -> None:
    other = factories.make_job(alice, image="registry.lab/good:1")
    shown = board(alice)
    assert [(e.job.pk, e.place) for e in shown.entries] == [(other.pk, 1)]
    assert [e.job.pk for e in shown.held] == [barred.pk]
    client.force_login(alice)
    assert "no longer among those" in client.get("/queue/").text
    run_pass()
    other.refresh_from_db()
    assert other.state == JobState.PLACED


def test_it_starts_once_its_image_is_allowed_again(barred: Job) -> None:
    allow("registry.lab/*\nevil/*")
    run_pass()
    barred.refresh_from_db()
    assert barred.state == JobState.PLACED


def test_a_list_that_changes_between_plan_and_placing_counts(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs import dispatch

    factories.make_node("alpha", gpus=1)
    job = factories.make_job(alice, image="evil/miner")
    plan = dispatch.make_plan

    def changed_meanwhile(*args: Any, **named: Any) -> Any:
        allow("registry.lab/*")
        return plan(*args, **named)

    monkeypatch.setattr(dispatch, "make_plan", changed_meanwhile)
    run_pass()
    job.refresh_from_db()
    assert (job.state, Run.objects.count()) == (JobState.QUEUED, 0)


def test_a_running_job_goes_on_and_is_not_stopped_for_a_move_that_could_not_end(alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    job = factories.make_job(alice, image="evil/miner")
    run = factories.make_run(job, node)
    allow("registry.lab/*")
    with pytest.raises(Refused) as caught:
        rebind(job, alice)
    assert [problem.code for problem in caught.value.problems] == ["IMAGE_NOT_ALLOWED"]
    run.refresh_from_db()
    assert run.wish == ""
