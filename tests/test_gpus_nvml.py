"""What NVML says in good and bad times, through the real child process and a compiled stand-in library."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpus.checks import check_nvml_binding, check_sample_freshness, clashing_binding
from gpus.readings import GpuReading, HostReading
from gpus.sampler import Sampler
from tests.rigs import nvml as rig
from tests.rigs.nvml import MIB, Nvml, next_reading, standing_in

Read = Callable[[], HostReading]


def test_every_value_of_a_healthy_gpu_is_read(nvml: Nvml, read: Read) -> None:
    [uuid] = nvml.add_gpus(1)
    nvml.set_gpu(0, utilisation=97, power=412_700, temperature=71, clock=2520, used=9000 * MIB)
    reading = read()
    assert (reading.status, reading.driver_version, reading.simulated) == ("ok", "570.86.10", False)
    assert reading.gpus == (
        GpuReading(
            uuid=uuid, index=0, model="NVIDIA GeForce RTX 4090", pci="00000000:21:00.0", memory_mib=24564,
            memory_used_mib=9000, utilisation=97, power_w=412.7, temperature_c=71, sm_clock_mhz=2520,
        ),
    )  # fmt: skip


def test_what_slows_a_gpu_down_is_told_and_idling_is_none_of_it(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(3)
    nvml.set_gpu(0, reasons=0x1 | 0x2, memory_clock=10_501, power_limit=450_000)
    nvml.set_gpu(1, reasons=0x4 | 0x20 | 0x40 | 0x80)
    idle, slowed, silent = read().gpus
    assert (idle.throttle, idle.mem_clock_mhz, idle.power_limit_w) == ((), 10_501, 450.0)
    assert slowed.throttle == ("power_cap", "heat", "power_brake")
    assert (silent.throttle, silent.mem_clock_mhz, silent.power_limit_w) == (None, None, None)
    assert [gpu.health for gpu in (idle, slowed, silent)] == ["ok"] * 3


def test_a_gpu_with_uncorrected_memory_errors_takes_no_job_and_says_why(nvml: Nvml, read: Read) -> None:
    """NVIDIA/k8s-device-plugin#267: a broken GPU must not swallow every job."""
    nvml.add_gpus(2)
    nvml.set_gpu(0, ecc=2)
    nvml.set_gpu(1, ecc=0)
    sick, well = read().gpus
    assert (sick.health, sick.ecc_errors, sick.message) == ("error", 2, "uncorrected ECC errors: 2")
    assert (well.health, well.ecc_errors) == ("ok", 0)
    assert sick.utilisation == 0


def test_an_xid_stays_with_its_gpu_and_its_time(nvml: Nvml, read: Read) -> None:
    """Azure/azurehpc#648: what the driver reports by itself is heard once, and is told until a newer one."""
    nvml.add_gpus(2)
    assert [gpu.xid for gpu in read().gpus] == [None, None]
    nvml.set_gpu(1, xid=31, xid_number=1)
    quiet, told = read().gpus
    assert (quiet.xid, told.xid, told.health) == (None, 31, "ok")
    assert read().gpus[1].xid_at == told.xid_at
    nvml.set_gpu(1, xid=79, xid_number=2)
    again = read().gpus[1]
    assert again.xid == 79
    assert again.xid_at > told.xid_at  # type: ignore[operator]


@pytest.mark.parametrize("field", ["power", "utilisation", "temperature", "clock", "pci", "name", "memory", "Compute"])
def test_a_value_one_gpu_does_not_have_hides_nothing_else(nvml: Nvml, read: Read, field: str) -> None:
    """msminhas93/nviwatch#28, wookayin/gpustat#144, #6."""
    nvml.add_gpus(2)
    nvml.set_gpu(1, **{f"{field}_rc": rig.NOT_SUPPORTED})
    whole, partial = read().gpus
    assert None not in (whole.power_w, whole.utilisation, whole.temperature_c, whole.memory_used_mib)
    assert partial.health == "ok"
    assert partial.message == ""
    values = (partial.power_w, partial.utilisation, partial.temperature_c, partial.sm_clock_mhz, partial.memory_mib)
    assert values.count(None) == (1 if field not in ("pci", "name", "Compute") else 0)


def test_a_missing_value_is_unknown_and_not_nought(nvml: Nvml, read: Read) -> None:
    """wookayin/gpustat#144."""
    nvml.add_gpus(1)
    nvml.set_gpu(0, power_rc=rig.NOT_SUPPORTED, utilisation=2**32 - 1)
    [gpu] = read().gpus
    assert gpu.power_w is None
    assert gpu.utilisation is None


def test_an_unexpected_fault_of_one_value_is_told_with_its_words(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(1)
    nvml.set_gpu(0, temperature_rc=rig.UNKNOWN)
    [gpu] = read().gpus
    assert (gpu.temperature_c, gpu.health, gpu.message) == (None, "ok", "temperature: Unknown Error")
    assert gpu.power_w is not None


@pytest.mark.parametrize("call", ["memory", "Compute"])
def test_a_gpu_whose_use_cannot_be_read_is_in_error(nvml: Nvml, read: Read, call: str) -> None:
    """What tells a free GPU from a busy one must be known before it is given away."""
    nvml.add_gpus(2)
    nvml.set_gpu(0, **{f"{call}_rc": rig.UNKNOWN})
    assert [gpu.health for gpu in read().gpus] == ["error", "ok"]


@pytest.mark.parametrize("call", ["memory", "handle", "utilisation", "uuid"])
def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_go_on(nvml: Nvml, read: Read, call: str) -> None:
    """XuehaiPan/nvitop#139, rossumai/nvgpu#6, NVIDIA/open-gpu-kernel-modules#1342."""
    uuids = nvml.add_gpus(2)
    assert [gpu.health for gpu in read().gpus] == ["ok", "ok"]
    nvml.set_gpu(0, **{f"{call}_rc": rig.GPU_IS_LOST})
    lost, well = read().gpus
    assert (lost.uuid, lost.index, lost.health) == (uuids[0], 0, "lost")
    assert "GPU is lost" in lost.message
    assert (well.uuid, well.health, well.utilisation) == (uuids[1], "ok", 0)
    nvml.set_gpu(0, **{f"{call}_rc": None})
    assert [gpu.health for gpu in read().gpus] == ["ok", "ok"]


def test_a_gpu_that_never_told_its_uuid_is_counted_in_the_message(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(2)
    nvml.set_gpu(1, handle_rc=rig.UNKNOWN)
    reading = read()
    assert (reading.status, len(reading.gpus)) == ("ok", 1)
    assert reading.message == "1 of 2 GPUs cannot be identified"


def test_two_cards_of_one_name_stay_apart(nvml: Nvml, read: Read) -> None:
    """gpustack/gpustack#1633, NVIDIA/DIGITS#127."""
    nvml.add_gpus(2)
    nvml.set_gpu(1, utilisation=50)
    one, other = read().gpus
    assert one.model == other.model
    assert one.uuid != other.uuid
    assert one.pci != other.pci
    assert (one.index, one.utilisation, other.index, other.utilisation) == (0, 0, 1, 50)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({"init_rc": rig.DRIVER_NOT_LOADED}, "no_driver"),
        ({"init_rc": rig.MISMATCH}, "driver_mismatch"),
        ({"init_rc": rig.UNKNOWN}, "error"),
        ({"count_rc": rig.UNKNOWN}, "error"),
        ({"count_rc": rig.DRIVER_NOT_LOADED}, "no_driver"),
        ({"count": 0}, "no_gpu"),
    ],
)
def test_troubles_of_a_host_are_told_apart_and_pass(
    nvml: Nvml, read: Read, answers: dict[str, int], status: str
) -> None:
    """pando85/homelab#4110, NVIDIA/nvidia-docker#1451, dask/distributed#4873."""
    nvml.add_gpus(2)
    assert read().status == "ok"
    nvml.set(**answers)
    # An open library hears of a failing init only when it is opened again.
    if "init_rc" in answers:
        nvml.set(count_rc=rig.UNKNOWN)
        read()
        nvml.set(count_rc=None)
    told = [read(), read()]
    assert [(reading.status, reading.gpus) for reading in told] == [(status, ())] * 2
    nvml.set(count=2, **{name: None for name in answers if name != "count"})
    assert (read().status, len(read().gpus)) == ("ok", 2)


def test_a_host_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """dask/distributed#4873."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    sampler = Sampler("alpha", 1)
    try:
        reading = next_reading(sampler)
    finally:
        sampler.close()
    assert (reading.status, reading.gpus) == ("no_library", ())
    assert reading.message != ""


def test_a_name_that_is_no_utf8_hides_nothing(nvml: Nvml, read: Read) -> None:
    """Atoptool/atop#243, vllm-project/vllm#7649: the binding raises UnicodeDecodeError, which is no NVMLError."""
    nvml.add_gpus(1)
    nvml.set_gpu(0, name=b"NVIDIA \xff\xfe X".decode("utf-8", "surrogateescape"))
    [gpu] = read().gpus
    assert (gpu.model, gpu.health) == ("NVIDIA �� X", "ok")


@pytest.mark.parametrize("answers", [{"memory_rc": rig.NOT_SUPPORTED}, {"total": 0}])
def test_unified_memory_is_unknown_and_the_gpu_healthy(nvml: Nvml, read: Read, answers: dict[str, int]) -> None:
    """wookayin/gpustat#179, leptonai/gpud#1170, XuehaiPan/nvitop#208."""
    nvml.add_gpus(1)
    nvml.set_gpu(0, **answers)
    [gpu] = read().gpus
    assert (gpu.memory_mib, gpu.memory_used_mib, gpu.health) == (None, None, "ok")


def test_memory_the_driver_keeps_for_itself_is_not_in_use(nvml: Nvml, read: Read) -> None:
    """The first version of the call counts it, and would make an idle data-centre GPU look busy."""
    nvml.add_gpus(1)
    nvml.set_gpu(0, used=4 * MIB, reserved=900 * MIB)
    assert read().gpus[0].memory_used_mib == 4


def test_processes_come_from_all_lists_once_each(nvml: Nvml, read: Read) -> None:
    """Syllo/nvtop#432: the memory of a process may be not available."""
    nvml.add_gpus(1)
    nvml.set_gpu(0, Compute=f"900001:{100 * MIB},900002:-", Graphics=f"900001:{120 * MIB}", MPSCompute=f"900003:{MIB}")
    processes = read().gpus[0].processes
    assert [(process.pid, process.memory_mib) for process in processes] == [(900001, 120), (900002, None), (900003, 1)]


def test_a_process_of_this_host_has_its_user_and_program(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(1)
    nvml.set_gpu(0, Compute=f"{os.getpid()}:{MIB}")
    [process] = read().gpus[0].processes
    assert process.user is not None
    assert process.name == os.path.basename(os.readlink("/proc/self/exe"))
    assert process.container is None


def test_an_old_driver_without_the_newest_calls_is_read_all_the_same() -> None:
    """A missing process call raises NVMLLibraryMismatchError, which is no NVMLError."""
    with standing_in(old_driver=True) as nvml:
        nvml.add_gpus(1)
        nvml.set_gpu(0, Compute=f"900001:{100 * MIB}", reserved=0)
        sampler = Sampler("alpha", 1)
        try:
            [gpu] = next_reading(sampler).gpus
        finally:
            sampler.close()
    assert [process.pid for process in gpu.processes] == [900001]
    assert (gpu.memory_used_mib, gpu.temperature_c, gpu.health) == (3, 38, "ok")


def test_the_installed_binding_is_the_one_we_depend_on() -> None:
    """rossumai/nvgpu#29: two packages share the module name."""
    assert clashing_binding() is None
    assert check_nvml_binding(None) == []


def test_another_package_in_the_bindings_place_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """rossumai/nvgpu#29."""
    (tmp_path / "pynvml.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    [warning] = check_nvml_binding(None)
    assert warning.id == "gpus.W001"
    assert str(tmp_path) in warning.msg


def test_readings_that_are_always_old_are_refused(settings: Any) -> None:
    settings.SAMPLE_FRESH, settings.SAMPLE_PERIOD = 20, 1
    assert check_sample_freshness(None) == []
    settings.SAMPLE_PERIOD = 10
    assert [error.id for error in check_sample_freshness(None)] == ["gpus.E001"]
