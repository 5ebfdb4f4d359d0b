"""When a GPU may be given away, and what is said when not."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpus.availability import CODES, why_unavailable
from gpus.models import GPU, Node

NOW = timezone.now()


def gpu(node: dict[str, Any] | None = None, **fields: Any) -> GPU:
    row = Node(name="alpha", **{"gpu_status": Node.GpuStatus.OK, **(node or {})})
    defaults: dict[str, Any] = {"health": GPU.Health.OK, "sampled_at": NOW}
    return GPU(node=row, uuid="GPU-0", index=3, **{**defaults, **fields})


OUTSIDER = {"pid": 4242, "user": "bob", "name": "python3", "memory_mib": 9000, "container": None}


@pytest.mark.parametrize(
    ("gpu", "code", "reason"),
    [
        (gpu(), None, "healthy, fresh, alone"),
        (gpu({"gpu_status": "simulated"}), None, "simulated GPUs are GPUs"),
        (gpu(memory_mib=None), None, "unified memory is no fault"),
        (gpu(sampled_at=None, health=GPU.Health.UNKNOWN), "GPU_UNSAMPLED", "never sampled"),
        (gpu({"gpu_status": "unknown"}), "GPU_UNSAMPLED", "its host has not been sampled yet"),
        (gpu(sampled_at=NOW - timedelta(seconds=21)), "GPU_UNSAMPLED", "an old reading is no reading"),
        (gpu(sampled_at=NOW - timedelta(seconds=19)), None, "fresh enough"),
        (gpu(health=GPU.Health.LOST), "GPU_UNHEALTHY", "fallen off the bus"),
        (gpu(health=GPU.Health.MISSING), "GPU_UNHEALTHY", "gone from the inventory"),
        (gpu(health=GPU.Health.ERROR), "GPU_UNHEALTHY", "its use can't be read"),
        (gpu(busy_outside_since=NOW), "GPU_BUSY_OUTSIDE", "somebody else is on it"),
        (gpu(busy_outside_since=NOW, clean_samples=1), "GPU_BUSY_OUTSIDE", "one clean sample is not enough"),
        (gpu(clean_samples=0), None, "without an outsider no clean samples are needed"),
        (gpu(hidden=True), "GPU_HIDDEN", "an admin's wish"),
        (gpu(quarantine_reason="ECC"), "GPU_QUARANTINED", "an admin's or our own caution"),
        *[
            (gpu({"gpu_status": status}), "DRIVER", "the host's driver is in trouble")
            for status in ("no_library", "no_driver", "no_gpu", "driver_mismatch", "hung", "error")
        ],
    ],
)
def test_reasons(gpu: GPU, code: str | None, reason: str) -> None:
    """roscisz/TensorHive#70, microsoft/pai#3372, clearml/clearml-agent#71, pando85/homelab#4110."""
    found = why_unavailable(gpu, NOW)
    assert (found and found["code"]) == code, reason
    if found:
        assert found["code"] in CODES
        assert (found["gpu"], found["index"], found["node"]) == ("GPU-0", 3, "alpha")


def test_users_learn_who_is_on_a_gpu_but_not_what_they_run() -> None:
    found = why_unavailable(gpu(busy_outside_since=NOW, outsiders=[OUTSIDER]), NOW)
    assert found is not None
    assert found["outsiders"] == [{"pid": 4242, "user": "bob", "memory_mib": 9000, "container": None}]


def test_every_status_and_health_of_the_models_has_an_answer() -> None:
    for status in Node.GpuStatus:
        for health in GPU.Health:
            found = why_unavailable(gpu({"gpu_status": status}, health=health), NOW)
            free = status in ("ok", "simulated") and health == "ok"
            assert (found is None) is free
