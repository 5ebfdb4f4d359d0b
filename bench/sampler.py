"""What a sample costs: CPU of the telemetry process per sample and GPU, beside the same calls made bare.

On the stand-in library with eight GPUs, or with `--driver` on this machine's own driver.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench._report import report, say
from gpus.sampler import Sampler
from tests.rigs.nvml import MIB, next_reading, standing_in

SAMPLES = 100
GPUS = 8
TICKS = os.sysconf("SC_CLK_TCK")
# What any monitor asks of each GPU every time, without looking up processes or writing JSON.
BARE = f"""
import resource, pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def ask(call, *arguments):
    try: call(*arguments)
    except n.NVMLError: pass
def sample():
    for h in handles:
        for call in (n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetPowerUsage,
                     n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetGraphicsRunningProcesses): ask(call, h)
        ask(n.nvmlDeviceGetTemperature, h, n.NVML_TEMPERATURE_GPU)
        for clock in (n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM): ask(n.nvmlDeviceGetClockInfo, h, clock)
sample()
used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
before = used()
for _ in range({SAMPLES}): sample()
print((used() - before) / {SAMPLES} / len(handles) * 1000)
"""


def main(driver: bool) -> None:
    with contextlib.nullcontext() if driver else _busy_host():
        ours, detail = _ours()
        bare = float(subprocess.check_output([sys.executable, "-c", BARE], text=True, timeout=120))
    report(
        "sampler", figure=ours, reference=bare, ratio=ours / bare if bare else 0.0,
        unit="ms of CPU per sample and GPU", detail={"driver": driver, **detail},
    )  # fmt: skip


@contextlib.contextmanager
def _busy_host() -> Iterator[None]:
    """Eight GPUs with a process each, of this host."""
    with standing_in() as nvml:
        nvml.add_gpus(GPUS)
        for index in range(GPUS):
            nvml.set_gpu(index, utilisation=90, reasons=4, ecc=0, Compute=f"{os.getpid()}:{1000 * MIB}")
        yield


def _ours() -> tuple[float, dict[str, float]]:
    sampler = Sampler("bench", 1)
    try:
        gpus = len(next_reading(sampler).gpus)
        say(f"{SAMPLES} samples of {gpus} GPUs")
        assert sampler.pid is not None
        began, before, parent = time.monotonic(), _cpu(sampler.pid), time.process_time()
        for _ in range(SAMPLES):
            next_reading(sampler)
        took = time.monotonic() - began
        child = (_cpu(sampler.pid) - before) / SAMPLES * 1000
        reader = (time.process_time() - parent) / SAMPLES * 1000
    finally:
        sampler.close()
    detail = {"gpus": gpus, "wall_ms_per_sample": took / SAMPLES * 1000, "cpu_percent_at_1_hz": (child + reader) / 10,
              "reader_ms_per_sample": reader}  # fmt: skip
    return child / gpus, detail


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main("--driver" in sys.argv)
