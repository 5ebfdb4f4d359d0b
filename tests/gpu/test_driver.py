"""What the real library says, through the real child process."""

import ctypes
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gpus.cgroups import ProcessTable
from gpus.readings import THROTTLES, GpuReading, HostReading
from gpus.sampler import Sampler
from tests.rigs.nvml import next_reading

MEMORY_MIB = 256
HOLD = f"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
for code in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0,
             device), cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t({MEMORY_MIB} << 20))):
    if code:
        sys.exit(f"CUDA error {{code}}")
print("held", flush=True)
time.sleep(120)
"""


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    found = Sampler("here", 1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def reading(sampler: Sampler) -> HostReading:
    return next_reading(sampler)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that holds memory on the first GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no libcuda.so.1: no process can be put on a GPU here")
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != "held\n":
        pytest.skip(f"no memory can be held on a GPU here: {process.stderr.read()[-200:]}")
    yield process
    process.kill()
    process.communicate()


def test_every_gpu_is_told_apart_and_well(reading: HostReading) -> None:
    assert (reading.status, reading.simulated, reading.message) == ("ok", False, "")
    assert reading.driver_version
    uuids = [gpu.uuid for gpu in reading.gpus]
    assert len(set(uuids)) == len(uuids) > 0
    assert [(gpu.health, gpu.model != "") for gpu in reading.gpus] == [("ok", True)] * len(uuids)


def test_every_value_is_unknown_or_within_its_bounds(reading: HostReading) -> None:
    for gpu in reading.gpus:
        bounds = {
            "utilisation": (0, 100), "power_w": (0, 3000), "power_limit_w": (1, 3000), "temperature_c": (0, 120),
            "sm_clock_mhz": (0, 5000), "mem_clock_mhz": (0, 20_000), "ecc_errors": (0, 0),
            "memory_used_mib": (0, gpu.memory_mib or 0),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            value = getattr(gpu, name)
            assert value is None or low <= value <= high, (name, value)
        assert set(gpu.throttle or ()) <= set(THROTTLES)


def test_the_readings_are_those_of_nvidia_smi(reading: HostReading) -> None:
    """What an admin sees beside the page: memory and driver as the driver's own tool says them."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi beside the driver")
    query = ["nvidia-smi", "--query-gpu=uuid,memory.total,driver_version", "--format=csv,noheader,nounits"]
    rows = [row.split(", ") for row in subprocess.check_output(query, text=True, timeout=60).splitlines()]
    told = {uuid: (memory, driver) for uuid, memory, driver in rows}
    for gpu in (gpu for gpu in reading.gpus if not gpu.profile):
        memory, driver = told[gpu.uuid]
        assert driver == reading.driver_version
        assert not memory.isdigit() or gpu.memory_mib == pytest.approx(int(memory), rel=0.02)


def test_a_process_on_a_gpu_is_seen_with_its_memory(sampler: Sampler, holder: subprocess.Popen[str]) -> None:
    """NVIDIA/nvidia-docker#1483: by its number where this host's numbers are the driver's."""
    gpu = _with_process(sampler, holder.pid)
    assert gpu.memory_used_mib is None or gpu.memory_used_mib >= MEMORY_MIB
    if ProcessTable().host_pids:
        [found] = [process for process in gpu.processes if process.pid == holder.pid]
        assert found.memory_mib is None or found.memory_mib >= MEMORY_MIB
        assert found.user is not None


def _with_process(sampler: Sampler, pid: int) -> GpuReading:
    """The first GPU whose reading lists the process, or, where numbers mean nothing here, any that lists one."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for gpu in next_reading(sampler).gpus:
            pids = [process.pid for process in gpu.processes]
            if pid in pids or (pids and not ProcessTable().host_pids):
                return gpu
        time.sleep(0.2)
    raise AssertionError("no reading lists the process")
