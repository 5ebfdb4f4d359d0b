"""States, moves, wishes and reasons to end, as tables. Pure: no I/O, no Django.

A job is what a person asked for; a run is one attempt at it. A job's state is its own while it waits
and after its end, and that of its current run in between (see `JOB_STATE_OF_RUN`).
"""

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    HELD = "HELD"
    QUEUED = "QUEUED"
    PLACED = "PLACED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"


class RunState(StrEnum):
    PLACED = "PLACED"  # resources held; no engine call made yet
    STARTING = "STARTING"  # pull, create
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # SIGTERM sent; grace, then SIGKILL
    ENDED = "ENDED"


WAITING = frozenset({JobState.HELD, JobState.QUEUED})
LIVE = frozenset({JobState.PLACED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.LOST})
LIVE_RUNS = frozenset({RunState.PLACED, RunState.STARTING, RunState.RUNNING, RunState.STOPPING})

JOB_STATE_OF_RUN = {
    RunState.PLACED: JobState.PLACED,
    RunState.STARTING: JobState.STARTING,
    RunState.RUNNING: JobState.RUNNING,
    RunState.STOPPING: JobState.STOPPING,
}

RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.PLACED: frozenset({RunState.STARTING, RunState.ENDED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.STOPPING, RunState.ENDED}),
    RunState.RUNNING: frozenset({RunState.STOPPING, RunState.ENDED}),
    RunState.STOPPING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
}

_ENDS_OR_QUEUE = ENDED | {JobState.QUEUED, JobState.HELD}
JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.HELD: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset({JobState.HELD, JobState.PLACED, JobState.CANCELLED, JobState.FAILED}),
    JobState.PLACED: frozenset({JobState.STARTING}) | _ENDS_OR_QUEUE,
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING}) | _ENDS_OR_QUEUE,
    JobState.RUNNING: frozenset({JobState.STOPPING}) | _ENDS_OR_QUEUE,
    JobState.STOPPING: _ENDS_OR_QUEUE,
    **{state: frozenset() for state in ENDED},
}


class Wish(StrEnum):
    """What somebody wants of a live run. A stronger wish replaces a weaker one, never the reverse."""

    CANCEL = "CANCEL"
    SHUT_DOWN = "SHUT_DOWN"
    TIME_LIMIT = "TIME_LIMIT"
    IDLE_RECLAIM = "IDLE_RECLAIM"
    DISK_LIMIT = "DISK_LIMIT"
    REBIND = "REBIND"
    PREEMPT = "PREEMPT"


def known_wish(text: str) -> Wish | None:
    """The wish of this name; None for none, and for one of a newer version, which a host of that version heeds."""
    return Wish(text) if text in set(Wish) else None


WISH_STRENGTH = {
    Wish.CANCEL: 5, Wish.SHUT_DOWN: 4, Wish.TIME_LIMIT: 3, Wish.DISK_LIMIT: 3, Wish.IDLE_RECLAIM: 2, Wish.REBIND: 1,
    Wish.PREEMPT: 1,
}  # fmt: skip


class EndReason(StrEnum):
    """Why a run ended: a closed list. The reason decides the job's next state (`JOB_STATE_AFTER`)."""

    COMPLETED = "COMPLETED"
    EXIT_CODE = "EXIT_CODE"
    PREEMPTED = "PREEMPTED"
    REBOUND = "REBOUND"
    START_TIMEOUT = "START_TIMEOUT"
    PULL_FAILED = "PULL_FAILED"
    CREATE_FAILED = "CREATE_FAILED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    OOM_KILLED = "OOM_KILLED"
    CUDA_OOM = "CUDA_OOM"
    TIME_LIMIT = "TIME_LIMIT"
    STOPPED_BY_USER = "STOPPED_BY_USER"
    STOPPED_BY_ADMIN = "STOPPED_BY_ADMIN"
    SHUT_DOWN = "SHUT_DOWN"
    IDLE_RECLAIMED = "IDLE_RECLAIMED"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    IMAGE_AUTH = "IMAGE_AUTH"
    IMAGE_RATE_LIMITED = "IMAGE_RATE_LIMITED"
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    COMMAND_NOT_EXECUTABLE = "COMMAND_NOT_EXECUTABLE"
    ARCHITECTURE = "ARCHITECTURE"
    GPU_LOST = "GPU_LOST"
    GPU_ACCESS_LOST = "GPU_ACCESS_LOST"
    GPU_FAULT = "GPU_FAULT"
    GPU_START_FAILED = "GPU_START_FAILED"
    DISK_FULL = "DISK_FULL"
    DISK_LIMIT = "DISK_LIMIT"
    LOG_LIMIT = "LOG_LIMIT"
    KILLED_EXTERNALLY = "KILLED_EXTERNALLY"
    HOST_DAEMON_RESTART = "HOST_DAEMON_RESTART"
    HOST_REBOOT = "HOST_REBOOT"
    HOST_LOST = "HOST_LOST"


# By what is written of a run, which a newer version may have written: a reason may be in none of these.
JOB_STATE_AFTER: Mapping[str, JobState] = {
    EndReason.COMPLETED: JobState.SUCCEEDED,
    EndReason.EXIT_CODE: JobState.FAILED,
    EndReason.PREEMPTED: JobState.QUEUED,
    EndReason.REBOUND: JobState.QUEUED,
    EndReason.START_TIMEOUT: JobState.QUEUED,
    EndReason.PULL_FAILED: JobState.FAILED,
    EndReason.CREATE_FAILED: JobState.FAILED,
    EndReason.DEPENDENCY_FAILED: JobState.FAILED,
    EndReason.OOM_KILLED: JobState.FAILED,
    EndReason.CUDA_OOM: JobState.FAILED,
    EndReason.TIME_LIMIT: JobState.TIMED_OUT,
    EndReason.STOPPED_BY_USER: JobState.CANCELLED,
    EndReason.STOPPED_BY_ADMIN: JobState.CANCELLED,
    EndReason.SHUT_DOWN: JobState.CANCELLED,
    EndReason.IDLE_RECLAIMED: JobState.CANCELLED,
    EndReason.IMAGE_NOT_FOUND: JobState.FAILED,
    EndReason.IMAGE_AUTH: JobState.FAILED,
    EndReason.IMAGE_RATE_LIMITED: JobState.FAILED,
    EndReason.COMMAND_NOT_FOUND: JobState.FAILED,
    EndReason.COMMAND_NOT_EXECUTABLE: JobState.FAILED,
    EndReason.ARCHITECTURE: JobState.FAILED,
    EndReason.GPU_LOST: JobState.FAILED,
    EndReason.GPU_ACCESS_LOST: JobState.FAILED,
    EndReason.GPU_FAULT: JobState.FAILED,
    EndReason.GPU_START_FAILED: JobState.FAILED,
    EndReason.DISK_FULL: JobState.FAILED,
    EndReason.DISK_LIMIT: JobState.FAILED,
    EndReason.LOG_LIMIT: JobState.FAILED,
    EndReason.KILLED_EXTERNALLY: JobState.FAILED,
    EndReason.HOST_DAEMON_RESTART: JobState.FAILED,
    EndReason.HOST_REBOOT: JobState.FAILED,
    EndReason.HOST_LOST: JobState.LOST,
}

# Ends for the sake of others, no failed try of the job's own: it waits again however often that happens.
FOR_OTHERS = frozenset({EndReason.PREEMPTED, EndReason.REBOUND})


class Charge(StrEnum):
    """What of the hardware an end is charged to: the GPUs that the run held, or its whole host."""

    GPU = "GPU"
    HOST = "HOST"


# Ends that are no fault of the job. It is tried once more, elsewhere, if nothing of it had begun, or if it may be
# stopped and started again; else it ends as above.
CHARGED_TO: Mapping[str, Charge] = {
    EndReason.GPU_START_FAILED: Charge.GPU,
    EndReason.GPU_LOST: Charge.GPU,
    EndReason.GPU_FAULT: Charge.GPU,
    EndReason.GPU_ACCESS_LOST: Charge.HOST,
    EndReason.DISK_FULL: Charge.HOST,
    EndReason.START_TIMEOUT: Charge.HOST,
    EndReason.HOST_DAEMON_RESTART: Charge.HOST,
    EndReason.HOST_REBOOT: Charge.HOST,
    EndReason.HOST_LOST: Charge.HOST,
}
UNBEGUN = frozenset({EndReason.GPU_START_FAILED, EndReason.DISK_FULL})  # before the job's own program had begun
# Of the ends that are charged to hardware, those that come as often as `max_requeues` allows: silence is no proof.
_OFTEN = frozenset({EndReason.START_TIMEOUT, EndReason.HOST_LOST})
MOST_RETRIES = 1  # in a row

# Ends that the job came to by itself; all others cut it off, and tell nothing of how long it would have run.
OF_ITSELF = frozenset({
    EndReason.COMPLETED, EndReason.EXIT_CODE, EndReason.OOM_KILLED, EndReason.CUDA_OOM,
    EndReason.COMMAND_NOT_FOUND, EndReason.COMMAND_NOT_EXECUTABLE, EndReason.ARCHITECTURE,
})  # fmt: skip

# Where a reason leads when the job has been put back to the queue as often as it may.
JOB_STATE_WHEN_SPENT = JobState.FAILED

REASON_OF_WISH = {
    Wish.SHUT_DOWN: EndReason.SHUT_DOWN,
    Wish.TIME_LIMIT: EndReason.TIME_LIMIT,
    Wish.IDLE_RECLAIM: EndReason.IDLE_RECLAIMED,
    Wish.DISK_LIMIT: EndReason.DISK_LIMIT,
    Wish.REBIND: EndReason.REBOUND,
    Wish.PREEMPT: EndReason.PREEMPTED,
}


class IllegalMove(Exception):
    """A move that no table allows: a bug in the caller, never a race (a race makes `advance` return False)."""

    def __init__(self, kind: str, old: str, new: str) -> None:
        super().__init__(f"no {kind} may move from {old} to {new}")


def check_job_move(old: JobState, new: JobState) -> None:
    """Raise IllegalMove unless the table of job moves has this one."""
    if new not in JOB_MOVES[old]:
        raise IllegalMove("job", old, new)


def check_run_move(old: RunState, new: RunState) -> None:
    """Raise IllegalMove unless the table of run moves has this one."""
    if new not in RUN_MOVES[old]:
        raise IllegalMove("run", old, new)


def reason_for_wish(wish: Wish, *, by_owner: bool) -> EndReason:
    """The reason to end that a granted wish leaves, whatever the container's exit code."""
    if wish is Wish.CANCEL:
        return EndReason.STOPPED_BY_USER if by_owner else EndReason.STOPPED_BY_ADMIN
    return REASON_OF_WISH[wish]


def job_state_after(
    reason: EndReason, *, requeues: int, max_requeues: int, held: bool, again: bool = False, retries: int = 0
) -> JobState:
    """Where a job goes when its run ends for `reason`: its end, or back to the queue at its old place.

    `again`: it may be stopped and started again, which counts where hardware failed under its program. `retries`:
    how many of its runs just before this one ended for the hardware's sake too.
    """
    state = JOB_STATE_AFTER[reason]
    retried = reason in CHARGED_TO and (again or reason in UNBEGUN) and (reason in _OFTEN or retries < MOST_RETRIES)
    if retried and requeues < max_requeues:
        state = JobState.QUEUED
    if state is not JobState.QUEUED:
        return state
    if requeues >= max_requeues and reason not in FOR_OTHERS:
        return JOB_STATE_WHEN_SPENT
    return JobState.HELD if held else JobState.QUEUED
