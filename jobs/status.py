"""What is to be said of a job now: the one answer behind its page, its JSON, its socket and the API."""

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.utils import timezone

from jobs import board, borrowing, estimates, logstore, wording
from jobs.access import can_control, can_pin, denial
from jobs.amend import lowered, submitted_with
from jobs.looks import cannot_start, idle, output, state_look
from jobs.models import AllocationSlot, Job, Run
from jobs.policy import Expected
from jobs.states import ENDED, LIVE, WAITING, JobState, RunState

VOLATILE = ("server_time", "log", "progress", "output", "place", "headline")  # the page's shape does not hang on them


def status(job: Job, reader: Any) -> dict[str, Any]:
    """The job as JSON, in the active language; `reader` decides what may be done to it.

    Times are ISO 8601 or null, `server_time` is in seconds since 1970, sizes in bytes, memory in MiB.
    `version` changes whenever something besides `VOLATILE` does.
    """
    run = current_run(job)
    said = summary(job, run, reader)
    said |= {
        "actions": actions(job, reader, run), **ways(job, reader),
        "gpus_granted": granted_gpus(run),
        "warnings": [wording.warning(found) for found in _warnings(run)] if run and job.state in LIVE else [],
        "expected": expected(job), "loan": loans([(job, run)]).get(job.pk, ""),
    }  # fmt: skip
    steady = {name: value for name, value in said.items() if name not in VOLATILE}
    version = hashlib.sha256(json.dumps(steady, sort_keys=True).encode()).hexdigest()[:12]
    return said | {
        "version": version, "server_time": time.time(), "log": log_head(run), "progress": _progress(job, run),
        "place": place(job),
    }  # fmt: skip


def summary(job: Job, run: Run | None, reader: Any) -> dict[str, Any]:
    """The part of `status` that lists show: no query of its own where `run` comes with its node."""
    said = {**_what(job), **_now(job, run, reader), **_times(job, run), **_end(job, run)}
    return said | {
        "run": run and _run(run), "put_back": wording.put_back(job, run), "output": _output(job, run),
        "idle": idle(job, run),
    }  # fmt: skip


def current_run(job: Job) -> Run | None:
    """The job's last run, with what its sentences name."""
    return job.runs.select_related("node", "wish_by").order_by("-number").first()


def _warnings(run: Run) -> list[dict[str, Any]]:
    """Those of the run, and that its host is silent, which only the others can say."""
    node, found = run.node, list(run.warnings)
    if node.last_seen is None or node.is_alive():
        return found
    return [*found, {"code": "HOST_SILENT", "node": node.name, "since": node.last_seen.isoformat()}]


def _what(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk, "name": job.name, "owner": job.owner.username, "team": job.team.name, "image": job.image,
        "gpus": job.gpus, "gpu_model": job.gpu_model, "gpu_percent": job.gpu_milli / 10, "gpu_profile": job.gpu_profile,
        "least_gpus": job.least_gpus, "node_labels": job.node_labels, "stop_signal": job.stop_signal,
        "interactive": job.interactive, "preemptible": job.preemptible, "movable": job.movable,
        "offline": job.offline,
        "cpus": job.millicpus / 1000, "memory_gib": job.memory_mib / 1024, "shm_gib": job.shm_mib / 1024,
        "gpu_memory_gib": job.gpu_memory_mib / 1024, "grace_seconds": job.grace_seconds,
        "millicpus": job.millicpus, "memory_mib": job.memory_mib, "shm_mib": job.shm_mib,
        "limit_seconds": job.limit_seconds, "priority": job.priority,
        "priority_label": str(wording.priority_label(job.priority)),
        "url": job.get_absolute_url(),
    }  # fmt: skip


def _now(job: Job, run: Run | None, reader: Any) -> dict[str, Any]:
    look = state_look(job.state)
    advice = wording.suggestion(job, None) if job.state in WAITING else None
    return {
        "state": job.state, "state_label": look.label, "icon": look.icon, "tone": look.tone,
        "is_waiting": job.state in WAITING, "is_live": job.state in LIVE, "is_ended": job.state in ENDED,
        "headline": wording.headline(job, run, reader=reader.username),
        "reasons": _reasons(job, reader) if job.state in WAITING else [], "cannot_start": cannot_start(job),
        "suggestion": advice.text if advice else "", "changes": advice.changes if advice else {},
        "pinned": job.pinned, "held_by_user": job.held_by_user, "held_by_admin": job.held_by_admin,
        "wish": run.wish if run and job.state in LIVE else "", "requeues": job.requeues,
    }  # fmt: skip


def _reasons(job: Job, reader: Any) -> list[str]:
    found = job.wait_reasons or [{"code": "NOT_LOOKED_AT"}]
    return [wording.wait_reason(reason, reader=reader.username) for reason in found]


def _times(job: Job, run: Run | None) -> dict[str, Any]:
    deadline, stopping_at = (run.deadline, run.stopping_at) if run and job.state in LIVE else (None, None)
    return {
        "created_at": iso(job.created_at), "queued_at": iso(job.queued_at), "start_after": iso(job.start_after),
        "started_at": iso(job.started_at), "ended_at": iso(job.ended_at), "deadline": iso(deadline),
        "stopping_at": iso(stopping_at),
    }  # fmt: skip


def iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _end(job: Job, run: Run | None) -> dict[str, Any]:
    if job.state not in ENDED:
        return {"end_reason": "", "exit_code": None, "end": None}
    advice = wording.suggestion(job, run)
    return {
        "end_reason": job.end_reason, "exit_code": job.exit_code,
        "end": {
            "label": wording.end_label(job.end_reason) if job.end_reason else "",
            "sentence": wording.end_sentence(job, run),
            "suggestion": str(advice) if advice else "", "changes": advice.changes if advice else {},
            "details": run.engine_message if run else "", "oom_killed": run.oom_killed if run else None,
        },
    }  # fmt: skip


def ways(job: Job, reader: Any) -> dict[str, Any]:
    """What the reader may change of a waiting job: so that it starts now, or back to what it was submitted with.

    Each of `ways` with `text`, the `changes` to post, and the `question` to ask first; `ways_of` says who may change
    it where something would help, but the reader may not.
    """
    helps = wording.ways(job) if job.state in WAITING else []
    if not can_control(reader, job):
        return {"ways": [], "ways_of": denial(can_control) if helps else ""}
    back = wording.ways_back(lowered(job, submitted_with(job))) if job.state in WAITING else []
    return {"ways": [*helps, *back], "ways_of": ""}


def loans(runs: Iterable[tuple[Job, Run | None]]) -> dict[int, str]:
    """By job: that a live one's GPUs are borrowed, and when they can be taken back. Those that are not are left out."""
    lent_to = {run.pk: job.pk for job, run in runs if run is not None and job.state in LIVE - {JobState.STOPPING}}
    return {lent_to[run]: wording.loan(**asdict(found)) for run, found in borrowing.of_runs(lent_to).items()}


def actions(job: Job, reader: Any, run: Run | None = None) -> dict[str, bool]:
    """What the reader may do to the job in its state. Resubmitting makes a job of the reader's own."""
    may = can_control(reader, job)
    as_admin = reader.is_staff and reader.pk != job.owner_id
    own_hold = job.held_by_admin if as_admin else job.held_by_user
    stopping = job.state == JobState.STOPPING
    return {
        "cancel": may and job.state not in ENDED and not stopping,
        "hold": may and (job.state == JobState.QUEUED or (job.state == JobState.HELD and not own_hold)),
        "release": may and job.state == JobState.HELD and own_hold,
        "move": may and job.state in (JobState.STARTING, JobState.RUNNING) and job.gpus > 0 and not (run and run.wish),
        "extend": may and job.state == JobState.RUNNING and bool(run and run.deadline and not run.wish),
        "pin": can_pin(reader) and job.state in WAITING and not job.pinned,
        "unpin": can_pin(reader) and job.state in WAITING and job.pinned,
        "clone": True,
        "resubmit": job.state in ENDED and reader.pk == job.owner_id,
    }  # fmt: skip


def _run(run: Run) -> dict[str, Any]:
    return {
        "id": run.pk, "number": run.number, "node": run.node.name, "state": run.state,
        "started_at": iso(run.started_at), "ended_at": iso(run.ended_at),
        "verified": run.granted.get("verified") if run.granted else None,
    }  # fmt: skip


def granted_gpus(run: Run | None) -> list[dict[str, Any]]:
    """The GPUs that were given to the run, in the order of its node."""
    if run is None:
        return []
    slots = AllocationSlot.objects.filter(allocation__run=run).select_related("gpu").order_by("gpu__index")
    gpus = {slot.gpu.uuid: slot.gpu for slot in slots}
    return [
        {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "profile": gpu.profile, "short": gpu.short_uuid,
         "node": run.node.name}
        for gpu in gpus.values()
    ]  # fmt: skip


def log_head(run: Run | None) -> dict[str, Any] | None:
    """How far a run's log reaches now; None before there is a run."""
    if run is None:
        return None
    return {
        "run": run.pk, "number": run.number, "generation": run.log_generation, "end": logstore.size(run),
        "complete": run.log_complete, "dropped": run.log_dropped_bytes, "holes": run.log_holes,
    }  # fmt: skip


def _progress(job: Job, run: Run | None) -> dict[str, Any] | None:
    """How far the start is, in words and where known in percent; None unless the job is on its way to run."""
    if run is None or job.state not in (JobState.PLACED, JobState.STARTING):
        return None
    done, total = run.progress.get("done_bytes"), run.progress.get("total_bytes")
    percent = min(100, round(100 * done / total)) if done and total else None
    return {"text": wording.progress(run), "percent": percent}


def _output(job: Job, run: Run | None) -> dict[str, Any] | None:
    """How far the program says that it is, see `jobs.looks.Output`; None when it tells nothing, or runs no more."""
    found = output(job, run)
    return {"percent": found.percent, "text": found.text, "ends_at": iso(found.ends_at)} if found else None


def place(job: Job) -> dict[str, Any] | None:
    """The job's place in the queue, from 1, its length, and who is before it; None unless it is queued."""
    if job.state != JobState.QUEUED:
        return None
    places, length = board.places([job.pk])
    position = places.get(job.pk)
    if position is None:
        return None
    return {"position": position, "length": length, "text": wording.place(position, length), "ahead": ahead(job)}


def ahead(job: Job) -> dict[str, Any] | None:
    """How many jobs before the queued one wait for the same, and the first by id; None when nobody does."""
    found = board.ahead_of(job.pk) if job.state == JobState.QUEUED else None
    if found is None or not found.count:
        return None
    text = wording.wait_reason({"code": "AHEAD", "count": found.count, "first": found.jobs[0]})
    return {"count": found.count, "jobs": list(found.jobs), "text": text}


def expected(job: Job) -> dict[str, Any] | None:
    """When the job should start, as a range, and how often such ranges were right; None when nobody can say."""
    if job.state != JobState.QUEUED or job.expected_earliest is None or job.expected_latest is None:
        return None
    said = Expected(earliest=job.expected_earliest, latest=job.expected_latest)
    return {
        "earliest": iso(said.earliest), "latest": iso(said.latest),
        "text": wording.expected_start(said.earliest, said.latest), "trust": trust(said),
    }  # fmt: skip


def trust(said: Expected) -> str:
    """How far estimates of starts as far ahead can be trusted, as a sentence; "" before there are enough of them."""
    if said.latest is None:
        return ""
    score = estimates.score_like(said, timezone.now())
    return wording.trust(score.estimates, score.percent, score.mean_width)


def elapsed_share(run: Run | None, now: datetime | None = None) -> int | None:
    """How much of its time limit a live run has used, in percent; None without a limit."""
    if run is None or run.started_at is None or run.deadline is None or run.state == RunState.ENDED:
        return None
    whole = (run.deadline - run.started_at).total_seconds()
    gone = ((now or timezone.now()) - run.started_at).total_seconds()
    return max(0, min(100, round(100 * gone / whole))) if whole > 0 else 100
