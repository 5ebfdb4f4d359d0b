"""How a state looks on every page and in every JSON: word, icon and tone, from one table."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs import wording
from jobs.models import Job, Run
from jobs.policy.explain import is_final
from jobs.states import LIVE, WAITING, JobState, RunState


@dataclass(frozen=True)
class Look:
    """`tone` is one of the page's colours; colour never stands alone."""

    label: str
    icon: str  # a class of bootstrap-icons
    tone: str


_LOOKS = {
    JobState.HELD: ("bi-pause-circle", "grey"),
    JobState.QUEUED: ("bi-hourglass-split", "amber"),
    JobState.PLACED: ("bi-pin-map", "accent"),
    JobState.STARTING: ("bi-box-arrow-in-right", "accent"),
    JobState.RUNNING: ("bi-play-circle-fill", "accent"),
    JobState.STOPPING: ("bi-stop-circle", "orange"),
    JobState.SUCCEEDED: ("bi-check-circle-fill", "green"),
    JobState.FAILED: ("bi-x-circle-fill", "red"),
    JobState.CANCELLED: ("bi-slash-circle", "grey"),
    JobState.TIMED_OUT: ("bi-alarm-fill", "orange"),
    JobState.LOST: ("bi-question-diamond-fill", "violet"),
}


def cannot_start(job: Job) -> bool:
    """Whether the job waits for what can't come: hardware there isn't, or more than a limit itself."""
    return job.state in WAITING and any(map(is_final, job.wait_reasons))


def state_look(state: str) -> Look:
    """The look of a job's state."""
    icon, tone = _LOOKS[JobState(state)]
    return Look(label=str(wording.state_label(state)), icon=icon, tone=tone)


MOST_LEFT = 366 * 86400  # seconds: a guess beyond is none


@dataclass(frozen=True)
class Output:
    """How far a live run's program says that it is: percent, in words (may be empty), and when it should be done."""

    percent: int
    text: str
    ends_at: datetime | None


def output(job: Job, run: Run | None) -> Output | None:
    """None when the program tells nothing, or runs no more."""
    found = run.output_progress if run is not None and job.state in LIVE and run.state != RunState.ENDED else None
    if not found:
        return None
    at, left = datetime.fromtimestamp(found["at"], UTC), found.get("left")
    ends_at = at + timedelta(seconds=left) if left is not None and 0 < left < MOST_LEFT else None
    return Output(min(int(100 * found["fraction"]), 100), wording.output_progress(found), ends_at)


def idle(job: Job, run: Run | None) -> str:
    """That the GPUs of a live run do nothing and since when, as a sentence; "" where they work, or nobody knows."""
    found = run.idle_warning if run is not None and job.state in LIVE else None
    return wording.warning(found) if found else ""
