"""One table decides why a run ended, from facts that each alone would mislead."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobs.endings import Facts, decide, heard, of_failed_start, went_down_with
from jobs.states import EndReason, Wish

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
PLAIN = Facts(exit_code=0, oom_killed=False, finished_at=AT, wish=None, wish_by_owner=True, signalled_at=None)
STOPPED = replace(PLAIN, wish=Wish.CANCEL, signalled_at=AT - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("facts", "reason", "why"),
    [
        (PLAIN, EndReason.COMPLETED, "its own exit code 0 was read"),
        (replace(PLAIN, exit_code=3), EndReason.EXIT_CODE, "the program said so"),
        (replace(PLAIN, exit_code=137, oom_killed=True), EndReason.OOM_KILLED, "over its memory limit"),
        (replace(PLAIN, exit_code=137), EndReason.EXIT_CODE, "137 alone is no OOM: hashicorp/nomad#12735"),
        (replace(PLAIN, exit_code=137, kill_asked=True), EndReason.KILLED_EXTERNALLY, "an operator's docker kill"),
        (replace(PLAIN, exit_code=143, kill_asked=True), EndReason.KILLED_EXTERNALLY, "an operator's docker stop"),
        (replace(PLAIN, exit_code=137, kill_asked=True, oom_killed=True), EndReason.KILLED_EXTERNALLY, "a child's OOM"),
        (replace(PLAIN, exit_code=3, kill_asked=True), EndReason.EXIT_CODE, "it heard the signal and said 3"),
        (replace(PLAIN, oom_killed=True), EndReason.COMPLETED, "a child's OOM, but the parent exited 0"),
        (replace(PLAIN, exit_code=1, oom_killed=True), EndReason.EXIT_CODE, "a child's OOM, and the parent said 1"),
        (replace(STOPPED, exit_code=137), EndReason.STOPPED_BY_USER, "stopped, SIGTERM ignored"),
        (replace(STOPPED, exit_code=137, oom_killed=True), EndReason.STOPPED_BY_USER, "an earlier OOM of a child"),
        (STOPPED, EndReason.STOPPED_BY_USER, "dstackai/dstack#4285: saved on SIGTERM and exited 0"),
        (replace(STOPPED, wish_by_owner=False), EndReason.STOPPED_BY_ADMIN, "somebody else asked"),
        (replace(STOPPED, wish=Wish.TIME_LIMIT), EndReason.TIME_LIMIT, "its deadline"),
        (replace(STOPPED, wish=Wish.PREEMPT), EndReason.PREEMPTED, "a checkpoint is no success"),
        (replace(STOPPED, finished_at=AT - timedelta(seconds=2)), EndReason.COMPLETED, "it had ended before"),
        (replace(PLAIN, wish=Wish.CANCEL), EndReason.COMPLETED, "wished, but no signal was sent"),
        (replace(PLAIN, exit_code=None), EndReason.KILLED_EXTERNALLY, "somebody removed the container"),
        (replace(STOPPED, exit_code=None), EndReason.STOPPED_BY_USER, "removed while we were stopping it"),
        (replace(PLAIN, exit_code=137, engine_restarted=True), EndReason.HOST_DAEMON_RESTART, "the engine took it"),
        (replace(PLAIN, exit_code=7, engine_restarted=True), EndReason.EXIT_CODE, "7 is the program's own"),
        (replace(PLAIN, exit_code=255, engine_restarted=True), EndReason.HOST_DAEMON_RESTART, "the code was lost"),
        (replace(PLAIN, exit_code=255), EndReason.EXIT_CODE, "no engine's, so the program's own"),
        (replace(PLAIN, engine_restarted=True, told_to_stop=True), EndReason.HOST_DAEMON_RESTART, "saved, not done"),
        (replace(PLAIN, exit_code=9, engine_restarted=True, told_to_stop=True), EndReason.HOST_DAEMON_RESTART, "same"),
        (replace(PLAIN, told_to_stop=True), EndReason.COMPLETED, "somebody's signal, which it finished in spite of"),
        (replace(PLAIN, exit_code=255, host_rebooted=True), EndReason.HOST_REBOOT, "clearml/clearml#311"),
        (replace(PLAIN, exit_code=1, gpu_lost=True), EndReason.GPU_LOST, "its GPU had fallen off the bus"),
        (replace(PLAIN, exit_code=137, grant_mismatch=True), EndReason.GPU_START_FAILED, "it had other GPUs"),
    ],
)
def test_decide(facts: Facts, reason: EndReason, why: str) -> None:
    assert decide(facts) is reason, why


@pytest.mark.parametrize(
    ("started", "finished", "with_it", "why"),
    [
        (-3600, -10, True, "an engine that stops in order kills its containers first"),
        (-3600, 2, True, "one that crashed kills what it finds when it is back"),
        (-3600, None, True, "the host lost its power: nobody wrote the time down"),
        (-3600, -1800, False, "it ended half an hour before, of something else"),
        (5, 60, False, "it started on the new one"),
        (None, None, False, "it never started"),
    ],
)
def test_an_end_is_the_hosts_only_close_to_its_restart(
    started: int | None, finished: int | None, with_it: bool, why: str
) -> None:
    """microsoft/pai#2548."""

    def at(seconds: int | None) -> datetime | None:
        return None if seconds is None else AT + timedelta(seconds=seconds)

    assert went_down_with(AT, started=at(started), finished=at(finished)) is with_it, why


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ('exec: "/bin/doesnotexist": stat /bin/doesnotexist: no such file or directory: unknown', 127,
         EndReason.COMMAND_NOT_FOUND),
        ('exec: "train": executable file not found in $PATH: unknown', 127, EndReason.COMMAND_NOT_FOUND),
        ('exec: "/etc/passwd": permission denied: unknown', 126, EndReason.COMMAND_NOT_EXECUTABLE),
        ("exec /run: exec format error", 126, EndReason.ARCHITECTURE),
        ("write /var/lib/docker/x: no space left on device", 128, EndReason.DISK_FULL),
        ("could not select device driver \"\" with capabilities: [[gpu]]", 128, EndReason.GPU_START_FAILED),
        ("could not select device driver \"cdi\" with capabilities: []", 0, EndReason.GPU_START_FAILED),
        ("unknown or invalid runtime name: nvidia", None, EndReason.GPU_START_FAILED),
        ("Unknown runtime specified nvidia", None, EndReason.GPU_START_FAILED),
        ("error running hook #0: exit status 1, stderr: nvidia-container-cli: device error: unknown device id", 128,
         EndReason.GPU_START_FAILED),
        ('exec: "nvidia-smi": executable file not found in $PATH', 127, EndReason.COMMAND_NOT_FOUND),
        ("something new", 128, EndReason.CREATE_FAILED),
    ],
)  # fmt: skip
def test_failed_starts_are_told_apart(words: str, code: int | None, reason: EndReason) -> None:
    """codalab/codalab-worksheets#2736, NVIDIA/nvidia-container-toolkit#29, #150, NVIDIA/nvidia-docker#578."""
    assert of_failed_start(words, code, has_gpus=True) is reason


@pytest.mark.parametrize(("after", "was_heard"), [(-60, True), (0.0002, True), (5, False)])
def test_a_signal_is_heard_also_if_it_is_noted_just_after_the_end_that_it_brought(
    after: float, was_heard: bool
) -> None:
    assert heard(AT + timedelta(seconds=after), AT) is was_heard
    assert not heard(None, AT)
