"""Which of a node's GPUs go together: of one model, joined by NVLink, on one NUMA node. Pure."""

from collections.abc import Callable, Sequence

from jobs.policy.view import Gpu

# From the outermost ring to the innermost. Links that nobody knows of tie nothing: such GPUs are one group.
_RINGS: tuple[Callable[[Gpu], object], ...] = (
    lambda gpu: (gpu.model, gpu.memory_mib),
    lambda gpu: gpu.island,
    lambda gpu: gpu.numa,
)

NEAR = (0, 0, 0)  # see `torn`


def closest(gpus: Sequence[Gpu], count: int) -> list[Gpu]:
    """`count` of the GPUs (all, if they are fewer), as near to each other as may be.

    The smallest group that has enough is broken into, so that larger ones stay whole; of equal groups the
    one with the least memory, then the first on the bus.
    """
    return _closest(gpus, count, 0)


def _closest(gpus: Sequence[Gpu], count: int, ring: int) -> list[Gpu]:
    if count <= 0:
        return []
    if ring == len(_RINGS) or len(gpus) <= count:
        return sorted(gpus, key=lambda gpu: gpu.index)[:count]
    group = min(_groups(gpus, ring), key=lambda group: _rank(group, count))
    rest = [gpu for gpu in gpus if gpu not in group]
    return _closest(group, count, ring + 1) + _closest(rest, count - len(group), ring)


def _groups(gpus: Sequence[Gpu], ring: int) -> list[list[Gpu]]:
    groups: dict[object, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault(_RINGS[ring](gpu), []).append(gpu)
    return list(groups.values())


def _rank(group: Sequence[Gpu], count: int) -> tuple[bool, int, int, int]:
    """Groups with enough come first, the smallest of them before the others; else the largest."""
    enough = len(group) >= count
    memory = min(gpu.memory_mib or 0 for gpu in group)
    return not enough, memory if enough else 0, len(group) if enough else -len(group), min(gpu.index for gpu in group)


def torn(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """How many models, NVLink islands and NUMA nodes the GPUs lie on beyond one each: the fewer, the better."""
    return tuple(len({ring(gpu) for gpu in gpus}) - 1 for ring in _RINGS) if gpus else NEAR
