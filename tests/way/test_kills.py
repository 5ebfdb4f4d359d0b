"""Any process of ours is killed, Redis is flushed or gone: jobs go on, nothing is lost, nothing runs twice."""

import os
import signal
import time

import pytest
from django.utils import timezone

from jobs.control import wish
from jobs.states import RunState, Wish
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer
from tests.way.lab import Lab, gate

COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo n=$i; sleep 0.05; done; exit 7"


def numbered(n: int) -> bytes:
    return b"".join(b"n=%d\n" % i for i in range(1, n + 1))


def ends_as_if_nothing_had_been(lab: Lab, job: object, n: int) -> None:
    ended = lab.end(job)  # type: ignore[arg-type]
    assert (ended.state, ended.exit_code) == ("FAILED", 7)
    assert lab.log(ended) == numbered(n)
    assert lab.call(lambda: ended.runs.count()) == 1


@pytest.mark.parametrize("role", ["web", "scheduler", "node"])
def test_a_killed_process_costs_a_running_job_nothing(lab: Lab, role: str) -> None:
    """rq/rq#944, #2015, rq/rq#584: jobs died or ran twice when a worker was killed or deployed."""
    job = lab.start(COUNT.format(n=120))
    lab.stack.kill(role)
    time.sleep(1)
    lab.stack.start(role)
    lab.stack.wait_ready(role)
    ends_as_if_nothing_had_been(lab, job, 120)


def test_each_part_of_a_node_may_be_killed(lab: Lab) -> None:
    """harness/harness#2854: only the supervisor is left, and makes the rest anew."""
    job = lab.start(COUNT.format(n=100), gpus=1)
    for pid in lab.stack.children("node"):
        os.kill(pid, signal.SIGKILL)
    after = lab.submit("echo after")
    ends_as_if_nothing_had_been(lab, job, 100)
    assert lab.log(lab.end(after)) == b"after\n"


def test_an_orderly_restart_of_a_node_costs_nothing(lab: Lab) -> None:
    """clearml/clearml-agent#188: stopping an agent marked its task completed."""
    job = lab.start(COUNT.format(n=120))
    lab.stack.restart("node")
    ends_as_if_nothing_had_been(lab, job, 120)


def test_a_job_that_ends_while_the_node_is_down_keeps_its_code_and_log(lab: Lab) -> None:
    job = lab.start(f"{gate()}; {COUNT.format(n=20)}")
    name = lab.run(job).container_name
    lab.stack.kill_group("node")
    lab.open(job)
    with lab.engine.client() as client:
        wait_until(lambda: client.containers.get(name).status == "exited", "its end")
    assert lab.fresh(job).state == "RUNNING", "silence proves nothing"
    lab.stack.start("node")
    lab.stack.wait_ready("node")
    ends_as_if_nothing_had_been(lab, job, 20)


def test_a_node_killed_between_noting_a_stop_and_sending_its_signal_sends_it_all_the_same(lab: Lab) -> None:
    """Else the job would know nothing of its grace, and lose what it could have saved in it."""
    job = lab.start("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done", grace_seconds=300)
    wait_until(lambda: b"ready" in lab.log(job), "the trap")
    lab.stack.kill_group("node")
    run = lab.run(job)
    assert lab.call(lambda: wish(run, Wish.CANCEL, lab.user))
    assert lab.call(lambda: run.advance(RunState.RUNNING, RunState.STOPPING, stopping_at=timezone.now()))
    lab.stack.start("node")
    lab.stack.wait_ready("node")
    assert lab.end(job).state == "CANCELLED"
    assert b"saved" in lab.log(job)


def test_a_node_killed_in_the_middle_of_a_start_starts_once(lab: Lab) -> None:
    """rq/rq#2236, docker/docker-py#2266."""
    jobs = [lab.submit("echo once; exit 7", gpus=1) for _ in range(6)]
    for _ in range(3):
        time.sleep(0.3)
        lab.stack.kill_group("node")
        lab.stack.start("node")
        lab.stack.wait_ready("node")
    for job in jobs:
        ended = lab.end(job)
        assert (ended.state, ended.exit_code) == ("FAILED", 7)
        assert lab.log(job) == b"once\n"


def test_a_flushed_redis_loses_nothing(lab: Lab, redis_server: RedisServer) -> None:
    """rq/rq#1846: queued jobs were gone for ever."""
    running = lab.start(COUNT.format(n=100), gpus=4)
    queued = [lab.submit(f"echo {n}", gpus=4) for n in range(3)]
    for _ in range(5):
        redis_server.flush()
        time.sleep(0.3)
    ends_as_if_nothing_had_been(lab, running, 100)
    for number, job in enumerate(queued):
        assert lab.end(job).state == "SUCCEEDED"
        assert lab.log(job) == b"%d\n" % number


def test_a_redis_that_is_away_delays_and_loses_nothing(lab: Lab, redis_server: RedisServer) -> None:
    """rq/django-rq#562: a submit during an outage is kept and runs later."""
    running = lab.start(COUNT.format(n=60), gpus=1)
    redis_server.kill()
    job = lab.submit("echo later", gpus=1)
    time.sleep(2)
    redis_server.start()
    ends_as_if_nothing_had_been(lab, running, 60)
    assert lab.log(lab.end(job)) == b"later\n"


def test_a_worker_frozen_while_others_clean_up_does_no_harm(lab: Lab) -> None:
    """rq/rq#2424, getredash/redash#7186: what RQ believes about its jobs decides nothing here."""
    job = lab.start(COUNT.format(n=60))
    pids = lab.stack.children("node")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    ends_as_if_nothing_had_been(lab, job, 60)


def test_a_killed_engine_without_live_restore_ends_its_jobs_for_that_reason(lab: Lab) -> None:
    """moby/moby#23213. Who allows that his program is started again has it tried once more.

    dstackai/dstack#4285's kind: one that saves its work on the engine's signal, and exits 0, is not done.
    """
    job = lab.start("exec sleep 600", gpus=1)
    saving = lab.start("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done", gpus=1)
    again = lab.start("[ -e begun ] && exit 5; touch begun; echo begun; exec sleep 600", gpus=1, preemptible=True)
    wait_until(lambda: b"ready" in lab.log(saving), "the trap")
    wait_until(lambda: b"begun" in lab.log(again), "its first life")
    lab.engine.restart()
    job, again = lab.end(job), lab.end(again)
    for one in (job, lab.end(saving)):
        assert (one.state, one.end_reason) == ("FAILED", "HOST_DAEMON_RESTART")
    assert (again.exit_code, again.requeues) == (5, 1)
    reasons = lab.call(lambda: list(again.runs.order_by("number").values_list("end_reason", flat=True)))
    assert reasons == ["HOST_DAEMON_RESTART", "EXIT_CODE"]
    wait_until(lambda: lab.held_slots() == 0, "its GPU is free")
    assert lab.log(lab.end(lab.submit("echo again", gpus=1))) == b"again\n"
