"""Which job holds which GPU of this host, and with which container: what explains the processes seen there."""

from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from gpus.claims import Claim
from jobs.models import Allocation

_COLUMNS = (
    "slots__gpu__uuid", "run__container_id", "run__job_id", "run_id", "run__job__owner__username", "released_at",
)  # fmt: skip


def of_node(name: str) -> list[Claim]:
    """One claim per GPU of each run that is live, or ended within FOREIGN_GRACE; one without UUID for a CPU job.

    Asked for with every sample: one query of the columns that are needed.
    """
    lately = timezone.now() - timedelta(seconds=settings.FOREIGN_GRACE)
    held = Allocation.objects.filter(Q(released_at=None) | Q(released_at__gt=lately), node__name=name)
    return [
        Claim(gpu_uuid=uuid or "", container_id=container, job=job, run=run, owner=owner, ended=ended)
        for uuid, container, job, run, owner, ended in held.values_list(*_COLUMNS).distinct()
    ]
