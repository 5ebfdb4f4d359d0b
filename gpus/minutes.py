"""Means over whole minutes, one GPU at a time. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpus.readings import GpuReading

# Our column of the minute: the metric of the reading
METRICS = {
    "utilisation": "utilisation",
    "memory_mib": "memory_used_mib",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
}


@dataclass(frozen=True, kw_only=True)
class Minute:
    uuid: str
    start: int  # seconds since 1970, a multiple of 60
    means: dict[str, float | None]  # by the keys of METRICS; None: never known in this minute


@dataclass
class Minutes:
    """Sums of the minute that runs."""

    start: int = 0
    _sums: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)

    def add(self, at: float, gpus: Iterable[GpuReading]) -> list[Minute]:
        """Count a reading; return the minute before, once, when `at` is the first of another."""
        start = int(at // 60) * 60
        done = list(self._means()) if start != self.start else []
        if start != self.start:
            self.start, self._sums = start, {}
        for gpu in gpus:
            self._add(gpu)
        return done

    def _add(self, gpu: GpuReading) -> None:
        sums = self._sums.setdefault(gpu.uuid, {})
        for name, metric in METRICS.items():
            value = getattr(gpu, metric)
            if value is not None:
                total, count = sums.get(name, (0.0, 0))
                sums[name] = (total + value, count + 1)

    def _means(self) -> Iterator[Minute]:
        for uuid, sums in self._sums.items():
            means = {name: sums[name][0] / sums[name][1] if name in sums else None for name in METRICS}
            yield Minute(uuid=uuid, start=self.start, means=means)
