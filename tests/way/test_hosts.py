"""Hosts that fall silent, are deployed to, or start jobs that can't start: what is held stays held, and no longer."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from gpus.models import GPU, Node
from jobs.models import AllocationSlot, Job
from jobs.queues import queue
from jobs.request import JobRequest
from jobs.status import status
from jobs.submit import submit
from tests.rigs.processes import has_ended, wait_until
from tests.rigs.redis import RedisServer
from tests.rigs.stack import SHORT
from tests.way.lab import Lab, gate

COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo n=$i; sleep 0.05; done; exit 7"


def reasons(lab: Lab, job: Job) -> list[str]:
    return [reason["code"] for reason in lab.fresh(job).wait_reasons]


@pytest.fixture(autouse=True)
def _as_the_stack_waits(settings: Any) -> None:
    settings.NODE_SILENT_AFTER = float(SHORT["NODE_SILENT_AFTER"])


def wait_heard(lab: Lab) -> None:
    """Until the host has just been heard of."""
    now, node = timezone.now(), Node.objects.filter(name=lab.stack.env["NODE_NAME"])
    wait_until(lambda: lab.call(node.filter(last_seen__gt=now).exists), "a sign of life")


def is_alive(lab: Lab) -> bool:
    return lab.call(lambda: Node.objects.get(name=lab.stack.env["NODE_NAME"]).is_alive())


@contextlib.contextmanager
def silent_host(lab: Lab) -> Iterator[None]:
    """The node's processes are gone at a blow; its engine and its containers are not. At the end it is back."""
    wait_heard(lab)
    lab.stack.kill_group("node")
    try:
        yield
    finally:
        lab.stack.start("node")
        wait_heard(lab)


@contextlib.contextmanager
def not_missed_yet(lab: Lab) -> Iterator[None]:
    """Within the block the scheduler takes a silent host for alive, however slow this machine is."""
    node = Node.objects.filter(name=lab.stack.env["NODE_NAME"])

    def heard(at: datetime) -> None:
        node.update(last_seen=at)
        GPU.objects.filter(node__in=node).update(sampled_at=at)

    lab.call(heard, timezone.now() + timedelta(hours=1))
    try:
        yield
    finally:
        lab.call(heard, timezone.now())


def test_a_silent_host_keeps_what_its_jobs_hold_and_gets_nothing_new(lab: Lab) -> None:
    """codalab/codalab-worksheets#2990: called offline, its GPUs were given away, and two jobs crashed on one card."""
    job = lab.start(COUNT.format(n=100).replace("exit", f"{gate()}; exit"), gpus=4)
    with silent_host(lab):
        wait_until(lambda: not is_alive(lab), "it is called silent")
        waiting = lab.submit("echo later", gpus=1)
        wait_until(lambda: "NODES_SILENT" in reasons(lab, waiting), "the reason")
        assert lab.fresh(job).state == "RUNNING"
        assert lab.held_slots() == 4
        said = lab.call(lambda: status(Job.objects.get(pk=job.pk), lab.user)["warnings"])
        assert any("has been silent since" in sentence for sentence in said)
    lab.open(job)
    ended = lab.end(job)
    assert (ended.state, ended.exit_code) == ("FAILED", 7)
    assert lab.log(job) == b"".join(b"n=%d\n" % n for n in range(1, 101))
    assert lab.call(lambda: job.runs.count()) == 1
    assert lab.log(lab.end(waiting)) == b"later\n"


def test_what_a_dead_host_never_began_is_cancelled_or_waits_again(lab: Lab) -> None:
    """rq/rq#2236: lost between being handed out and being begun."""
    with silent_host(lab):
        unwanted, wanted = lab.submit("true", gpus=2), lab.submit("echo elsewhere", gpus=2)
        with not_missed_yet(lab):
            for job in (unwanted, wanted):
                lab.wait(job, "PLACED")
        assert lab.cancel(unwanted)
        assert lab.fresh(unwanted).state == "CANCELLED"
        assert lab.held_slots() == 2
        lab.call(lambda: wanted.runs.update(placed_at=timezone.now() - timedelta(hours=1)))
        lab.wait(wanted, "QUEUED")
        assert not is_alive(lab), "not before it is silent"
        assert lab.held_slots() == 0
    wanted = lab.end(wanted)
    assert (wanted.state, lab.log(wanted)) == ("SUCCEEDED", b"elsewhere\n")
    ends = lab.call(lambda: list(wanted.runs.order_by("number").values_list("end_reason", flat=True)))
    assert ends == ["START_TIMEOUT", "COMPLETED"]


def test_a_gpu_job_whose_gpus_are_gone_is_refused_before_it_has_a_container(lab: Lab) -> None:
    """An empty list of devices starts a container without any, and without an error."""
    with silent_host(lab):
        job = lab.submit("true", gpus=1)
        with not_missed_yet(lab):
            lab.wait(job, "PLACED")
        lab.call(lambda: AllocationSlot.objects.filter(allocation__run__job=job).delete())
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("FAILED", "CREATE_FAILED")
    assert lab.run(job).engine_message.startswith("ALLOCATION_EMPTY")
    assert not lab.call(lambda: job.events.filter(new_state="RUNNING").exists())


FAILING: dict[str, dict[str, Any]] = {
    "no such command": {"command_kind": "image", "entrypoint": ("/bin/doesnotexist",)},
    "not executable": {"command_kind": "image", "entrypoint": ("/etc/passwd",)},
}


@pytest.mark.parametrize("kind", FAILING)
def test_twenty_failed_starts_leave_as_many_free_gpus_as_before(lab: Lab, kind: str) -> None:
    """lablup/backend.ai#1510, ROCm/spur#450: each left its half-made allocation behind."""
    jobs = [lab.submit("", gpus=2, **FAILING[kind]) for _ in range(20)]
    for job in jobs:
        ended = lab.end(job)
        assert ended.state == "FAILED"
        assert ended.end_reason in ("COMMAND_NOT_FOUND", "COMMAND_NOT_EXECUTABLE")
        assert lab.run(job).engine_message
    assert lab.held_slots() == 0
    wait_until(lambda: lab.containers() == [], "nothing is left")
    assert lab.end(lab.submit("true", gpus=4)).state == "SUCCEEDED", "all four are there"


def test_a_container_killed_from_outside_frees_its_gpu(lab: Lab) -> None:
    """xorbitsai/inference#572, kubernetes/kubernetes#42412: the slot was held after a crash."""
    job = lab.start("exec sleep 600", gpus=4)
    os.kill(lab.inspect(job)["State"]["Pid"], signal.SIGKILL)
    job = lab.end(job)
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", "EXIT_CODE", 137)
    assert lab.held_slots() == 0
    assert lab.end(lab.submit("true", gpus=4)).state == "SUCCEEDED"


def test_a_lost_wake_up_delays_the_next_job_by_a_pass_only(lab: Lab, redis_server: RedisServer) -> None:
    """ROCm/spur#43, ansible/awx#5617: an idle GPU, a waiting job, and a scheduler that nobody woke."""
    first = lab.start(gate(), gpus=4)
    second = lab.submit("echo next", gpus=4)
    with redis_server.client() as client:
        client.set(f"dockyard.{lab.stack.env['INSTALLATION']}.pass", 1)  # a wish that was taken down, and never sent
        lab.open(first)
        lab.end(first)
        queue("scheduler").empty()
        assert lab.log(lab.end(second)) == b"next\n"
        client.delete(f"dockyard.{lab.stack.env['INSTALLATION']}.pass")


def test_a_deployment_costs_no_job_anything(lab: Lab) -> None:
    """rq/rq#584, #1516, okpy/ok#1062: TERM, ten seconds, KILL."""
    running = lab.start(COUNT.format(n=200), gpus=1)
    starting = [lab.submit(COUNT.format(n=20), gpus=1) for _ in range(3)]
    node = lab.stack._processes["node"]
    node.terminate()
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: has_ended(node), "its end", seconds=10)
    lab.stack.kill_group("node")
    lab.stack.start("node")
    lab.stack.wait_ready("node")
    for job, lines in [(running, 200), *((job, 20) for job in starting)]:
        ended = lab.end(job)
        assert (ended.state, ended.exit_code) == ("FAILED", 7)
        assert lab.log(job) == b"".join(b"n=%d\n" % n for n in range(1, lines + 1))
        begun = job.runs.exclude(end_reason="START_TIMEOUT")  # the host was away too long for one that it had not begun
        assert lab.call(begun.count) == 1


def in_a_transaction(lab: Lab, *, commit: bool) -> int:
    """Submit inside a transaction that stays open for a while; the job's id."""

    def work() -> int:
        request = JobRequest(name="t", image="dockyard-test/busybox:latest", script="echo ran", memory_mib=64,
                             shm_mib=16, millicpus=100)  # fmt: skip
        with transaction.atomic():
            job = submit(request, owner=lab.user, team=lab.team, submission=uuid.uuid4())
            time.sleep(1)
            if not commit:
                transaction.set_rollback(True)
            return job.pk

    return lab.call(work)


def test_a_job_is_started_after_its_commit_and_never_without(lab: Lab) -> None:
    """RealOrangeOne/django-tasks-rq#11, rq/django-rq#821: a worker looked for a row that was not there yet."""
    gone = in_a_transaction(lab, commit=False)
    kept = in_a_transaction(lab, commit=True)
    job = lab.call(lambda: Job.objects.get(pk=kept))
    assert lab.log(lab.end(job)) == b"ran\n"
    assert not lab.call(lambda: Job.objects.filter(pk=gone, script="echo ran").exclude(pk=kept).exists())
    for role in ("node", "scheduler"):
        assert "DoesNotExist" not in lab.stack.log_of(role)


def test_no_gpu_is_left_out_after_all_this(lab: Lab) -> None:
    healthy = GPU.objects.filter(health=GPU.Health.OK, quarantine_reason="", busy_outside_since=None)
    wait_until(lambda: lab.call(healthy.count) == 4, "four good GPUs")
