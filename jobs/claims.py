"""Which job holds which GPU of this host, and with which container: what explains the processes seen there."""

from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from gpus.claims import Claim
from jobs.models import Allocation


def of_node(name: str) -> list[Claim]:
    """One claim per GPU of each run that is live, or ended within FOREIGN_GRACE; one without UUID for a CPU job."""
    lately = timezone.now() - timedelta(seconds=settings.FOREIGN_GRACE)
    held = Allocation.objects.filter(Q(released_at=None) | Q(released_at__gt=lately), node__name=name)
    held = held.select_related("run__job__owner").prefetch_related("slots__gpu")
    return [claim for allocation in held for claim in _claims(allocation)]


def _claims(allocation: Allocation) -> list[Claim]:
    run = allocation.run
    uuids = list(dict.fromkeys(slot.gpu.uuid for slot in allocation.slots.all())) or [""]
    return [
        Claim(
            gpu_uuid=uuid,
            container_id=run.container_id,
            job=run.job_id,
            run=run.pk,
            owner=run.job.owner.get_username(),
            ended=allocation.released_at,
        )
        for uuid in uuids
    ]
