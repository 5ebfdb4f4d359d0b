"""Warn the owners of live runs of what befalls their GPUs: lost, sick, or used by somebody from outside."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from gpus.models import GPU
from jobs import containers
from jobs.models import AllocationSlot, Run
from jobs.states import LIVE_RUNS

LOST = (GPU.Health.LOST, GPU.Health.MISSING)


def watch_gpus(node_name: str) -> None:
    """Compare the live runs of a node with its GPUs. Stops nobody: what is found becomes a warning on the run."""
    sick = Q(gpu__health=GPU.Health.ERROR) | Q(gpu__quarantine_reason__startswith="Xid")
    troubled = Q(gpu__health__in=LOST) | Q(gpu__busy_outside_since__isnull=False) | sick
    slots = AllocationSlot.objects.filter(
        troubled, released_at=None, allocation__node__name=node_name, allocation__run__state__in=LIVE_RUNS
    )
    for slot in slots.select_related("gpu", "allocation__run__job"):
        for found in _troubles(slot.gpu):
            warn(slot.allocation.run, **found)


def watch_logs(problems: Mapping[int, str]) -> None:
    """Warn the owner of each run whose output can't be written on its host: the job may stand still meanwhile."""
    for run in Run.objects.filter(pk__in=problems, state__in=LIVE_RUNS).select_related("job"):
        warn(run, "LOG_STUCK", why=problems[run.pk])


def watch_memory(run_id: int) -> None:
    """Warn the owner of a live run that goes on after one of its processes was killed for lack of memory."""
    time.sleep(settings.KILL_SETTLE)  # if it was the first process, the container ends now, and `finish` says why
    run = Run.objects.select_related("job").filter(pk=run_id, state__in=LIVE_RUNS).first()
    container = containers.inspect(run.container_id or run.container_name) if run is not None else None
    if run is not None and container is not None and not container.has_ended:
        warn_of_memory(run)


def warn_of_memory(run: Run) -> bool:
    """That one of the job's processes was killed for lack of memory, and the job went on."""
    return warn(run, "PROCESS_OOM", memory_mib=run.job.memory_mib)


def has_lost_gpu(run: Run) -> bool:
    """Whether the driver has lost one of the run's GPUs, at some time or just now."""
    return any(warning["code"] == "GPU_LOST" for warning in run.warnings) or (
        AllocationSlot.objects.filter(allocation__run=run, gpu__health__in=LOST).exists()
    )


def warn(run: Run, code: str, **params: Any) -> bool:
    """Add a warning to the run, with its event, once per code and GPU. False when it is there already."""
    with transaction.atomic():
        known = Run.objects.select_for_update(no_key=True).values_list("warnings", flat=True).get(pk=run.pk)
        if any(_key(warning) == (code, params.get("uuid")) for warning in known):
            return False
        run.warnings = [*known, {"code": code, **params}]
        run.save(update_fields=["warnings"])
        run.job.note("WARNED", run=run, code=code, **params)
    return True


def take_back(run: Run, code: str, kind: str | None) -> bool:
    """Take a warning away that holds no longer, with an event of that kind (None: without). False: it has none."""
    with transaction.atomic():
        known = Run.objects.select_for_update(no_key=True).values_list("warnings", flat=True).get(pk=run.pk)
        run.warnings = [warning for warning in known if warning["code"] != code]
        if run.warnings == known:
            return False
        run.save(update_fields=["warnings"])
        if kind is not None:
            run.job.note(kind, run=run)
    return True


def _key(warning: Mapping[str, Any]) -> tuple[str, str | None]:
    return warning["code"], warning.get("uuid")


def _troubles(gpu: GPU) -> Iterator[dict[str, Any]]:
    if gpu.health in LOST:
        yield {"code": "GPU_LOST", "uuid": gpu.uuid}
    if gpu.health == GPU.Health.ERROR:
        yield {"code": "GPU_SICK", "uuid": gpu.uuid, "why": gpu.health_message}
    elif gpu.quarantine_reason.startswith("Xid"):
        yield {"code": "GPU_SICK", "uuid": gpu.uuid, "why": gpu.quarantine_reason}
    if gpu.busy_outside_since is not None:
        yield {"code": "OUTSIDER", "uuid": gpu.uuid, "by": ", ".join(dict.fromkeys(map(_who, gpu.outsiders)))}


def _who(outsider: Mapping[str, Any]) -> str:
    """User name and process id, as far as the host told them; the command line is nobody else's business."""
    pid = outsider.get("pid")
    if pid is None:
        return ""
    return f"{outsider['user']} ({pid})" if outsider.get("user") else f"({pid})"
