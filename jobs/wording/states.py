"""States in a word, and the one sentence that heads a job in any of them."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from jobs.models import Job, Priority, Run
from jobs.policy.helps import HELPS
from jobs.quotas import WHOLE
from jobs.states import ENDED, WAITING, JobState, Wish
from jobs.wording import quantities as q
from jobs.wording.ends import end_sentence
from jobs.wording.events import progress
from jobs.wording.lookup import Params, Table, say
from jobs.wording.waits import wait_reason

# Not reasons to wait, but who is ahead and what would help.
HINTS = HELPS | {"AHEAD"}


def state_label(state: str) -> str:
    """A job's or run's state in the word that every page uses."""
    return say(STATES, str(state), {})


def priority_label(priority: int) -> str:
    return str(Priority(priority).label) if priority in Priority.values else str(priority)


def headline(job: Job, run: Run | None = None, *, reader: str | None = None) -> str:
    """The one sentence on a job in list rows and at the head of its page.

    `run` is its current run where the caller has it; else prefetched runs are used, else it is fetched.
    """
    if job.state in WAITING:
        reasons = job.wait_reasons or [_held_reason(job)]
        return wait_reason(_telling(reasons), reader=reader)
    run = run or latest_run(job)
    if job.state in ENDED:
        return end_sentence(job, run)
    return say(HEADLINES, job.state, {"job": job, "run": run})


def put_back(job: Job, run: Run | None) -> str:
    """Why a job that ran already waits again; empty for others. `run`: its last one."""
    if job.state not in WAITING or run is None or not run.end_reason:
        return ""
    return end_sentence(job, run)


def latest_run(job: Job) -> Run | None:
    """The job's last run, without a query where the runs were prefetched."""
    if "runs" in getattr(job, "_prefetched_objects_cache", {}):
        return max(job.runs.all(), key=lambda run: run.number, default=None)
    return job.current_run


def _held_reason(job: Job) -> dict[str, Any]:
    if job.held_by_admin:
        return {"code": "HELD_BY_ADMIN"}
    return {"code": "HELD_BY_USER" if job.held_by_user else "NOT_LOOKED_AT"}


def _telling(reasons: list[dict[str, Any]]) -> dict[str, Any]:
    """The reason to show alone: the first that is not merely a hint or a place in line."""
    return next((r for r in reasons if r.get("code") not in HINTS), reasons[0])


def _running(p: Params) -> str:
    job, run = p["job"], p["run"]
    where = _("on %(node)s") % {"node": run.node.name} if run else ""
    what = _gpus_held(job, run) if job.gpus else q.cpus(job.millicpus)
    since = run.started_at or run.starting_at or run.placed_at if run else job.started_at
    text = _("Running %(where)s with %(what)s since %(since)s.")
    return text % {"where": where, "what": what, "since": q.clock_time(since)}


def _gpus_held(job: Job, run: Run | None) -> str:
    """Of an elastic job what it has this time; of a share, how large it is."""
    if job.gpu_milli < WHOLE:
        return q.gpu_share(job.gpu_milli)
    return q.gpus(run.allocation.gpus if run is not None and job.least_gpus is not None else job.gpus)


def _stopping(p: Params) -> str:
    run = p["run"]
    wish = run.wished if run else None
    who = run.wish_by.username if run and run.wish_by_id else ""
    winner = run.makes_way_for_id if run else None
    if wish is Wish.CANCEL and who:
        return _("Stopping: cancelled by %(who)s.") % {"who": who}
    if winner is not None and wish in (Wish.PREEMPT, Wish.REBIND):
        return _("Stopping: it makes room for job #%(job)s, and then goes on.") % {"job": winner}
    return {
        Wish.CANCEL: _("Stopping: cancelled."),
        Wish.SHUT_DOWN: _("Stopping: Dockyard is shut down."),
        Wish.TIME_LIMIT: _("Stopping: its time limit is over."),
        Wish.DISK_LIMIT: _("Stopping: it filled more of the disk than jobs may."),
        Wish.IDLE_RECLAIM: _("Stopping: its GPUs were idle."),
        Wish.REBIND: _rebinding(run),
        Wish.PREEMPT: _("Stopping: a job of higher priority takes its place."),
        None: _("Stopping."),
    }[wish]


def _rebinding(run: Run | None) -> str:
    gpus = run.resized_to if run is not None and run.wish == Wish.REBIND else None
    if gpus is None:
        return _("Stopping: it moves to other GPUs.")
    return _("Stopping: it goes on with %(gpus)s.") % {"gpus": q.gpus(gpus)}


HEADLINES: Table = {
    JobState.PLACED: lambda p: progress(p["run"]),
    JobState.STARTING: lambda p: progress(p["run"]),
    JobState.RUNNING: _running,
    JobState.STOPPING: _stopping,
}

STATES: Table = {
    JobState.HELD: lambda p: pgettext("job state", "on hold"),
    JobState.QUEUED: lambda p: pgettext("job state", "waiting"),
    JobState.PLACED: lambda p: pgettext("job state", "placed"),
    JobState.STARTING: lambda p: pgettext("job state", "starting"),
    JobState.RUNNING: lambda p: pgettext("job state", "running"),
    JobState.STOPPING: lambda p: pgettext("job state", "stopping"),
    JobState.SUCCEEDED: lambda p: pgettext("job state", "succeeded"),
    JobState.FAILED: lambda p: pgettext("job state", "failed"),
    JobState.CANCELLED: lambda p: pgettext("job state", "cancelled"),
    JobState.TIMED_OUT: lambda p: pgettext("job state", "timed out"),
    JobState.LOST: lambda p: pgettext("job state", "lost"),
    "ENDED": lambda p: pgettext("run state", "ended"),
}
