"""The one door to NVML. Only the sampler's child process calls it: the library may hang or crash its process.

Every call is guarded on its own, and by `Exception`: the binding also raises UnicodeDecodeError and
NVMLLibraryMismatchError, which are no NVMLError. No Django, no settings here.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pynvml

from gpus.readings import MIB, GpuReading, Health, HostReading, Process, Status, Throttle

# What a GPU, a driver or a WSL host simply does not offer: the value is unknown and nothing is wrong.
_NOT_OFFERED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
_HOST_STATUS: dict[int, Status] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
}
_UNKNOWN_UINT = pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value
_UNKNOWN_ULONGLONG = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_PROCESS_LISTS = ("Compute", "Graphics", "MPSCompute")

# Bits of nvml.h's clock event reasons that slow a GPU down against its user's will; idling and set clocks do not.
_THROTTLE: dict[int, Throttle] = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power_brake",
}
_SLOW = 10.0  # seconds between readings of what hardly changes
_MOST_EVENTS = 32  # taken in with one reading

Faults = list[tuple[str, Exception]]  # which call, and what it said

_PROFILE = re.compile(r"MIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")

_state: dict[str, Any] = {
    "opened_by": 0,  # NVML counts as open only in the process that opened it
    "uuids": {},
    "topology": None,
    "slow": {},  # (UUID, name): when it was read, and what it was
    "events": None,  # the UUIDs that are registered, and the set; () for a driver without events
    "xids": {},  # UUID: the last one, and when
}


def read_host(node: str) -> HostReading:
    """One reading of this host's GPUs. Never raises; opens the library on first use and after trouble."""
    try:
        if _state["opened_by"] != os.getpid():
            pynvml.nvmlInit()
            _state["opened_by"] = os.getpid()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 - see above
        close()
        status = _HOST_STATUS.get(_code(error), "error")
        return HostReading(node=node, at=time.time(), status=status, message=_words(error))
    at = time.time()
    version = _read("driver version", lambda: _text(pynvml.nvmlSystemGetDriverVersion), []) or ""
    if count == 0:
        close()  # so that a GPU that comes back is found
        return HostReading(node=node, at=at, status="no_gpu", driver_version=version)
    found = [_device(index) for index in range(count)]
    _hear_events(found, at)
    gpus = tuple(replace(gpu, **_xid(device.uuid)) for device in found for gpu in device.gpus)
    return HostReading(
        node=node, at=at, status="ok", message=_missing(found), driver_version=version, gpus=_joined(gpus, found),
        split=tuple(device.uuid for device in found if device.is_split),
    )  # fmt: skip


def close() -> None:
    """Let go of the library, so that the next reading opens it afresh."""
    if _state["opened_by"] == os.getpid():
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()
    _state["opened_by"] = 0
    _state["topology"] = _state["events"] = None


@dataclass
class _Device:
    """What stands at one index: a GPU, or, where it is in MIG mode, its instances."""

    uuid: str = ""
    handle: Any = None
    is_split: bool = False
    gpus: tuple[GpuReading, ...] = ()


def _missing(found: list[_Device]) -> str:
    unknown = sum(1 for device in found if not device.uuid)
    return f"{unknown} of {len(found)} GPUs cannot be identified" if unknown else ""


def _device(index: int) -> _Device:
    """One GPU; without UUID when it does not even tell that and never did."""
    faults: Faults = []
    handle = _read("handle", lambda: pynvml.nvmlDeviceGetHandleByIndex(index), faults)
    uuid = handle and _read("uuid", lambda: _text(pynvml.nvmlDeviceGetUUID, handle), faults)
    if not uuid:
        uuid = _state["uuids"].get(index)  # what it said while it was well
        return _Device(uuid, gpus=(GpuReading(uuid=uuid, index=index, **_health(faults)),)) if uuid else _Device()
    if _is_split(handle):
        return _Device(uuid, handle, is_split=True, gpus=_instances(index, handle))
    _state["uuids"] = {i: known for i, known in _state["uuids"].items() if known != uuid} | {index: uuid}
    metrics = _metrics(handle, faults) | _slow_metrics(uuid, handle, faults)
    return _Device(uuid, handle, gpus=(_reading(uuid, index, handle, faults, **metrics),))


def _reading(uuid: str, index: int, handle: Any, faults: Faults, **known: Any) -> GpuReading:
    total, used = _memory(handle, faults)
    processes = _processes(handle, faults)
    health = _health(faults, known.get("ecc_errors"))
    return GpuReading(
        uuid=uuid, index=index, memory_mib=total, memory_used_mib=used, processes=processes, **known, **health
    )  # fmt: skip


# --- parts of GPUs ---


def _is_split(handle: Any) -> bool:
    mode = _read("MIG mode", lambda: pynvml.nvmlDeviceGetMigMode(handle), [])
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _instances(index: int, parent: Any) -> tuple[GpuReading, ...]:
    """The MIG instances that a GPU is split into, asked anew each time: they come and go. Most tell no load."""
    most = _read("MIG count", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(parent), []) or 0
    found = (_read("MIG handle", partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, at), [])
             for at in range(most))  # fmt: skip
    whole = _metrics(parent, [])
    parts = (_instance(index, handle, whole) for handle in found if handle is not None)
    return tuple(part for part in parts if part is not None)


def _instance(index: int, handle: Any, whole: dict[str, Any]) -> GpuReading | None:
    faults: Faults = []
    uuid = _read("uuid", lambda: _text(pynvml.nvmlDeviceGetUUID, handle), faults)
    if not uuid:
        return None
    profile = _profile(handle)
    return _reading(uuid, index, handle, faults, model=whole["model"], pci=whole["pci"], profile=profile)


def _profile(handle: Any) -> str:
    """As nvidia-smi names it: the end of the instance's name, or made from its slices and memory."""
    name = _read("name", lambda: _text(pynvml.nvmlDeviceGetName, handle), []) or ""
    match = _PROFILE.search(name)
    if match is not None:
        return match[1]
    attributes = _read("attributes", lambda: pynvml.nvmlDeviceGetAttributes_v2(handle), [])
    if attributes is None:
        return ""
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


# --- who is near whom ---


def _joined(gpus: tuple[GpuReading, ...], found: list[_Device]) -> tuple[GpuReading, ...]:
    """The readings with NUMA node and NVLink island; these are read once for the GPUs that there are."""
    uuids = [device.uuid for device in found]
    if _state["topology"] is None or _state["topology"][0] != uuids:
        islands = _islands([device for device in found if device.handle is not None and not device.is_split])
        numa = {device.uuid: _numa(device.handle) for device in found if device.handle is not None}
        _state["topology"] = uuids, numa, islands
    _uuids, numa, islands = _state["topology"]
    parents = [device.uuid for device in found]
    return tuple(
        replace(gpu, numa=numa.get(parents[gpu.index]), island=islands.get(gpu.uuid)) for gpu in gpus
    )  # fmt: skip


def _islands(devices: list[_Device]) -> dict[str, int]:
    """UUID to the lowest place of a GPU that it is joined with by NVLink, its own for a lone one; {}: not told."""
    island = list(range(len(devices)))
    told = False
    for one in range(len(devices)):
        for other in range(one + 1, len(devices)):
            status = _read("NVLink", partial(_nvlink, devices[one].handle, devices[other].handle), [])
            told = told or status is not None
            if status == pynvml.NVML_P2P_STATUS_OK:
                joined, into = max(island[one], island[other]), min(island[one], island[other])
                island = [into if number == joined else number for number in island]
    return {device.uuid: number for device, number in zip(devices, island, strict=True)} if told else {}


def _nvlink(one: Any, other: Any) -> int:
    return int(pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))


def _numa(handle: Any) -> int | None:
    """The one NUMA node that is near the GPU; None where the driver tells none, or several."""
    words = _read(
        "NUMA", lambda: pynvml.nvmlDeviceGetMemoryAffinity(handle, 2, pynvml.NVML_AFFINITY_SCOPE_NODE), []
    )  # fmt: skip
    mask = sum(word << (64 * at) for at, word in enumerate(words or ()))
    return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else None


# --- one GPU's values ---


def _metrics(handle: Any, faults: Faults) -> dict[str, Any]:
    def read(name: str, call: Callable[[], Any]) -> Any:
        return _read(name, call, faults)

    pci = read("pci", lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
    load = _number(read("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    milliwatts = _number(read("power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle)))
    return {
        "model": read("name", lambda: _text(pynvml.nvmlDeviceGetName, handle)) or "",
        "pci": _decoded(pci or ""),
        "utilisation": load if load is not None and load <= 100 else None,
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "temperature_c": _number(read("temperature", lambda: _temperature(handle))),
        "sm_clock_mhz": _number(read("clock", lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        "mem_clock_mhz": _number(read("clock", lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))),
        "throttle": _throttle(read("throttle reasons", lambda: _clock_reasons(handle))),
    }


def _clock_reasons(handle: Any) -> int:
    return int(
        _first(
            lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # its name before driver 535
        )
    )


def _throttle(bits: int | None) -> tuple[Throttle, ...] | None:
    if bits is None:
        return None
    return tuple(dict.fromkeys(code for bit, code in _THROTTLE.items() if bits & bit))


def _slow_metrics(uuid: str, handle: Any, faults: Faults) -> dict[str, Any]:
    """What hardly changes, every _SLOW seconds only: the driver counts ECC errors on the card itself."""
    milliwatts = _now_and_then(uuid, "power limit", lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle), faults)
    errors = _now_and_then(
        uuid, "ECC errors",
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ), faults,
    )  # fmt: skip
    return {"power_limit_w": None if milliwatts is None else milliwatts / 1000, "ecc_errors": errors}


def _now_and_then(uuid: str, name: str, call: Callable[[], Any], faults: Faults) -> Any:
    at, value = _state["slow"].get((uuid, name), (float("-inf"), None))
    if time.monotonic() - at >= _SLOW:
        value = _read(name, call, faults)
        _state["slow"][uuid, name] = time.monotonic(), value
    return value


def _memory(handle: Any, faults: Faults) -> tuple[int | None, int | None]:
    """(total, used) in MiB; unified memory has neither. The first version counts the driver's own share as used."""
    memory = _read(
        "memory",
        lambda: _first(
            lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
            lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        ),
        faults,
    )
    if memory is None or memory.total in (0, _UNKNOWN_ULONGLONG):
        return None, None
    return memory.total // MIB, min(memory.used, memory.total) // MIB


def _temperature(handle: Any) -> int:
    return int(
        _first(
            lambda: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        )
    )


def _processes(handle: Any, faults: Faults) -> tuple[Process, ...]:
    """Every process of all lists once, with the largest memory that any list gives it."""
    found: dict[int, int | None] = {}
    for kind in _PROCESS_LISTS:
        for process in _read("processes", partial(_list, kind, handle), faults) or ():
            found[process.pid] = _larger(found.get(process.pid), _process_mib(process.usedGpuMemory))
    return tuple(Process(pid=pid, memory_mib=memory) for pid, memory in sorted(found.items()))


def _list(kind: str, handle: Any) -> list[Any]:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    listed: list[Any] = _first(
        lambda: getattr(pynvml, f"{name}_v3")(handle), lambda: getattr(pynvml, f"{name}_v2")(handle)
    )
    return listed


def _process_mib(used: int | None) -> int | None:
    return None if used is None or used == _UNKNOWN_ULONGLONG else int(used) // MIB


def _larger(one: int | None, other: int | None) -> int | None:
    return max((memory for memory in (one, other) if memory is not None), default=None)


def _health(faults: Faults, ecc_errors: int | None = None) -> dict[str, Any]:
    """Lost, when any call says so; an error, when what tells a free GPU from a busy one can't be read, or its
    memory has uncorrected errors since the driver was loaded."""
    health: Health = "ok"
    words = [f"{name}: {_words(error)}" for name, error in faults]
    if any(_code(error) in _LOST for _name, error in faults):
        health = "lost"
    elif ecc_errors or {"handle", "uuid", "memory", "processes"} & {name for name, _error in faults}:
        health = "error"
    if ecc_errors:
        words.insert(0, f"uncorrected ECC errors: {ecc_errors}")
    return {"health": health, "message": "; ".join(dict.fromkeys(words))[:300]}


# --- what the driver reports by itself ---


def _hear_events(found: list[_Device], at: float) -> None:
    """Take in the Xids since the last reading. Waits for none, and a driver without events is asked once only."""
    uuids = [device.uuid for device in found if device.handle is not None]
    if _state["events"] is None or _state["events"][0] != uuids:
        _state["events"] = uuids, _event_set(found)
    events = _state["events"][1]
    if events is None:
        return
    for _number_of_it in range(_MOST_EVENTS):
        event = _read("events", lambda: pynvml.nvmlEventSetWait_v2(events, 0), [])
        if event is None:
            return
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            uuid = _read("uuid", partial(_text, pynvml.nvmlDeviceGetUUID, event.device), [])
            _state["xids"][uuid] = int(event.eventData), at


def _event_set(found: list[_Device]) -> Any:
    """A set in which every GPU that can reports its Xids; None where none can."""
    if _state["events"] is not None and _state["events"][1] is not None:
        _read("events", partial(pynvml.nvmlEventSetFree, _state["events"][1]), [])
    events = _read("events", pynvml.nvmlEventSetCreate, [])
    if events is None:
        return None
    kind = pynvml.nvmlEventTypeXidCriticalError
    for device in found:
        if device.handle is not None:
            _read("events", partial(pynvml.nvmlDeviceRegisterEvents, device.handle, kind, events), [])
    return events


def _xid(uuid: str) -> dict[str, Any]:
    """The last Xid that the driver reported of the GPU (for an instance, of the whole) while this process listened."""
    xid, at = _state["xids"].get(uuid, (None, None))
    return {"xid": xid, "xid_at": at}


def _read(name: str, call: Callable[[], Any], faults: Faults) -> Any:
    """The call's value, or None; what is not merely 'not offered' is noted in `faults`."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - see above
        if _code(error) == pynvml.NVML_ERROR_UNINITIALIZED:
            _state["opened_by"] = 0
        if _code(error) not in _NOT_OFFERED:
            faults.append((name, error))
        return None


def _first(*calls: Callable[[], Any]) -> Any:
    """The value of the first call whose function this driver has."""
    for call in calls[:-1]:
        try:
            return call()
        except pynvml.NVMLError as error:
            if _code(error) not in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                raise
    return calls[-1]()


def _number(value: Any) -> int | None:
    return None if value is None or value == _UNKNOWN_UINT else int(value)


def _text(function: Callable[..., Any], *arguments: Any) -> str:
    """The string of an NVML call, whatever its bytes: the binding's own decoding fails on some names."""
    return _decoded(getattr(function, "__wrapped__", function)(*arguments))


def _decoded(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _code(error: Exception) -> int:
    """The NVML return code; -1 for other exceptions."""
    return int(error.value) if isinstance(error, pynvml.NVMLError) else -1


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
