"""A compiled stand-in for libnvidia-ml.so.1, found through LD_LIBRARY_PATH, whose answers change while it is used."""

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gpus.readings import HostReading
from gpus.sampler import Sampler

_SOURCE = Path(__file__).with_name("nvml_standin.c")
MIB = 1 << 20

NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, MISMATCH, UNKNOWN = 3, 9, 15, 18, 999


def can_run() -> str:
    """Why the stand-in can't be compiled here; empty when it can."""
    return "" if shutil.which("gcc") else "gcc is missing (apt-get install gcc libc6-dev)"


@cache
def _library(old_driver: bool) -> Path:
    """The folder with the compiled library: once a process."""
    folder = Path(tempfile.mkdtemp(prefix="nvml-standin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-DOLD_DRIVER"] if old_driver else []
    command = ["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", str(folder / "libnvidia-ml.so.1"), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=280)
    return folder


class Nvml:
    """The stand-in's answers. `environment` makes a process load it; every change counts from the next call on."""

    def __init__(self, folder: Path, *, old_driver: bool = False) -> None:
        self.library = _library(old_driver)
        self.answers: dict[str, Any] = {"init": 0, "count": 0, "driver": "570.86.10"}
        self._file = folder / "answers"
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.library), "NVML_STANDIN": str(self._file)}

    def set(self, **answers: Any) -> None:
        """Host-wide answers: `count`, `driver`, `init`; `init_rc=18` for what a call returns. None takes one away."""
        self._change("", answers)

    def set_gpu(self, index: int, **answers: Any) -> None:
        """One GPU's answers (see nvml_standin.c); `power_rc=3`, `utilisation_hang=1`, `memory_crash=1` for trouble."""
        self._change(f"{index}.", answers)

    def add_gpus(self, number: int, *, name: str = "NVIDIA GeForce RTX 4090", total_mib: int = 24564) -> list[str]:
        """That many further healthy and idle GPUs; returns their UUIDs."""
        first = int(self.answers["count"])
        uuids = [f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(first, first + number)]
        for index, uuid in enumerate(uuids, first):
            self.answers |= {
                f"{index}.{field}": value
                for field, value in {
                    "uuid": uuid, "name": name, "pci": f"00000000:{0x21 + index:02X}:00.0", "total": total_mib * MIB,
                    "used": 3 * MIB, "reserved": 540 * MIB, "utilisation": 0, "power": 25_500 + index,
                    "temperature": 38, "clock": 210,
                }.items()
            }  # fmt: skip
        self.set(count=first + number)
        return uuids

    def split(self, index: int, *profiles: str) -> list[str]:
        """Put a GPU into MIG mode, with one instance of each profile; returns their UUIDs."""
        uuids = [f"MIG-{index:08x}-{number:04d}-2222-3333-444444444444" for number in range(len(profiles))]
        self.answers[f"{index}.mig"] = len(profiles)
        for number, (uuid, profile) in enumerate(zip(uuids, profiles, strict=True)):
            total = int(profile.partition(".")[2].removesuffix("gb")) * 1024 * MIB
            name = f"{self.answers[f'{index}.name']} MIG {profile}"
            self.answers |= {f"{index}/{number}.{field}": value for field, value in (
                ("uuid", uuid), ("name", name), ("total", total), ("used", 3 * MIB), ("reserved", 0))}  # fmt: skip
        self._write()
        return uuids

    def _change(self, prefix: str, answers: dict[str, Any]) -> None:
        for name, value in answers.items():
            stem, _, trouble = name.rpartition("_")
            key = prefix + (f"{stem}.{trouble}" if trouble in ("rc", "hang", "crash") else name)
            self.answers[key] = value
        self._write()

    def _write(self) -> None:
        """By replacing the file: the stand-in never reads half of one."""
        text = "".join(f"{key}={value}\n" for key, value in self.answers.items() if value is not None)
        new = self._file.with_suffix(".new")
        new.write_bytes(text.encode("utf-8", "surrogateescape"))
        new.replace(self._file)


@contextlib.contextmanager
def standing_in(*, old_driver: bool = False) -> Iterator[Nvml]:
    """A stand-in with no GPU yet, which child processes of this one find."""
    with tempfile.TemporaryDirectory(prefix="nvml-answers-") as folder:
        nvml = Nvml(Path(folder), old_driver=old_driver)
        before = {name: os.environ.get(name) for name in nvml.environment}
        os.environ.update(nvml.environment)
        try:
            yield nvml
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def next_reading(sampler: Sampler) -> HostReading:
    """The next answer, however slow this machine is."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if reading := sampler.read():
            return reading
    raise TimeoutError("no reading")
