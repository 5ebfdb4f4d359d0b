"""How much of the largest host goes with a number of its GPUs: sizes that a form suggests, and that can start."""

from typing import NamedTuple

from django.db.models import Count, Q

from gpus.models import GPU, Node
from jobs.quotas import Limits

USUAL_MILLICPUS = 4000  # with each GPU, where the host has as much
USUAL_MEMORY_MIB = 16 * 1024


class Size(NamedTuple):
    """GPUs, CPUs in thousandths and memory in MiB: of a host less its reserve, or of a job."""

    gpus: int
    millicpus: int
    memory_mib: int


_OFFERED = Q(gpus__hidden=False) & ~Q(gpus__health=GPU.Health.SPLIT) & Q(gpus__profile="")  # whole GPUs


def largest_host() -> Size:
    """The host with the most GPUs that are offered, and of those the one with the most CPUs; a usual one before any."""
    rows = Node.objects.filter(millicpus__gt=0, left_at=None).annotate(count=Count("gpus", filter=_OFFERED))
    sizes = [
        Size(
            row.count, max(row.millicpus - row.reserved_millicpus, 0), max(row.memory_mib - row.reserved_memory_mib, 0)
        )
        for row in rows
    ]
    return max(sizes, default=Size(1, USUAL_MILLICPUS, USUAL_MEMORY_MIB))


def share(host: Size, gpus: int, limits: Limits) -> Size:
    """What a job with so many GPUs of the host may take without keeping others from the rest, within `limits`.

    At least one CPU, and whole CPUs, and whole GiB of memory where there is one.
    """
    parts, of = max(gpus, 1), max(host.gpus, 1)
    millicpus = min(USUAL_MILLICPUS * parts, _whole(host.millicpus * parts // of, 1000) or 1000, host.millicpus)
    memory = min(USUAL_MEMORY_MIB * parts, host.memory_mib * parts // of)
    memory = _whole(memory, 1024) or _whole(memory, 256) or memory
    return Size(gpus, _within(millicpus, limits.millicpus), _within(memory, limits.memory_mib))


def _whole(value: int, step: int) -> int:
    return value // step * step


def _within(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)
