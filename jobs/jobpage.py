"""What the template of a job's page shows, beyond the status that scripts know too."""

import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import receipts, wording, workspace
from jobs.access import can_control
from jobs.looks import output
from jobs.models import Job, JobEvent, Run
from jobs.readings import job_gpus_now
from jobs.reorder import priorities
from jobs.status import current_run, elapsed_share, status

MOST_EVENTS = 300
SETTLED = timedelta(seconds=10)  # after its end a job's receipt may still be written


def context(job: Job, reader: Any) -> dict[str, Any]:
    """Everything the page needs, in the reader's language."""
    run = current_run(job)
    said = status(job, reader)
    now = job_gpus_now(job, run) if said["is_live"] else None
    return {
        "job": job, "run": run, "said": said, "events": events(job), "runs": runs(job),
        "times": {"elapsed": elapsed_share(run)}, "output": output(job, run), "command": command(job),
        "secrets": sorted(job.secrets_encrypted),
        "mounts": list(job.mounts.all()), "facts": _facts(run), "granted": _granted(run, said),
        "models": models(job, said), "gpus": shown_gpus(said["gpus_granted"], now),
        "container": _container(now),
        "submission": uuid.uuid4(), "page_data": {**_page_data(job, said), "gpus_now": now},
        "priorities": priorities(job, reader) if can_control(reader, job) else [],
        **(_ending(job, said) if said["is_ended"] else {}),
    }  # fmt: skip


def _ending(job: Job, said: dict[str, Any]) -> dict[str, Any]:
    """What it used of what it asked for, and where the form is that the fix, or a smaller request, fills in."""
    found = receipts.receipt(job)
    changes = found[2] if found else {}
    return {"fix": _again(job, said["end"]["changes"]), "receipt": found and {
        "lines": wording.receipts.lines(*found[:2]), "facts": wording.receipts.facts(*found[:2]), "changes": changes,
        "smaller": wording.receipts.smaller(changes), "address": _again(job, changes),
        "is_fresh": job.ended_at is not None and timezone.now() - job.ended_at < SETTLED,
    }}  # fmt: skip


def _again(job: Job, changes: dict[str, str]) -> str:
    """The form with what the job asked for and these fields otherwise."""
    return f"/jobs/new/?{urlencode({'clone': job.pk, **changes})}"


def _page_data(job: Job, said: dict[str, Any]) -> dict[str, Any]:
    """What the page's scripts start from."""
    return {"id": job.pk, "url": job.get_absolute_url(), "status": said}


def models(job: Job, said: dict[str, Any]) -> list[str]:
    """The models of the GPUs that the job holds or held; of a waiting one, that which it asks for, if any."""
    granted = [] if said["is_waiting"] else said["gpus_granted"]
    return list(dict.fromkeys(gpu["model"] for gpu in granted if gpu["model"])) or [*filter(None, [job.gpu_model])]


def shown_gpus(granted: list[dict[str, Any]], now: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The granted GPUs with their last values, so that nothing jumps when the first news come; None: not known."""
    read = {gpu["uuid"]: gpu for gpu in now["gpus"]} if now else {}
    return [{**gpu, **_values(read.get(gpu["uuid"], {}))} for gpu in granted]


def _values(read: dict[str, Any]) -> dict[str, Any]:
    used, whole = read.get("memory_used_mib"), read.get("memory_mib")
    percent = round(100 * used / whole) if used is not None and whole else 0
    names = ("utilisation", "power_w", "temperature_c", "memory_mib")
    return {**{name: read.get(name) for name in names}, "used_mib": used, "memory_percent": percent}


def _container(now: dict[str, Any] | None) -> dict[str, Any]:
    """The container's last use of CPUs (percent) and memory; None where not known."""
    found = now["containers"] if now else []
    return {"cpu_percent": None, "memory_mib": None, **(found[0] if found else {})}


def events(job: Job) -> list[dict[str, Any]]:
    """The journal's newest MOST_EVENTS lines, newest first."""
    found = JobEvent.objects.filter(job=job).select_related("actor", "run").order_by("-id")[:MOST_EVENTS]
    return [{"at": event.at, "text": wording.event_sentence(event), "kind": event.kind,
             "run": event.run.number if event.run else None, "state": event.new_state} for event in found]  # fmt: skip


def runs(job: Job) -> list[dict[str, Any]]:
    """Every attempt, newest first."""
    found = job.runs.select_related("node", "wish_by").order_by("-number")
    return [{"run": run, "label": wording.run_label(run),
             "sentence": wording.end_sentence(job, run) if run.end_reason else ""} for run in found]  # fmt: skip


def files(job: Job) -> dict[str, Any]:
    """What the job left in its folder."""
    found = workspace.job_files(job)
    most = workspace.MOST_FILES if len(found) == workspace.MOST_FILES else None
    return {"files": [_file(entry) for entry in found], "most": most, "folder": f"/workspace/jobs/{job.pk}"}


def _file(entry: workspace.Entry) -> dict[str, Any]:
    """With `href`, the path as part of an address; empty for a name that is not UTF-8, which no address can say."""
    try:
        href = quote(entry.path)
    except UnicodeEncodeError:
        href = ""
    shown = entry.path.encode(errors="replace").decode()
    return {"path": shown, "href": href, "size": entry.size, "modified": entry.modified}


def command(job: Job) -> dict[str, Any]:
    """The command as it was asked for."""
    words = {"entrypoint": job.entrypoint, "arguments": job.arguments}
    return {"is_script": job.command_kind == "script", "script": job.script, **words}


def _facts(run: Run | None) -> dict[str, Any] | None:
    """The container as its engine had it, with sizes in the units that pages say."""
    if run is None or not run.facts:
        return None
    facts = dict(run.facts)
    facts["memory_mib"] = _mib(facts.get("memory_bytes"))
    facts["shm_mib"] = _mib(facts.get("shm_bytes"))
    facts["cpus"] = wording.cpus(facts["nano_cpus"] / 1_000_000) if facts.get("nano_cpus") else "–"
    return facts


def _mib(size: int | None) -> float | None:
    return size / (1 << 20) if size else None


def _granted(run: Run | None, said: dict[str, Any]) -> dict[str, Any] | None:
    """Which GPUs the container really saw, and how we know."""
    if run is None or not run.granted:
        return None
    known = {gpu["uuid"]: gpu for gpu in said["gpus_granted"]}
    why = {
        "ENDED_FIRST": _("the container ended before it could be looked at"),
        "UNREADABLE": _("its processes cannot be read on this host"),
    }.get(run.granted.get("why", ""), "")
    gpus = [known.get(uuid, {"uuid": uuid, "short": uuid}) for uuid in run.granted.get("gpus", ())]
    return {"verified": bool(run.granted.get("verified")), "mismatch": bool(run.granted.get("mismatch")),
            "why": why, "gpus": gpus}  # fmt: skip
