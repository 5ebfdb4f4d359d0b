"""Charge an end to the hardware that it came from: a GPU that fails jobs gets no others until an admin looks at it."""

from collections.abc import Iterable
from datetime import timedelta

from gpus.models import GPU
from gpus.quarantine import quarantine
from jobs import endings
from jobs.models import Job, Run
from jobs.states import CHARGED_TO, EndReason, RunState

STRIKES = 3  # runs in a row that a GPU failed, where one alone may have another cause
QUICK = timedelta(seconds=60)  # a program that lived longer had a GPU to work on


def may_start_again(job: Job) -> bool:
    """Whether its owner allows that its program is stopped and started anew."""
    return job.preemptible or job.movable


def retries(run: Run) -> int:
    """How many runs of the job just before this one ended for the hardware's sake."""
    before = Run.objects.filter(job_id=run.job_id, number__lt=run.number).order_by("-number")
    count = 0
    for reason in before.values_list("end_reason", flat=True):
        if reason not in CHARGED_TO:
            break
        count += 1
    return count


def charge(run: Run, reason: EndReason, words: str) -> None:
    """Quarantine the GPUs that the end of this run tells to be broken. Inside the transaction that ends it."""
    if reason not in (EndReason.GPU_START_FAILED, EndReason.GPU_FAULT) or run.granted.get("mismatch"):
        return
    gpus = list(GPU.objects.filter(uuid__in=run.gpu_uuids, quarantine_reason=""))
    quarantine([gpu.uuid for gpu in _guilty(gpus, reason, words)], f"job {run.job_id} {_SAID[reason]}")


_SAID = {
    EndReason.GPU_START_FAILED: "could not be started on it",
    EndReason.GPU_FAULT: f"and {STRIKES - 1} before it failed on it by its hardware",
}


def _guilty(gpus: list[GPU], reason: EndReason, words: str) -> Iterable[GPU]:
    if reason is EndReason.GPU_START_FAILED and not endings.is_host_trouble(words):
        named = [gpu for gpu in gpus if gpu.uuid in words]
        if named or len(gpus) == 1:
            return named or gpus
    return [gpu for gpu in gpus if _has_failed(gpu, reason)]


def _has_failed(gpu: GPU, reason: EndReason) -> bool:
    """Whether its last runs all ended so; of those whose program began, soon after."""
    ended = Run.objects.filter(state=RunState.ENDED, allocation__slots__gpu=gpu).distinct().order_by("-ended_at", "-pk")
    last = list(ended.only("end_reason", "started_at", "ended_at")[:STRIKES])
    return len(last) == STRIKES and all(run.end_reason == reason and _was_quick(run) for run in last)


def _was_quick(run: Run) -> bool:
    return run.started_at is None or run.ended_at is None or run.ended_at - run.started_at < QUICK
