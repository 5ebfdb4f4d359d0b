"""A running job is given more time, and a waiting one asks for less than it was submitted with."""

from typing import Any

import pytest
from django.test import Client

from jobs import control, dispatch, units, wording
from jobs.amend import amend, lowered, submitted_with
from jobs.extend import extend
from jobs.models import Job, JobEvent, Quota
from jobs.submit import Refused
from portal.models import User
from tests import factories
from tests.rigs.verbs import codes, rules, run_of

pytestmark = pytest.mark.django_db


def test_more_time_is_granted_at_once_when_nobody_waits(alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"))
    assert run.deadline is not None
    found = extend(run.job, alice, 7200)
    run.refresh_from_db()
    assert (found.granted, found.delayed, run.deadline) == (True, {}, found.until)
    assert Job.objects.get(pk=run.job_id).limit_seconds == 3600 + 7200
    assert wording.event_sentence(JobEvent.objects.get(kind="EXTENDED")).startswith("Given 2 h more, until")


def test_who_would_delay_others_is_told_whom_and_by_how_much(alice: User, bob: User, root_admin: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1))
    waits = factories.make_job(bob)
    found = extend(run.job, alice, 7200)
    run.refresh_from_db()
    assert (found.granted, list(found.delayed), run.deadline == found.until) == (False, [waits.pk], False)
    late = found.delayed[waits.pk]
    assert late is None or abs(late - 7200) < 60
    assert f"#{waits.pk} by 2 h" in wording.extension(granted=False, until=found.until, delayed=found.delayed)
    assert extend(run.job, root_admin, 7200).granted, "an administrator answers for it"


def test_admins_may_allow_some_time_in_spite_of_others(alice: User, bob: User) -> None:
    run = run_of(alice, factories.make_node("alpha", gpus=1))
    factories.make_job(bob)
    rules(extension_hours=3)
    assert [extend(run.job, alice, 7200).granted for _ in range(2)] == [True, False], "3 hours in all"


def test_a_limit_grows_no_longer_than_can_be_stored(alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"), limit_seconds=units.MOST - 3600)
    with pytest.raises(Refused) as refused:
        extend(run.job, alice, 7200)
    assert [problem.code for problem in refused.value.problems] == ["QUANTITY_LARGE"]
    assert extend(run.job, alice, 3600).granted


@pytest.mark.parametrize(
    ("quota", "code"),
    [({"limit_seconds": 5000}, "LONGEST_LIMIT"), ({"gpu_hours": 2}, "BUDGET_SIZE"), ({"gpu_hours": 3}, None)],
)
def test_more_time_stays_within_the_quota(
    quota: dict[str, int], code: str | None, alice: User, root_admin: User
) -> None:
    run = run_of(alice, factories.make_node("alpha"))
    Quota.objects.create(user=alice, **quota)
    if code is None:
        assert extend(run.job, alice, 7000).granted
        return
    with pytest.raises(Refused) as refused:
        extend(run.job, alice, 7200)
    assert code in codes(refused)
    assert extend(run.job, root_admin, 7200).granted


def test_there_is_nothing_to_extend_in_a_job_that_ends(alice: User) -> None:
    node = factories.make_node("alpha")
    unlimited = run_of(alice, node, limit_seconds=None)
    stopped = run_of(alice, node)
    control.cancel(stopped.job, alice)
    for job, code in (
        (factories.make_job(alice), "NOT_RUNNING"),
        (stopped.job, "NOT_RUNNING"),
        (unlimited.job, "NO_DEADLINE"),
    ):
        with pytest.raises(Refused) as refused:
            extend(job, alice, 3600)
        assert codes(refused) == [code]


def test_a_waiting_job_asks_for_less_and_keeps_its_place(alice: User) -> None:
    node = factories.make_node("alpha", gpus=2)
    run_of(alice, node)
    job = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    job.refresh_from_db()
    [way] = wording.ways(job)
    question = "Start now with 1 GPU in place of 2 GPUs? Once it runs, this cannot be taken back."
    assert way == {"text": "Run now with 1 GPU", "changes": {"gpus": 1}, "question": question}
    assert amend(job, alice, **way["changes"])
    dispatch.run_pass()
    after = Job.objects.get(pk=job.pk)
    assert (after.state, after.queued_at) == ("PLACED", job.queued_at)
    assert wording.event_sentence(JobEvent.objects.get(kind="AMENDED")) == "Asks for less now: 1 GPU, by alice"


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"gpus": 3}, "ONLY_LESS"), ({"gpus": 0}, "ONLY_LESS"), ({"limit_seconds": 4000}, "ONLY_SHORTER")],
)
def test_only_less_can_be_asked_for(asked: dict[str, Any], code: str, alice: User) -> None:
    job = factories.make_job(alice, gpus=2)
    with pytest.raises(Refused) as refused:
        amend(job, alice, **asked)
    assert codes(refused) == [code]


def test_cpus_and_memory_shrink_too_and_shared_memory_with_them(alice: User) -> None:
    job = factories.make_job(alice, millicpus=4000, memory_mib=4096, shm_mib=2048)
    assert amend(job, alice, millicpus=1500, memory_mib=1024)
    job.refresh_from_db()
    assert (job.millicpus, job.memory_mib, job.shm_mib) == (1500, 1024, 1024)
    said = wording.event_sentence(JobEvent.objects.get(kind="AMENDED"))
    assert said == "Asks for less now: 1.5 CPUs, 1 GiB of memory, by alice"
    for beyond in ({"millicpus": 50}, {"memory_mib": 8192}):
        with pytest.raises(Refused):
            amend(job, alice, **beyond)


def test_what_was_given_up_can_be_asked_for_again_but_no_more(alice: User, client: Client) -> None:
    job = factories.make_job(alice, gpus=4, least_gpus=2, memory_mib=4096, shm_mib=2048, limit_seconds=1800)
    assert amend(job, alice, gpus=1, memory_mib=1024, limit_seconds=60)
    assert amend(job, alice, limit_seconds=30)
    job.refresh_from_db()
    assert (job.least_gpus, job.shm_mib) == (1, 1024)
    assert lowered(job, submitted_with(job)) == {"gpus": 4, "memory_mib": 4096, "limit_seconds": 1800}
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert all(f"Back to {what}" in page for what in ("4 GPUs", "4 GiB of memory", "a time limit of 30 min"))
    for more in ({"gpus": 5}, {"memory_mib": 4097}, {"limit_seconds": 1801}):
        with pytest.raises(Refused):
            amend(job, alice, **more)
    assert amend(job, alice, gpus=4, memory_mib=4096, limit_seconds=1800)
    job.refresh_from_db()
    found = job.gpus, job.least_gpus, job.memory_mib, job.shm_mib, job.limit_seconds
    assert (found, lowered(job, submitted_with(job))) == ((4, 2, 4096, 2048, 1800), {})
    last = wording.event_sentence(JobEvent.objects.filter(kind="AMENDED").latest("pk"))
    assert last == "Asks for more again: 4 GPUs, 4 GiB of memory, a time limit of 30 min, by alice"


def test_a_shorter_limit_is_asked_about_with_both(alice: User) -> None:
    job = factories.make_job(alice, limit_seconds=1800)
    job.wait_reasons = [{"code": "FITS_WITHIN", "seconds": 600}]
    [way] = wording.ways(job)
    asked = "Start now with a time limit of 10 min in place of a time limit of 30 min?"
    assert way["question"] == f"{asked} The job is stopped once that is over."


def test_a_job_of_one_gpu_that_is_asked_for_more_is_told_what_can_be_done(alice: User) -> None:
    with pytest.raises(Refused) as refused:
        amend(factories.make_job(alice), alice, gpus=4)
    assert wording.problem(refused.value.problems[0]) == (
        "It was submitted with 1 GPU. A waiting job can be made smaller, and as large as that again, "
        "but no larger: for more, cancel it and submit a new one."
    )


def test_a_job_that_has_started_is_not_amended(alice: User) -> None:
    run = run_of(alice, factories.make_node("alpha"), gpus=2)
    assert not amend(run.job, alice, gpus=1)


def test_the_page_has_the_buttons_that_help_and_they_do_it(alice: User, client: Client) -> None:
    node = factories.make_node("alpha", gpus=2)
    run = run_of(alice, node)
    job = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Run now with 1 GPU" in page
    assert 'data-confirm="Start now with 1 GPU in place of 2 GPUs?' in page
    client.post(f"/jobs/{job.pk}/amend/", {"gpus": "1"})
    assert Job.objects.get(pk=job.pk).gpus == 1
    running = client.get(f"/jobs/{run.job_id}/").content.decode()
    assert all(word in running for word in ("act-extend", "act-move"))
    said = client.post(f"/jobs/{run.job_id}/extend/", {"extension": "half"}, follow=True).content.decode()
    assert "is no duration" in said
    said = client.post(f"/jobs/{run.job_id}/extend/", {"extension": "2h"}, follow=True).content.decode()
    assert "It may run until" in said or "would delay" in said


def other_hosts(alice: User) -> Job:
    """A job that waits for an A100 on a host with a fast disk, while an L4 is free on one without."""
    run_of(alice, factories.make_node("alpha", gpus=1, labels={"disk": "nvme", "net": "ib"}))
    beta = factories.make_node("beta", gpus=1, labels={"net": "ib"})
    beta.gpus.update(model="NVIDIA L4")
    labels = ["disk=nvme", "net=ib"]
    return factories.make_job(alice, gpu_model="NVIDIA A100-SXM4-40GB", node_labels=labels)


def test_a_button_takes_another_model_or_drops_a_label(alice: User, client: Client) -> None:
    job = other_hosts(alice)
    Job.objects.filter(pk=job.pk).update(node_labels=["net=ib"])
    dispatch.run_pass()
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Run now on NVIDIA L4" in page
    assert "Start now on the GPU model NVIDIA L4 in place of the GPU model NVIDIA A100-SXM4-40GB?" in page
    client.post(f"/jobs/{job.pk}/amend/", {"gpu_model": "NVIDIA L4"})
    assert wording.event_sentence(JobEvent.objects.get(kind="AMENDED")) == (
        "Asks for other GPUs now: the GPU model NVIDIA L4, by alice"
    )
    Job.objects.filter(pk=job.pk).update(node_labels=["disk=nvme", "net=ib"])
    dispatch.run_pass()
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Back to the GPU model NVIDIA A100-SXM4-40GB" in page
    assert "Run now on a host without disk=nvme" in page
    assert '<input type="hidden" name="node_labels" value="net=ib">' in page
    client.post(f"/jobs/{job.pk}/amend/", {"node_labels": "net=ib"})
    dispatch.run_pass()
    job.refresh_from_db()
    assert (job.state, job.node_labels, job.runs.get().node.name) == ("PLACED", ["net=ib"], "beta")


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"gpu_model": "NVIDIA H100"}, "NO_GPU_MODEL"), ({"gpu_model": "NVIDIA L4"}, "QUOTA_MODEL"),
     ({"node_labels": ["disk=nvme", "rack=7"]}, "ONLY_FEWER_LABELS")],
)  # fmt: skip
def test_what_the_job_could_not_have_been_submitted_with_is_refused(
    asked: dict[str, Any], code: str, alice: User
) -> None:
    job = other_hosts(alice)
    Job.objects.filter(pk=job.pk).update(node_labels=[])
    factories.make_job(alice)
    Quota.objects.create(user=alice, gpus_by_model={"NVIDIA L4": 0})
    with pytest.raises(Refused) as refused:
        amend(job, alice, **asked)
    assert codes(refused) == [code]
    assert amend(job, alice, gpu_model="")
    assert amend(job, alice, gpu_model="NVIDIA A100-SXM4-40GB"), "as it was submitted"


def test_who_may_not_change_the_job_is_told_who_may(alice: User, bob: User, client: Client) -> None:
    """What would help is said to everyone who sees the job, and never without its button or that."""
    run_of(alice, factories.make_node("alpha", gpus=2))
    job = factories.make_job(alice, gpus=2)
    dispatch.run_pass()
    client.force_login(bob)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "It would fit now with 1 GPU." in page
    assert "Run now with 1 GPU" not in page
    assert "Only its owner, a lead of its team or an administrator may do this." in page
