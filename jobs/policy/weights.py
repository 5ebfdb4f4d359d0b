"""What counts how much in fair share. Pure. See docs/decisions/0010-what-counts-in-fair-share.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Weights:
    """In GPUs: a GPU by its model (1 where it is not named), a CPU, a GiB of memory. The largest of the three counts.

    False while GPUs alone count, each as much as another.
    """

    models: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    memory: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.models or self.cpu or self.memory)

    def milli(self, gpu_milli: int, *, model: str, millicpus: int, memory_mib: int) -> float:
        """Thousandths of a GPU that what is held counts as. `model` "": not known, or any."""
        if not self:
            return gpu_milli
        gpus = gpu_milli * self.models.get(model, 1.0)
        return max(gpus, millicpus * self.cpu, memory_mib * 1000 / 1024 * self.memory)


EQUAL = Weights()
