"""Jobs that make way for others, move, share a GPU and get more time, on a real engine."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpus.models import GPU
from jobs import extend as extending
from jobs import logstore, rebind
from jobs.models import Cluster, Job, JobEvent, Run
from tests.rigs.processes import wait_until
from tests.way.lab import Lab, gate

# Says what it sees, keeps a mark in the workspace, and saves its work when told to stop.
TRAINER = (
    'echo "gpus=$NVIDIA_VISIBLE_DEVICES n=$DOCKYARD_GPUS run=$DOCKYARD_RUN"; cat mark 2>/dev/null; '
    "trap 'echo \"run $DOCKYARD_RUN saved\" >> mark; echo told; exit 0' {signal}; "
    "while :; do sleep 0.1; done"
)


def trainer(signal: str = "TERM") -> str:
    return TRAINER.format(signal=signal)


@pytest.fixture(autouse=True)
def permissive(lab: Lab) -> Iterator[None]:
    """Everything that a scheduler may do to running jobs is allowed at once; afterwards, as it was."""
    cluster = lab.call(Cluster.get)
    lab.call(lambda: Cluster.objects.update(protected_minutes=0, preempt_lower=True, defragment=True))
    yield
    lab.call(lambda: Cluster.objects.update(protected_minutes=cluster.protected_minutes, preempt_lower=False,
                                            defragment=False))  # fmt: skip


def runs_of(lab: Lab, job: Job) -> list[Run]:
    return lab.call(lambda: list(Run.objects.filter(job=job).order_by("number")))


def log_of(lab: Lab, run: Run) -> str:
    return lab.call(lambda: b"".join(logstore.stream(run))).decode()


def wait_log(lab: Lab, job: Job, words: str) -> None:
    wait_until(lambda: words in lab.log(job).decode(), f"{words!r} in the log of {job}")


def uuids(lab: Lab, run: Run) -> list[str]:
    return lab.call(lambda: run.gpu_uuids)


def kinds(lab: Lab, job: Job, kind: str) -> list[dict[str, Any]]:
    return lab.call(lambda: list(JobEvent.objects.filter(job=job, kind=kind).values_list("params", flat=True)))


def ended_twice(lab: Lab, job: Job) -> None:
    """The victim ran twice, in one workspace, and both logs are there."""
    first, second = runs_of(lab, job)
    assert (first.end_reason, first.number, second.number) == ("PREEMPTED", 1, 2)
    assert "told" in log_of(lab, first)
    wait_log(lab, job, "run 1 saved")
    assert "run=2" in log_of(lab, second)


def test_a_preempted_job_hears_its_signal_and_starts_again_after_the_winner(lab: Lab) -> None:
    """The exit code 0 of one that saves its work on the signal is no success: it goes on from what it saved."""
    victim = lab.start(trainer("USR1"), gpus=4, preemptible=True, priority=0, stop_signal="SIGUSR1", grace_seconds=120)
    wait_log(lab, victim, "run=1")
    winner = lab.start("exec sleep 600", gpus=4, priority=2)
    assert lab.fresh(victim).state == "QUEUED"
    assert kinds(lab, victim, "SIGNALLED") == [{"signal": "SIGUSR1", "grace": 120, "wish": "PREEMPT"}]
    assert kinds(lab, victim, "WISHED") == [{"wish": "PREEMPT", "for": winner.pk, "why": "PRIORITY"}]
    lab.cancel(winner)
    lab.wait(victim, "RUNNING")
    ended_twice(lab, victim)


@pytest.mark.parametrize("role", ["scheduler", "node"])
def test_a_preemption_goes_on_after_a_kill_in_its_middle(lab: Lab, role: str) -> None:
    script = (
        f"trap 'echo told; {gate()}; echo run $DOCKYARD_RUN saved >> mark; exit 0' TERM; echo run=$DOCKYARD_RUN; "
        "cat mark 2>/dev/null; while :; do sleep 0.1; done"
    )
    victim = lab.start(script, gpus=4, preemptible=True, priority=0, grace_seconds=200)
    wait_log(lab, victim, "run=1")
    winner = lab.submit("exec sleep 600", gpus=4, priority=2)
    lab.wait(victim, "STOPPING")
    lab.stack.kill_group(role)
    lab.open(victim)
    time.sleep(1)
    lab.stack.start(role)
    lab.stack.wait_ready(role)
    lab.wait(winner, "RUNNING")
    assert len(kinds(lab, victim, "WISHED")) == 1, "asked once"
    lab.cancel(winner)
    lab.wait(victim, "RUNNING")
    ended_twice(lab, victim)


def test_a_moved_job_sees_its_new_gpus_and_its_old_files(lab: Lab) -> None:
    job = lab.start(trainer(), gpus=2, grace_seconds=120)
    wait_log(lab, job, "run=1")
    assert lab.call(lambda: rebind.rebind(job, lab.user))
    wait_until(lambda: len(runs_of(lab, job)) == 2, "a second run")
    lab.wait(job, "RUNNING")
    wait_log(lab, job, "run 1 saved")
    first, second = runs_of(lab, job)
    assert first.end_reason == "REBOUND"
    assert not set(uuids(lab, first)) & set(uuids(lab, second))
    for run in (first, second):
        assert f"gpus={','.join(uuids(lab, run))} n=2" in log_of(lab, run)


def test_an_elastic_job_shrinks_and_finds_how_many_it_has(lab: Lab) -> None:
    job = lab.start(trainer(), gpus=8, least_gpus=1, grace_seconds=120)
    wait_log(lab, job, "n=4")
    assert lab.call(lambda: rebind.rebind(job, lab.user, gpus=1))
    wait_log(lab, job, "run=2")
    assert "n=1" in lab.log(job).decode()


def test_a_job_runs_past_its_first_deadline_once_it_has_more_time(lab: Lab) -> None:
    job = lab.start("exec sleep 600", gpus=1, limit_seconds=12)
    assert lab.call(lambda: extending.extend(job, lab.user, 60)).granted
    started = lab.run(job).started_at
    assert started
    wait_until(lambda: timezone.now() > started + timedelta(seconds=14), "past its first deadline")
    assert lab.fresh(job).state == "RUNNING"
    lab.call(lambda: Run.objects.filter(job=job).update(deadline=started))
    assert lab.end(job).end_reason == "TIME_LIMIT", "the node reads the deadline anew"


def test_two_halves_share_a_gpu_and_a_third_waits_for_them(lab: Lab) -> None:
    whole = [lab.start("exec sleep 600", gpus=1) for _ in range(3)]
    shared = lab.call(lambda: GPU.objects.filter(health="ok").exclude(allocation_slots__released_at=None,
                                                                     allocation_slots__isnull=False).get())  # fmt: skip
    lab.call(lambda: GPU.objects.filter(pk=shared.pk).update(slots=2))
    try:
        halves = [lab.start("echo share=$DOCKYARD_GPU_SHARE; exec sleep 600", gpus=1, gpu_milli=500) for _ in range(2)]
        third = lab.submit("echo third", gpus=1, gpu_milli=500)
        assert {tuple(uuids(lab, lab.run(job))) for job in halves} == {(shared.uuid,)}
        wait_log(lab, halves[0], "share=0.5")
        wait_until(lambda: lab.fresh(third).wait_reasons or lab.fresh(third).state != "QUEUED", "a reason")
        assert lab.fresh(third).state == "QUEUED"
        lab.cancel(halves[0])
        assert lab.end(third).state == "SUCCEEDED"
    finally:
        for job in (*whole, *halves):
            lab.cancel(job)
        wait_until(lambda: lab.held_slots() == 0, "nothing held")
        lab.call(lambda: GPU.objects.filter(pk=shared.pk).update(slots=1))
