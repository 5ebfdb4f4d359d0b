"""What was read of a host at one moment, as plain data, and its JSON. Pure.

Every metric may be None: not known. None is never 0. Memory in MiB, power in W, temperature in °C, clocks
in MHz, utilisation and CPU in percent (100 is one whole GPU, or one core), times in seconds since 1970.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

Kind = Literal["job", "system", "foreign", "unknown"]
Health = Literal["ok", "lost", "error"]
Status = Literal["ok", "simulated", "no_library", "no_driver", "no_gpu", "driver_mismatch", "hung", "error"]

# Why a GPU runs slower than it could: its power limit, its temperature, an order from outside, others in step with it.
Throttle = Literal["power_cap", "heat", "power_brake", "hardware", "sync"]

MIB = 1 << 20
THROTTLES: tuple[Throttle, ...] = get_args(Throttle)


def throttle_mask(codes: Iterable[str] | None) -> int | None:
    """The reasons as one number, a bit each in the order of THROTTLES; None: not known. Unknown codes are left out."""
    return None if codes is None else sum(1 << THROTTLES.index(code) for code in set(codes) & set(THROTTLES))


def short_uuid(uuid: str) -> str:
    """Enough of a UUID to tell two cards of one name apart on a page."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")[:8]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process with memory on a GPU. `user` None: we could not look it up on this host."""

    pid: int
    memory_mib: int | None = None
    container: str | None = None  # its full id
    user: str | None = None
    name: str | None = None
    job: int | None = None
    owner: str | None = None
    kind: Kind = "unknown"


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    uuid: str
    index: int  # in PCI order
    model: str = ""
    pci: str = ""
    memory_mib: int | None = None  # None: shared with the system, or not reported
    memory_used_mib: int | None = None  # without what the driver keeps for itself, where it tells
    utilisation: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    power_limit_w: float | None = None
    throttle: tuple[Throttle, ...] | None = None  # none at the moment: ()
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded; None: no ECC, or not told
    xid: int | None = None  # the last that the driver reported while the sampler listened
    xid_at: float | None = None
    health: Health = "ok"
    message: str = ""  # the library's own words on what failed
    processes: tuple[Process, ...] = ()
    profile: str = ""  # of a MIG instance, such as "1g.10gb": then it is a part of GPU `index`
    numa: int | None = None  # the NUMA node it hangs on
    island: int | None = None  # GPUs of one host with the same number are joined by NVLink
    job: int | None = None
    owner: str | None = None
    jobs: tuple[int, ...] = ()  # all that it is given to: several where it is shared; `job` is the first
    runs: tuple[int, ...] = ()  # those of them that have a container by now
    busy_outside: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerReading:
    """What one run's container uses. Rates are since the reading before."""

    job: int
    run: int
    cpu_percent: float | None = None
    memory_mib: int | None = None
    read_kib_s: float | None = None  # from disks
    written_kib_s: float | None = None
    received_kib_s: float | None = None  # by its own network
    sent_kib_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostReading:
    """A host's GPUs as the library told them. With a status other than ok or simulated, `gpus` is empty."""

    node: str
    at: float
    status: Status
    message: str = ""
    simulated: bool = False
    driver_version: str = ""
    gpus: tuple[GpuReading, ...] = ()
    containers: tuple[ContainerReading, ...] = ()
    split: tuple[str, ...] = ()  # UUIDs of GPUs in MIG mode: their instances are in `gpus`, they are not

    def with_gpus(self, gpus: tuple[GpuReading, ...]) -> Self:
        return replace(self, gpus=gpus)

    def with_containers(self, containers: tuple[ContainerReading, ...]) -> Self:
        return replace(self, containers=containers)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types: what browsers get."""
        return vars(self) | {
            "gpus": [vars(gpu) | {"processes": [dict(vars(p)) for p in gpu.processes]} for gpu in self.gpus],
            "containers": [dict(vars(container)) for container in self.containers],
        }

    def encode(self) -> str:
        """One line of JSON."""
        return json.dumps(self.as_dict(), separators=(",", ":"))


def decode(text: str | bytes) -> HostReading:
    """The reading that `HostReading.encode` wrote. Unknown keys are passed over. Raises ValueError."""
    try:
        data = json.loads(text)
        gpus = tuple(_gpu(gpu) for gpu in data["gpus"])
        containers = tuple(ContainerReading(**_known(ContainerReading, c)) for c in data["containers"])
        split = tuple(map(str, data.get("split", ())))
        return HostReading(**_known(HostReading, data) | {"gpus": gpus, "containers": containers, "split": split})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a reading: {error!r}") from error


def _gpu(data: Mapping[str, Any]) -> GpuReading:
    processes = tuple(Process(**_known(Process, process)) for process in data["processes"])
    throttle = data.get("throttle")
    lists: dict[str, Any] = {name: tuple(data.get(name, ())) for name in ("jobs", "runs")}
    lists |= {"processes": processes, "throttle": None if throttle is None else tuple(throttle)}
    return GpuReading(**_known(GpuReading, data) | lists)


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {key: value for key, value in data.items() if key in names}


_NAMES: dict[type, frozenset[str]] = {
    kind: frozenset(field.name for field in fields(kind))
    for kind in (Process, GpuReading, ContainerReading, HostReading)
}
