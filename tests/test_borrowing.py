"""Who borrows GPUs that are guaranteed to another team is warned, by the very rule that takes them back."""

from typing import Any

import pytest
from django.test import Client

from jobs import borrowing, dispatch
from jobs.models import Cluster, Job, Membership, Quota, Run, Team
from jobs.preview import preview
from jobs.request import JobRequest
from jobs.states import RunState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def lent(vision: Team) -> Team:
    """Alice's team, which is guaranteed 1 GPU, beside another that is guaranteed 2."""
    Cluster.get()
    Cluster.objects.update(protected_minutes=10)
    factories.make_team("speech", guaranteed_gpus=2)
    Quota.objects.update_or_create(team=vision, defaults={"guaranteed_gpus": 1})
    return vision


def asked(**fields: Any) -> JobRequest:
    sizes = {"millicpus": 1000, "memory_mib": 1024, "shm_mib": 64, "limit_seconds": 3600}
    return JobRequest(name="j", image="a", script="true", **{"gpus": 1, **sizes, **fields})


def test_the_page_of_a_job_says_that_its_gpus_are_borrowed_and_until_when(
    alice: User, lent: Team, client: Client
) -> None:
    node = factories.make_node("alpha", gpus=4)
    own, beyond = (factories.make_run(factories.make_job(alice, gpus=n), node) for n in (1, 2))
    client.force_login(alice)
    said = (
        "Its GPUs are borrowed: team vision is guaranteed 1 GPU, and this job (2 GPUs) goes beyond that. "
        "They can be taken back when their owners need them, once it has run for 10 min."
    )
    assert said in client.get(f"/jobs/{beyond.job_id}/").content.decode()
    assert client.get(f"/api/jobs/{beyond.job_id}").json()["loan"] == said
    assert "borrowed" not in client.get(f"/jobs/{own.job_id}/").content.decode()
    Cluster.objects.update(protected_minutes=0)
    assert "They can be taken back as soon as" in client.get(f"/jobs/{beyond.job_id}/").content.decode()


def test_who_is_told_is_who_would_be_stopped(alice: User, lent: Team, bob: User) -> None:
    """The owners' job takes back just the runs that were said to be borrowed."""
    Cluster.objects.update(protected_minutes=0)
    node = factories.make_node("alpha", gpus=3)
    runs = [factories.make_run(factories.make_job(alice), node) for _ in range(3)]
    told = [run.pk for run in runs if borrowing.of_run(run)]
    assert told == [runs[1].pk, runs[2].pk]
    speech = Team.objects.get(name="speech")
    Membership.objects.create(team=speech, user=bob)
    factories.make_job(bob, speech, gpus=2)
    dispatch.run_pass()
    assert set(Run.objects.filter(wish="PREEMPT").values_list("pk", flat=True)) == set(told)


def test_nothing_is_borrowed_where_no_other_team_is_guaranteed_gpus(alice: User, lent: Team) -> None:
    node = factories.make_node("alpha")
    run = [factories.make_run(factories.make_job(alice), node) for _ in range(2)][1]
    without = factories.make_run(factories.make_job(alice, gpus=0), run.node)
    assert borrowing.of_run(run)
    assert borrowing.of_run(without) is None
    Team.objects.get(name="speech").quota.delete()
    assert borrowing.of_run(run) is None


def test_a_preview_says_what_would_be_borrowed(alice: User, lent: Team, client: Client) -> None:
    node = factories.make_node("alpha", gpus=3)
    assert preview(asked(), owner=alice, team=lent).loan is None
    factories.make_run(factories.make_job(alice), node)
    found = preview(asked(gpus=2), owner=alice, team=lent)
    assert found.loan == borrowing.Loan(team="vision", guaranteed=1, milli=2000, protected=600)
    client.force_login(alice)
    body = {"image": "a", "script": "true", "gpus": 2, "cpus": 1, "memory_gib": 1, "limit": "1h"}
    said = client.post("/api/jobs/preview", body, content_type="application/json").json()
    assert said["loan"].startswith("Its GPUs would be borrowed: team vision is guaranteed 1 GPU")


def test_nobody_is_said_to_be_stopped_for_a_job_that_is_only_asked_about(alice: User, lent: Team) -> None:
    Cluster.objects.update(protected_minutes=0)
    node = factories.make_node("alpha", gpus=1)
    guest = factories.make_user("gustav", teams=(factories.make_team("guests"),))
    factories.make_run(factories.make_job(guest), node, state=RunState.RUNNING)
    assert [reason["code"] for reason in preview(asked(), owner=alice, team=lent).reasons] == ["WOULD_MAKE_WAY"]
    job: Job = factories.make_job(alice)
    dispatch.run_pass()
    job.refresh_from_db()
    assert [reason["code"] for reason in job.wait_reasons] == ["MAKING_WAY"]
