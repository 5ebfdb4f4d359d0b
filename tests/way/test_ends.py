"""How jobs end: by themselves, by a signal, by a limit, by somebody else; each for its one reason."""

import time

import pytest

from jobs import wording, workspace
from tests.rigs.processes import wait_until
from tests.way.lab import Lab


def test_fifty_quick_jobs_keep_their_output_and_code(lab: Lab) -> None:
    """docker/docker-py#3247: a container that ended first left an empty log."""
    jobs = [lab.submit("echo quick; exit 3") for _ in range(50)]
    for job in jobs:
        ended = lab.end(job, seconds=200)
        assert (ended.state, ended.exit_code) == ("FAILED", 3)
        assert lab.log(job) == b"quick\n"


def test_a_stop_lets_the_program_say_goodbye(lab: Lab) -> None:
    """dstackai/dstack#4285: the line "checkpoint saved" was missing after a stop."""
    job = lab.start("trap 'echo BYE; exit 0' TERM; echo up; while :; do sleep 0.1; done", grace_seconds=120)
    wait_until(lambda: lab.log(job) == b"up\n", "its first line")
    lab.cancel(job)
    job = lab.end(job)
    assert (job.state, job.end_reason, job.exit_code) == ("CANCELLED", "STOPPED_BY_USER", 0)
    assert b"BYE\n" in lab.log(job)


def test_a_script_s_child_hears_sigterm(lab: Lab) -> None:
    """moby/moby#32310: a shell as first process kept the signal to itself."""
    child = "sh -c 'trap \"sleep 1; echo child saved; exit 0\" TERM; echo up; while :; do sleep 0.1; done'"
    job = lab.start(f"{child} & {child}; echo after", grace_seconds=120)
    wait_until(lambda: lab.log(job).count(b"up") == 2, "both children are up")
    lab.cancel(job)
    job = lab.end(job)
    assert (job.state, job.exit_code) == ("CANCELLED", 143)
    assert lab.log(job).count(b"child saved") == 2, "in the background and in the foreground"
    assert b"after" not in lab.log(job)


def test_a_sleeping_first_process_ends_at_once(lab: Lab) -> None:
    job = lab.start("exec sleep 600", grace_seconds=240)
    lab.cancel(job)
    job = lab.end(job, seconds=200)  # less than the grace
    assert (job.state, job.exit_code) == ("CANCELLED", 143)


def test_who_ignores_sigterm_is_killed_after_the_grace(lab: Lab) -> None:
    """mrmn2/PdfDing#165."""
    job = lab.start("trap '' TERM; echo deaf; while :; do sleep 0.1; done", grace_seconds=2)
    wait_until(lambda: lab.log(job) == b"deaf\n", "the trap")
    lab.cancel(job)
    lab.wait(job, "STOPPING", "CANCELLED")
    job = lab.end(job)
    assert (job.state, job.end_reason, job.exit_code) == ("CANCELLED", "STOPPED_BY_USER", 137)


def test_an_oom_is_told_from_a_kill_by_hand(lab: Lab) -> None:
    """hashicorp/nomad#12735, coderaiser/cloudcmd#440: both leave 137."""
    greedy = lab.end(lab.submit("exec tail /dev/zero", memory_mib=32, shm_mib=8))
    assert (greedy.state, greedy.end_reason, greedy.exit_code) == ("FAILED", "OOM_KILLED", 137)
    victim = lab.start("exec sleep 600")
    with lab.engine.client() as client:
        client.api.kill(lab.run(victim).container_name)
    victim = lab.end(victim)
    assert (victim.state, victim.end_reason, victim.exit_code) == ("FAILED", "KILLED_EXTERNALLY", 137)


def test_a_child_that_was_killed_for_lack_of_memory_is_told_while_the_job_goes_on_and_at_its_end(lab: Lab) -> None:
    job = lab.start("tail /dev/zero; echo survived $?; until [ -e stop ]; do sleep 0.2; done", memory_mib=32, shm_mib=8)
    wait_until(lambda: lab.run(job).warnings != [], "the warning")
    assert [found["code"] for found in lab.run(job).warnings] == ["PROCESS_OOM"]
    assert lab.fresh(job).state == "RUNNING"
    lab.call(lambda: (workspace.of_user(lab.user.pk) / "jobs" / str(job.pk) / "stop").touch())
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("SUCCEEDED", "COMPLETED")
    assert b"survived 137\n" in lab.log(job)
    assert "killed for lack of memory" in lab.call(lambda: wording.end_sentence(job, job.runs.get()))
    advice = lab.call(lambda: wording.suggestion(job, job.runs.get()))
    assert advice.changes == {"memory": "256 MiB"}


@pytest.mark.parametrize("script", ["exit 137", "kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
def test_a_job_that_killed_itself_was_killed_by_nobody_else(lab: Lab, script: str) -> None:
    job = lab.end(lab.submit(script))
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", "EXIT_CODE", 137)


def test_a_time_limit_stops_the_job(lab: Lab) -> None:
    """CERT-Polska/mquery#352: limits were the queue's, not the job's."""
    job = lab.end(lab.submit("echo on; exec sleep 600", limit_seconds=5))
    assert (job.state, job.end_reason) == ("TIMED_OUT", "TIME_LIMIT")
    assert job.ended_at is not None
    assert job.started_at is not None
    assert (job.ended_at - job.started_at).total_seconds() < 200
    assert lab.log(job) == b"on\n"


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
def test_a_cancel_around_the_end_leaves_one_true_end(lab: Lab, delay: float) -> None:
    """harness/harness#1328: "in progress" for ever after a cancel at the wrong moment."""
    job = lab.submit("exit 5")
    time.sleep(delay)
    lab.cancel(job)
    job = lab.end(job)
    assert job.state in ("CANCELLED", "FAILED")
    assert job.exit_code in (None, 5, 143, 137)
    if job.state == "FAILED":
        assert (job.end_reason, job.exit_code) == ("EXIT_CODE", 5)


def test_a_container_removed_by_hand_ends_its_job_without_an_invented_code(lab: Lab) -> None:
    job = lab.start()
    with lab.engine.client() as client:
        client.api.remove_container(lab.run(job).container_name, force=True)
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("FAILED", "KILLED_EXTERNALLY")


def test_waiting_jobs_start_as_room_appears(lab: Lab) -> None:
    jobs = [lab.submit("sleep 0.2", gpus=4) for _ in range(3)]
    ends = [lab.end(job) for job in jobs]
    assert [job.state for job in ends] == ["SUCCEEDED"] * 3
    starts = [job.started_at for job in ends]
    assert starts == sorted(starts), "in the order of the queue"
