"""What the owner of a job is told when its GPU turns sick under it."""

import pytest

from gpus.models import GPU
from jobs import watch
from jobs.models import Run
from portal.models import User
from tests import factories


@pytest.mark.parametrize(
    ("columns", "told", "reason"),
    [
        ({"health": "error", "health_message": "uncorrected ECC errors: 2"}, ["uncorrected ECC errors: 2"], "memory"),
        ({"quarantine_reason": "Xid 79"}, ["Xid 79"], "the driver reports broken hardware"),
        ({"quarantine_reason": "job 12 could not be killed"}, [], "nothing of the hardware"),
        ({}, [], "well"),
    ],
)
def test_a_sick_gpu_is_told_to_the_owner_of_its_job_once(
    alice: User, columns: dict[str, str], told: list[str], reason: str
) -> None:
    """NVIDIA/k8s-device-plugin#267: whoever computes on a broken GPU should hear of it."""
    node = factories.make_node()
    run = factories.make_run(factories.make_job(alice), node)
    GPU.objects.filter(uuid__in=run.gpu_uuids).update(**columns)
    for _ in range(2):
        watch.watch_gpus(node.name)
    warnings = Run.objects.get(pk=run.pk).warnings
    assert [warning["why"] for warning in warnings if warning["code"] == "GPU_SICK"] == told, reason
