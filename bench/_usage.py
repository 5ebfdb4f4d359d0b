"""What processes have: memory, open files, threads; of each role with everything that it has started."""

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench._judge import Point

Roles = Mapping[str, Iterable[int]]  # by name, the processes that lead it


@dataclass(frozen=True)
class Used:
    """Of several processes together. Memory without the part that they share on purpose, as PostgreSQL's buffers."""

    mib: float = 0.0
    files: int = 0
    threads: int = 0
    processes: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(
            self.mib + other.mib, self.files + other.files, self.threads + other.threads,
            self.processes + other.processes,
        )  # fmt: skip


def used_by(roles: Roles) -> dict[str, Used]:
    """What each role has now. A process that ends meanwhile counts for nothing."""
    children = _children()
    return {name: sum((_of(pid) for pid in _families(leaders, children)), Used()) for name, leaders in roles.items()}


def _children() -> dict[int, list[int]]:
    """By parent, its children."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
                found[int(parent)].append(int(entry))
    return found


def _families(leaders: Iterable[int], children: Mapping[int, list[int]]) -> set[int]:
    """They and all that come from them."""
    left, found = list(leaders), set[int]()
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def _of(pid: int) -> Used:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return Used()
    said = {name: value.split() for name, _colon, value in (line.partition(":") for line in lines)}
    if "VmRSS" not in said:  # it has ended, and nobody has asked how
        return Used(processes=1)
    kib = int(said["VmRSS"][0]) - int(said["RssShmem"][0])
    return Used(kib / 1024, files, int(said["Threads"][0]), 1)


class Watch(threading.Thread):
    """Measures again and again until `stop`; `trouble` says why it could not."""

    def __init__(self, measure: Callable[[], Mapping[str, float]], every: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.points: dict[str, list[Point]] = defaultdict(list)
        self.trouble = ""
        self._measure, self._every = measure, every
        self._over = threading.Event()

    def run(self) -> None:
        begun = time.monotonic()
        try:
            while not self._over.wait(self._every):
                at = time.monotonic() - begun
                for name, value in self._measure().items():
                    self.points[name].append((at, value))
        except Exception as error:  # noqa: BLE001  # whoever stops it, hears of it
            self.trouble = repr(error)

    def stop(self) -> dict[str, list[Point]]:
        """What was measured. Raises RuntimeError where that failed."""
        self._over.set()
        self.join()
        if self.trouble:
            raise RuntimeError(f"not measured: {self.trouble}")
        return dict(self.points)
