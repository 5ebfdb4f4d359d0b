"""Why a run ended, from a table: who asked, the OOM flag, the exit code, what the host did, in that order. Pure.

Neither 137 nor the OOM flag decides alone: a kill by hand also gives 137, so does a program that kills itself or
exits with that number, and a child's OOM leaves the flag on a parent that goes on and exits 0.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.states import EndReason, Wish, reason_for_wish

SIGKILLED, SIGTERMED = 137, 143
UNKNOWN = 255  # what containerd tells of an end that it could not find out about (its UnknownExitStatus); programs too
_NOTED_LATE = timedelta(seconds=1)  # a signal, by the engine that sent it
GOING_DOWN = timedelta(minutes=5)  # from the last container's end to the engine's next start, when it is restarted


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known at the end. Times are those of the host."""

    exit_code: int | None  # None: the container is gone, its code with it
    oom_killed: bool
    finished_at: datetime | None
    wish: Wish | None
    wish_by_owner: bool
    signalled_at: datetime | None  # when we sent SIGTERM
    kill_asked: bool = False  # somebody had the engine signal it
    engine_restarted: bool = False
    told_to_stop: bool = False  # the engine was seen to signal it before it ended
    host_rebooted: bool = False
    gpu_lost: bool = False
    grant_mismatch: bool = False  # it got other GPUs than it was allotted, and was killed for that


def decide(facts: Facts) -> EndReason:
    """The one reason. A wish counts only once its signal was sent, and not for a run that had ended before."""
    if facts.wish is not None and facts.signalled_at is not None and not _ended_before(facts):
        return reason_for_wish(facts.wish, by_owner=facts.wish_by_owner)
    if facts.grant_mismatch:
        return EndReason.GPU_START_FAILED
    if facts.exit_code is None:
        return EndReason.KILLED_EXTERNALLY
    if facts.told_to_stop and facts.engine_restarted:
        return EndReason.HOST_DAEMON_RESTART  # whatever it made of the signal: what it saved is no success
    if facts.exit_code == 0:
        return EndReason.COMPLETED
    if facts.host_rebooted:
        return EndReason.HOST_REBOOT
    if may_be_of_engine(facts.exit_code) and facts.engine_restarted:
        return EndReason.HOST_DAEMON_RESTART
    if was_signalled(facts.exit_code) and facts.kill_asked:
        return EndReason.KILLED_EXTERNALLY
    if facts.exit_code == SIGKILLED and facts.oom_killed:
        return EndReason.OOM_KILLED
    return EndReason.GPU_LOST if facts.gpu_lost else EndReason.EXIT_CODE


def was_signalled(exit_code: int | None) -> bool:
    """Whether SIGKILL or SIGTERM from somewhere ended it: the two that an engine sends when it goes down."""
    return exit_code in (SIGKILLED, SIGTERMED)


def may_be_of_engine(exit_code: int | None) -> bool:
    """Whether an engine that goes down may have left this code: by a signal, or since it lost the program's own."""
    return was_signalled(exit_code) or exit_code == UNKNOWN


def went_down_with(next_start: datetime, *, started: datetime | None, finished: datetime | None) -> bool:
    """Whether a container ended because engine or host did, of which all is known that it started again then.

    One that ended long before had its own end, which nobody was there to see.
    """
    if started is None or started >= next_start:
        return False
    return finished is None or finished >= next_start - GOING_DOWN


def _ended_before(facts: Facts) -> bool:
    return (
        facts.exit_code is not None
        and facts.finished_at is not None
        and facts.signalled_at is not None
        and facts.finished_at < facts.signalled_at
    )


# What runc and the engine say when a start fails; the exit code they leave is 126, 127 or 128.
_START_FAILURES: tuple[tuple[re.Pattern[str], EndReason], ...] = (
    (re.compile(r"exec format error", re.IGNORECASE), EndReason.ARCHITECTURE),
    (re.compile(r"no space left on device", re.IGNORECASE), EndReason.DISK_FULL),
    (re.compile(r"permission denied", re.IGNORECASE), EndReason.COMMAND_NOT_EXECUTABLE),
    (
        re.compile(r"executable file not found|no such file or directory|not found", re.IGNORECASE),
        EndReason.COMMAND_NOT_FOUND,
    ),
)


def of_failed_start(words: str, exit_code: int | None, *, has_gpus: bool) -> EndReason:
    """Why the engine refused to start a container, from its own words and the code it left."""
    if has_gpus and is_gpu_trouble(words):
        return EndReason.GPU_START_FAILED
    for pattern, reason in _START_FAILURES:
        if pattern.search(words):
            return reason
    if exit_code == 127:
        return EndReason.COMMAND_NOT_FOUND
    if exit_code == 126:
        return EndReason.COMMAND_NOT_EXECUTABLE
    return EndReason.GPU_START_FAILED if has_gpus and "hook" in words else EndReason.CREATE_FAILED


_NOT_SET_UP = r"could not select device driver|unknown (or invalid )?runtime"  # its toolkit, or its runtime
# Or a driver that is slow, gone or of another version than its library.
_OF_HOST = re.compile(
    rf"{_NOT_SET_UP}|initialization error|version mismatch|driver rpc error|timed out|not loaded", re.IGNORECASE
)


def is_host_trouble(words: str) -> bool:
    """Whether the words about a GPU that was not handed over tell of the host, so that its other GPUs would not do."""
    return _OF_HOST.search(words) is not None


# Told apart from a user's command that only has such a word in its name.
_OF_GPU = re.compile(
    rf"{_NOT_SET_UP}|nvidia-container|prestart hook|running hook|cdi device|unknown device", re.IGNORECASE
)


def is_gpu_trouble(words: str) -> bool:
    """Whether an engine that refused to make or start a container says that it could not hand over its GPUs."""
    return _OF_GPU.search(words) is not None


def heard(signalled: datetime | None, finished: datetime | None) -> bool:
    """Whether a container was sent a signal before its end, by the engine's own notes; it may answer with any code.

    A signal is noted once it is sent: a moment after the end of a program that answers at once.
    """
    return signalled is not None and finished is not None and signalled <= finished + _NOTED_LATE
