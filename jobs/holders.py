"""Which job holds which GPU now, for the pages about GPUs."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from gpus.holders import Holder
from jobs.access import visible_jobs
from jobs.models import AllocationSlot


def holders() -> dict[int, list[Holder]]:
    """GPU primary key to its holders, the first slot's first."""
    slots = AllocationSlot.objects.filter(released_at=None).order_by("gpu_id", "slot")
    job = "allocation__run__job"
    rows = list(slots.values_list("gpu_id", f"{job}_id", f"{job}__owner__username", f"{job}__name"))
    found: dict[int, list[Holder]] = defaultdict(list)
    for gpu, pk, owner, name in dict.fromkeys(rows):  # a job may hold several slots of a GPU
        found[gpu].append(Holder(job=pk, owner=owner, job_name=name))
    return dict(found)


def named_to(reader: Any, jobs: Collection[int]) -> set[int]:
    """Those of the jobs whose names the reader may see."""
    return set(visible_jobs(reader).filter(pk__in=jobs).values_list("pk", flat=True))
