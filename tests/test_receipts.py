"""A job's receipt: asked against used, and the request that would have done."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus.models import RunUse
from jobs import receipts, wording
from jobs.models import Allocation, Job
from jobs.receipt import Asked, Used, would_have_done
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

ASKED = Asked(gpus=4, millicpus=16_000, memory_mib=65_536, limit_seconds=24 * 3600, gpu_mib=40_960)
USED = Used(
    ran_seconds=3600, held_seconds=4 * 3600, seconds=3600, cpu_seconds=7200, cpu_known_seconds=3600,
    cpu_percent_max=240, memory_max_mib=5000, gpu_known_seconds=4 * 3600, gpu_busy_seconds=3000,
    gpu_idle_seconds=3 * 3600, gpus_busy_max=1, gpu_memory_max_mib=20_000, energy_j=3.6e6,
)  # fmt: skip


FITTING = {"gpus": 1, "millicpus": 3000, "memory_mib": 6000, "limit_seconds": 5400}


def changed(one: Any, **fields: Any) -> Any:
    return type(one)(**{**vars(one), **fields})


@pytest.mark.parametrize(
    ("asked", "used", "smaller", "reason"),
    [
        ({}, {}, {"gpus": "1", "cpus": "3", "memory": "7 GiB", "limit": "1h 30m"}, "far too much of everything"),
        ({}, {"seconds": 50}, {}, "too little was seen of it"),
        ({}, {"ran_seconds": 9000}, {}, "most of it was not seen"),
        (FITTING, {"gpu_known_seconds": 3600}, {}, "fits"),
        ({"gpus": 1}, {"gpu_known_seconds": 3600, "gpus_busy_max": 0}, {"gpus": "0", "gpu_model": ""}, "none was used"),
        ({"elastic": True}, {}, {"gpus": None}, "an elastic job takes what there is"),
        ({}, {"gpu_known_seconds": 3600}, {"gpus": None}, "of three GPUs nothing is known, as of MIG"),
        ({"shm_mib": 32_768}, {}, {"memory": "32 GiB"}, "shared memory counts as memory"),
        ({"limit_seconds": None}, {}, {"limit": None}, "no limit was asked for"),
    ],
)  # fmt: skip
def test_the_request_that_would_have_done(
    asked: dict[str, Any], used: dict[str, Any], smaller: dict[str, str | None], reason: str
) -> None:
    """PrincetonUniversity/jobstats#22: people install an add-on to learn what their jobs really needed."""
    found = would_have_done(changed(ASKED, **asked), changed(USED, **used))
    if not smaller:
        assert found == {}, reason
    for name, value in smaller.items():
        assert found.get(name) == value, reason


def ended(owner: User, reason: EndReason = EndReason.COMPLETED, state: JobState = JobState.SUCCEEDED) -> Job:
    """A job of four GPUs that ran for an hour and used what USED says."""
    now = timezone.now()
    node = factories.Node.objects.first() or factories.make_node(gpus=4)
    job = factories.make_job(owner, gpus=4, millicpus=16_000, memory_mib=65_536, limit_seconds=24 * 3600)
    run = factories.make_run(job, node, started_at=now - timedelta(hours=1))
    Allocation.objects.filter(run=run).update(created_at=now - timedelta(hours=1))
    run.end(RunState.RUNNING, reason, state, now=now)
    known = {name: value for name, value in vars(USED).items() if name not in ("ran_seconds", "held_seconds")}
    RunUse.objects.create(run=run.pk, **known)
    job.refresh_from_db()
    return job


def page(client: Client, job: Job) -> str:
    client.force_login(job.owner)
    return client.get(f"/jobs/{job.pk}/").content.decode()


def test_the_page_of_an_ended_job_shows_its_receipt_and_opens_the_form_so_filled(alice: User, client: Client) -> None:
    """rackslab/Slurm-web#288, #290: allocation is not utilisation, and power is worth a line."""
    text = page(client, ended(alice))
    for said in ("21 % busy on average, 1 at work at most", "40 GiB each", "2 on average, 2.4 at most", "1.00 kWh",
                 "4 GPU-hours", "3 GPU-hours", "1 GPU, 3 CPUs, 7 GiB, 1h 30m of time"):  # fmt: skip
        assert said in text
    address = text.partition('id="act-smaller" href="')[2].partition('"')[0].replace("&amp;", "&")
    form = client.get(address).context["form"]
    assert [form[name].value() for name in ("gpus", "cpus", "memory", "limit")] == ["1", "3", "7 GiB", "1h 30m"]


def test_a_program_reads_the_receipt_too(alice: User, client: Client) -> None:
    client.force_login(alice)
    said = client.get(f"/api/jobs/{ended(alice).pk}/receipt").json()
    assert (said["gpu_idle_hours"], said["cpus_max"], said["memory_max_mib"], said["energy_kwh"]) == (3, 2.4, 5000, 1)
    assert said["smaller"]["gpus"] == "1"
    waiting = factories.make_job(alice)
    assert client.get(f"/api/jobs/{waiting.pk}/receipt").json() is None


def test_a_job_that_failed_is_not_told_to_ask_for_less(alice: User, client: Client) -> None:
    job = ended(alice, EndReason.OOM_KILLED, JobState.FAILED)
    text = page(client, job)
    assert "act-smaller" not in text
    assert f'id="act-fix" href="/jobs/new/?clone={job.pk}&amp;memory=96+GiB"' in text


def test_what_was_not_measured_says_so_and_is_no_nought(alice: User, client: Client) -> None:
    job = ended(alice)
    RunUse.objects.all().delete()
    text = page(client, job)
    assert "not measured" in text
    assert "0 % busy" not in text
    assert "kWh" not in text


@pytest.mark.parametrize(
    ("asked", "used", "said"),
    [
        ({"gpu_milli": 250, "gpus": 1}, {"gpu_known_seconds": 0}, "the load of a shared GPU can't be told apart"),
        ({"gpu_profile": "1g.10gb", "gpus": 1}, {"gpu_known_seconds": 0}, "the driver tells no load of MIG instances"),
        ({"gpus": 1}, {"gpu_known_seconds": 0}, "not reported"),
        ({"gpus": 1}, {"gpu_known_seconds": 0, "seconds": 0}, "not measured"),
        ({"gpu_milli": 250, "gpus": 1}, {"gpu_known_seconds": 600, "gpu_busy_seconds": 300},
         "50 % busy on average in 10 min of 1 h; of the rest no load is known"),
    ],
)  # fmt: skip
def test_a_load_that_nobody_knows_is_named_so_with_the_reason(
    asked: dict[str, Any], used: dict[str, Any], said: str
) -> None:
    gpu, memory, *_rest = wording.receipts.lines(changed(ASKED, **asked), changed(USED, **used))
    assert said in gpu.used
    assert gpu.percent is None
    assert memory.used == "19.5 GiB at most", "what its own processes held is known all the same"
    assert ("shared" in memory.asked) == ("gpu_milli" in asked)


def test_a_job_that_never_ran_has_no_receipt(alice: User, client: Client) -> None:
    job = factories.make_job(alice)
    end = {"end_reason": EndReason.STOPPED_BY_USER, "ended_at": timezone.now()}
    assert job.advance(JobState.QUEUED, JobState.CANCELLED, **end)
    assert receipts.receipt(job) is None
    assert "receipt" not in page(client, job)


def test_runs_of_one_job_are_added_up(alice: User) -> None:
    job = ended(alice)
    again = factories.make_run(job, factories.Node.objects.get(), gpus=(), started_at=timezone.now())
    RunUse.objects.create(run=again.pk, seconds=100, memory_max_mib=9000, energy_j=None)
    found = receipts.receipt(job)
    assert found is not None
    used = found[1]
    assert (used.seconds, used.memory_max_mib, used.energy_j) == (3700, 9000, 3.6e6)


def test_the_history_says_how_busy_gpus_were_in_one_query_more(
    alice: User, client: Client, django_assert_max_num_queries: Any
) -> None:
    for _ in range(3):
        ended(alice)
    client.force_login(alice)
    with django_assert_max_num_queries(14):
        text = client.get("/history/").content.decode()
    assert text.count("21 % busy") == 3
    lines = b"".join(client.get("/history/?format=csv").streaming_content).decode().splitlines()  # type: ignore[attr-defined]
    assert lines[0].endswith("gpu_hours,gpu_busy_percent,gpu_idle_hours,cpus_used,memory_max_mib,energy_kwh")
    assert lines[1].endswith("20.8,3.0,2.0,5000,1.0")


@pytest.mark.parametrize(("kwh", "said"), [(0.012, "12 Wh"), (0.58, "0.58 kWh"), (420.3, "420 kWh")])
def test_energy_in_words(kwh: float, said: str) -> None:
    assert wording.receipts.energy(kwh) == said
