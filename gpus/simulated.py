"""GPUs that are not there, for a laptop, a demo and tests. Pure: the same claims and time, the same reading.

A GPU's load follows its claims: while a live one has a container, the GPU works; otherwise it idles.
"""

import math
import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpus.claims import Claim
from gpus.readings import GpuReading, HostReading, Process

_NAMESPACE = uuid.UUID("6f1f62a8-5f0c-4c7e-9a51-4b1f6b3f5d10")
_IDLE_W, _FULL_W = 52.0, 390.0
_IDLE_C, _FULL_C = 31, 72
_IDLE_MHZ, _FULL_MHZ, _MEMORY_MHZ = 210, 1410, 1215
_LIMIT_W = 400.0
_CAPPED = 0.97  # of the load: from there on the power limit holds


def gpu_uuid(node: str, index: int) -> str:
    """The UUID of a node's simulated GPU: always the same for the same name and index."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def read_host(
    node: str, claims: Collection[Claim], at: float, *, count: int, model: str, memory_mib: int,
    mig: Mapping[int, Sequence[str]] = MappingProxyType({}), island: int = 0,
) -> HostReading:  # fmt: skip
    """What `count` GPUs of `model` would show at `at` (seconds since 1970) under these claims.

    `mig` tells which of them are split, and into instances of which profiles. Of `island` GPUs each (0: not
    told) the whole ones are joined by NVLink, and all are on one NUMA node.
    """
    gpus = tuple(
        gpu for index in range(count) for gpu in _of_index(node, index, claims, at, model, memory_mib, mig.get(index))
    )
    near = [at // island for at in range(count)] if island else [None] * count
    return HostReading(
        node=node, at=at, status="simulated", simulated=True, driver_version="simulated",
        gpus=tuple(replace(gpu, numa=near[gpu.index], island=None if gpu.profile else near[gpu.index]) for gpu in gpus),
        split=tuple(gpu_uuid(node, index) for index in mig if index < count),
    )  # fmt: skip


def read_mig(text: str) -> dict[int, list[str]]:
    """GPU index → profiles of its instances, from "0:1g.10gb+3g.40gb 2:7g.80gb". Raises ValueError."""
    pairs = (word.partition(":") for word in text.split())
    return {int(index): [name for name in profiles.split("+") if name] for index, _colon, profiles in pairs}


def _of_index(
    node: str, index: int, claims: Collection[Claim], at: float, model: str, memory_mib: int,
    profiles: Sequence[str] | None,
) -> list[GpuReading]:  # fmt: skip
    """The GPU, or the instances that it is split into, each with the memory that its profile names."""
    if profiles is None:
        name = gpu_uuid(node, index)
        return [_gpu(name, index, _working(claims, name), at, model, memory_mib)]
    names = [f"MIG-{uuid.uuid5(_NAMESPACE, f'{node}/{index}/{number}')}" for number in range(len(profiles))]
    return [
        replace(_gpu(name, index, _working(claims, name), at, model, profile_mib(profile)), profile=profile,
                utilisation=None, power_w=None, temperature_c=None, sm_clock_mhz=None, mem_clock_mhz=None,
                power_limit_w=None, throttle=None, ecc_errors=None)
        for name, profile in zip(names, profiles, strict=True)
    ]  # fmt: skip


def profile_mib(profile: str) -> int:
    """The memory in the name of a MIG profile: 10 GiB of "1g.10gb"."""
    return int(profile.partition(".")[2].partition("gb")[0]) * 1024


def _working(claims: Collection[Claim], name: str) -> list[Claim]:
    return [c for c in claims if c.gpu_uuid == name and c.ended is None and c.container_id]


def _gpu(name: str, index: int, working: list[Claim], at: float, model: str, memory_mib: int) -> GpuReading:
    load = _load(name, at) if working else 0.0
    processes = tuple(_process(claim, memory_mib // len(working)) for claim in working)
    used = 4 + sum(process.memory_mib or 0 for process in processes)
    return GpuReading(
        uuid=name, index=index, model=model, pci=f"00000000:{0x10 + index:02X}:00.0",
        memory_mib=memory_mib, memory_used_mib=min(used, memory_mib), utilisation=round(100 * load),
        power_w=round(_between(_IDLE_W, _FULL_W, load) + 3 * _wave(name, at, 11), 1),
        temperature_c=round(_between(_IDLE_C, _FULL_C, load) + _wave(name, at, 97)),
        sm_clock_mhz=_FULL_MHZ if working else _IDLE_MHZ, mem_clock_mhz=_MEMORY_MHZ, power_limit_w=_LIMIT_W,
        throttle=("power_cap",) if load > _CAPPED else (), ecc_errors=0, processes=processes,
    )  # fmt: skip


def _process(claim: Claim, room_mib: int) -> Process:
    """A trainer with a share of the memory that belongs to its run, between 35% and 90%."""
    share = 0.35 + 0.55 * _fraction(f"{claim.run}")
    pid = 10_000 + zlib.crc32(claim.container_id.encode()) % 4_000_000
    return Process(
        pid=pid, memory_mib=int(share * room_mib), container=claim.container_id, user="simulated", name="python"
    )


def _load(name: str, at: float) -> float:
    """Between 0.62 and 1: a slow swing, a faster one, and a jitter that is new every second."""
    jitter = _fraction(f"{name}/{int(at)}") - 0.5
    return 0.86 + 0.07 * _wave(name, at, 61) + 0.04 * _wave(name, at, 13) + 0.06 * jitter


def _wave(name: str, at: float, period: float) -> float:
    return math.sin(2 * math.pi * (at / period + _fraction(name)))


def _fraction(text: str) -> float:
    return zlib.crc32(text.encode()) / 2**32


def _between(low: float, high: float, load: float) -> float:
    return low + (high - low) * load
