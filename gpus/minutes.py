"""Means over whole minutes, and what runs used over their lives, from samples one after the other. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpus.readings import THROTTLES, GpuReading, HostReading, throttle_mask

# Our column of the minute: the metric of the reading
METRICS = {
    "utilisation": "utilisation",
    "memory_mib": "memory_used_mib",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
    "sm_clock_mhz": "sm_clock_mhz",
    "mem_clock_mhz": "mem_clock_mhz",
}
CONTAINER_METRICS = ("cpu_percent", "memory_mib", "read_kib_s", "written_kib_s", "received_kib_s", "sent_kib_s")
BUSY_PERCENT = 5  # a GPU below this does nothing that counts
_APART = 10.0  # seconds: between samples further apart nothing is known

Key = str | int
Values = Mapping[str, float | None]
Row = tuple[Values, int | None]  # values, and the throttle reasons as `throttle_mask`


@dataclass(frozen=True, kw_only=True)
class Minute:
    """One GPU (by UUID) or one container (by its run) over a minute."""

    key: Key
    start: int  # seconds since 1970, a multiple of 60
    means: dict[str, float | None]  # None: never known in this minute
    peaks: dict[str, float | None]
    throttle: int | None = None  # all reasons seen, as `throttle_mask`; None: not known


@dataclass
class _Sums:
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    throttle: int | None = None
    is_told: bool = False  # since the last sample

    def add(self, values: Values, throttle: int | None) -> None:
        self.is_told = False
        for name, value in values.items():
            if value is not None:
                total, count = self.sums.get(name, (0.0, 0))
                self.sums[name] = (total + value, count + 1)
                self.peaks[name] = max(value, self.peaks.get(name, value))
        if throttle is not None:
            self.throttle = (self.throttle or 0) | throttle

    def minute(self, key: Key, start: int, names: Iterable[str]) -> Minute:
        means = {name: self.sums[name][0] / self.sums[name][1] if name in self.sums else None for name in names}
        peaks = {name: self.peaks.get(name) for name in names}
        return Minute(key=key, start=start, means=means, peaks=peaks, throttle=self.throttle)


@dataclass
class Minutes:
    """Sums of the minute that runs: of all GPUs, or of all containers."""

    names: tuple[str, ...]
    start: int = 0
    _sums: dict[Key, _Sums] = field(default_factory=dict)

    def add(self, at: float, rows: Mapping[Any, Row]) -> list[Minute]:
        """Count one sample. Returns what is complete with it, once: the minute before when `at` is the first of
        another, and the running minute of each key that has gone. One that is back within it has it told anew, whole.
        """
        start = int(at // 60) * 60
        over = [key for key in self._sums if start != self.start or key not in rows]
        done = [self._sums[key].minute(key, self.start, self.names) for key in over if not self._sums[key].is_told]
        for key in over:
            self._sums[key].is_told = True
        if start != self.start:
            self._sums = {}
        self.start = start
        for key, (values, throttle) in rows.items():
            self._sums.setdefault(key, _Sums()).add(values, throttle)
        return done


def of_gpus(gpus: Iterable[GpuReading]) -> dict[str, Row]:
    """The rows of `Minutes.add` for GPUs."""
    return {
        gpu.uuid: ({name: getattr(gpu, metric) for name, metric in METRICS.items()}, throttle_mask(gpu.throttle))
        for gpu in gpus
    }


def of_containers(reading: HostReading) -> dict[int, Row]:
    """The rows of `Minutes.add` for containers."""
    return {
        found.run: ({name: getattr(found, name) for name in CONTAINER_METRICS}, None) for found in reading.containers
    }


@dataclass
class Use:
    """What one run has used of what it held, since it was kept last. Sums are over the seconds that were measured."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    cpu_known_seconds: float = 0.0
    cpu_percent_max: float | None = None
    memory_max_mib: int | None = None
    read_mib: float = 0.0
    written_mib: float = 0.0
    received_mib: float = 0.0
    sent_mib: float = 0.0
    gpu_known_seconds: float = 0.0  # GPU-seconds for which a load was told; none for MIG and shared GPUs
    gpu_busy_seconds: float = 0.0  # of them, weighted by the load
    gpu_idle_seconds: float = 0.0  # of them, below BUSY_PERCENT
    gpus_busy_max: int | None = None  # at one time
    gpu_memory_max_mib: int | None = None  # on one GPU, by this run
    energy_j: float | None = None  # of GPUs that it had alone
    throttled_seconds: float = 0.0  # GPU-seconds


class Uses:
    """Adds up what each run uses. Runs without a container are not counted: they use nothing yet."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._uses: dict[int, Use] = {}

    def add(self, reading: HostReading) -> None:
        """Count the time since the sample before, which is no more than a few seconds, by this one."""
        seconds = reading.at - self._at if self._at is not None else 0.0
        self._at = reading.at
        if not 0 < seconds <= _APART:
            return
        runs = {found.run for found in reading.containers} | {run for gpu in reading.gpus for run in gpu.runs}
        for run in runs:
            self._uses.setdefault(run, Use()).seconds += seconds
        for found in reading.containers:
            _add_container(self._uses[found.run], {n: getattr(found, n) for n in CONTAINER_METRICS}, seconds)
        for run in runs:
            _add_gpus(self._uses[run], run, [gpu for gpu in reading.gpus if run in gpu.runs], seconds)

    def so_far(self) -> dict[int, Use]:
        """By run, what was added since the last `forget`."""
        return self._uses

    def forget(self) -> None:
        """Begin anew: what there was is kept elsewhere now."""
        self._uses = {}


def _add_container(use: Use, read: Values, seconds: float) -> None:
    if (percent := read["cpu_percent"]) is not None:
        use.cpu_seconds += percent / 100 * seconds
        use.cpu_known_seconds += seconds
        use.cpu_percent_max = max(percent, use.cpu_percent_max or 0.0)
    if (memory := read["memory_mib"]) is not None:
        use.memory_max_mib = max(int(memory), use.memory_max_mib or 0)
    for name in ("read", "written", "received", "sent"):
        moved = (read[f"{name}_kib_s"] or 0.0) * seconds / 1024
        setattr(use, f"{name}_mib", getattr(use, f"{name}_mib") + moved)


def _add_gpus(use: Use, run: int, gpus: list[GpuReading], seconds: float) -> None:
    alone = [gpu for gpu in gpus if len(gpu.jobs) == 1]
    loads = [gpu.utilisation for gpu in alone if gpu.utilisation is not None]
    use.gpu_known_seconds += seconds * len(loads)
    use.gpu_busy_seconds += seconds * sum(loads) / 100
    use.gpu_idle_seconds += seconds * sum(load < BUSY_PERCENT for load in loads)
    if loads and len(loads) == len(gpus):
        use.gpus_busy_max = max(sum(load >= BUSY_PERCENT for load in loads), use.gpus_busy_max or 0)
    held = [memory for gpu in gpus if (memory := _memory_of(gpu, run)) is not None]
    if held:
        use.gpu_memory_max_mib = max(*held, use.gpu_memory_max_mib or 0)
    watts = [gpu.power_w for gpu in alone if gpu.power_w is not None]
    if watts:
        use.energy_j = (use.energy_j or 0.0) + seconds * sum(watts)
    use.throttled_seconds += seconds * sum(1 for gpu in alone if gpu.throttle)


def _memory_of(gpu: GpuReading, run: int) -> int | None:
    """What the run's own processes hold there; where that is not told, all that is in use on a GPU it has alone."""
    job = gpu.jobs[gpu.runs.index(run)] if len(gpu.jobs) == len(gpu.runs) else None
    own = [process.memory_mib for process in gpu.processes if process.kind == "job" and process.job == job]
    if own and None not in own:
        return sum(memory for memory in own if memory is not None)
    return gpu.memory_used_mib if len(gpu.jobs) == 1 else None


def throttle_codes(mask: int) -> list[str]:
    """The reasons of a `throttle_mask`."""
    return [code for bit, code in enumerate(THROTTLES) if mask >> bit & 1]
