"""Which job holds which GPU now, for the pages about GPUs."""

from collections import defaultdict
from typing import Any

from gpus.holders import Holder
from jobs.access import visible_jobs
from jobs.models import AllocationSlot


def holders(reader: Any) -> dict[int, list[Holder]]:
    """GPU primary key to its holders, the first slot's first; a job's name only where `reader` may see the job."""
    slots = AllocationSlot.objects.filter(released_at=None).order_by("gpu_id", "slot")
    job = "allocation__run__job"
    rows = list(slots.values_list("gpu_id", f"{job}_id", f"{job}__owner__username", f"{job}__name"))
    seen = set(visible_jobs(reader).filter(pk__in={row[1] for row in rows}).values_list("pk", flat=True))
    found: dict[int, list[Holder]] = defaultdict(list)
    for gpu, pk, owner, name in dict.fromkeys(rows):  # a job may hold several slots of a GPU
        found[gpu].append(Holder(job=pk, owner=owner, job_name=name if pk in seen else None))
    return dict(found)
