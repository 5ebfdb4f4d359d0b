"""Whether a GPU may be given to a job, and if not why: the one answer that scheduler and pages share.

A GPU is free only when we know that it is: present, healthy, sampled within SAMPLE_FRESH and with nobody
from outside on it. What jobs hold is not looked at here.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from gpus.models import GPU, Node

Reason = dict[str, Any]

CODES = ("GPU_HIDDEN", "GPU_QUARANTINED", "DRIVER", "GPU_UNHEALTHY", "GPU_UNSAMPLED", "GPU_BUSY_OUTSIDE")

_WORKING = (Node.GpuStatus.OK, Node.GpuStatus.SIMULATED)


def why_unavailable(gpu: GPU, now: datetime) -> Reason | None:
    """The first reason, strongest first, why `gpu` is not to be given away at `now`; None: it may be.

    Reads `gpu.node` (select it too). The dict has `code` (one of CODES), `gpu` (UUID), `index`, `node` and,
    by code: `status`, `message` (DRIVER) · `health`, `message` (GPU_UNHEALTHY) · `sampled_at`, ISO or None
    (GPU_UNSAMPLED) · `since`, ISO, and `outsiders`, without their process names (GPU_BUSY_OUTSIDE) ·
    `why` (GPU_QUARANTINED). `outsiders` with `pid` None is memory that no listed process holds.
    """
    found = _by_admin(gpu) or _by_host(gpu.node) or _by_reading(gpu, now) or _by_outsiders(gpu)
    return found and found | {"gpu": gpu.uuid, "index": gpu.index, "node": gpu.node.name}


def _by_admin(gpu: GPU) -> Reason | None:
    if gpu.hidden:
        return {"code": "GPU_HIDDEN"}
    if gpu.quarantine_reason:
        return {"code": "GPU_QUARANTINED", "why": gpu.quarantine_reason}
    return None


def _by_host(node: Node) -> Reason | None:
    if node.gpu_status == Node.GpuStatus.UNKNOWN:
        return {"code": "GPU_UNSAMPLED", "sampled_at": None}
    if node.gpu_status not in _WORKING:
        return {"code": "DRIVER", "status": node.gpu_status, "message": node.gpu_message}
    return None


def _by_reading(gpu: GPU, now: datetime) -> Reason | None:
    if gpu.health not in (GPU.Health.OK, GPU.Health.UNKNOWN):
        return {"code": "GPU_UNHEALTHY", "health": gpu.health, "message": gpu.health_message}
    oldest = now - timedelta(seconds=settings.SAMPLE_FRESH)
    if gpu.health == GPU.Health.UNKNOWN or gpu.sampled_at is None or gpu.sampled_at < oldest:
        return {"code": "GPU_UNSAMPLED", "sampled_at": gpu.sampled_at and gpu.sampled_at.isoformat()}
    return None


def _by_outsiders(gpu: GPU) -> Reason | None:
    if gpu.busy_outside_since is None:
        return None
    return {
        "code": "GPU_BUSY_OUTSIDE",
        "since": gpu.busy_outside_since.isoformat(),
        "outsiders": [{k: v for k, v in outsider.items() if k != "name"} for outsider in gpu.outsiders],
    }
