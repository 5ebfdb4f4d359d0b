"""Which container, user and program a process id of this host is, and what a container uses.

Reads only files of /proc and the cgroup tree that never wait for the process they tell of (so no command
line, which blocks while the process hangs in the driver). cgroup v1 and v2, drivers cgroupfs and systemd.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpus.readings import MIB, HostReading, Process

_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, fixed in the kernel's interface
_SEARCH_DEPTH = 5
_SEARCH_AGAIN = 15.0  # seconds before a container that was not found is searched for again


class ProcessTable:
    """This host's /proc. `host_pids`: whether its numbers are those that the driver reports; None: find out."""

    def __init__(self, proc: Path = Path("/proc"), host_pids: bool | None = None) -> None:
        self.proc = proc
        self.host_pids = _sees_host_pids(proc) if host_pids is None else host_pids
        self._users: dict[int, str] = {}

    def identify(self, process: Process) -> Process:
        """The process with container, user and name, as far as they can be known.

        Without the host's process ids only the container is looked up: it proves something when it is that
        of a claim, and nothing otherwise. A name and a user would be somebody else's.
        """
        container = self.container_of(process.pid)
        if not self.host_pids:
            return replace(process, container=container)
        user, name = self._user_and_name(process.pid)
        return replace(process, container=container, user=user, name=name)

    def container_of(self, pid: int) -> str | None:
        """The full id of the innermost container that process `pid` is in; None: none, or no such process."""
        text = _text(self.proc / str(pid) / "cgroup")
        found = [_CONTAINER.findall(line) for line in text.splitlines()]
        return next((ids[-1] for ids in found if ids), None)

    def _user_and_name(self, pid: int) -> tuple[str | None, str | None]:
        lines = _text(self.proc / str(pid) / "status").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if "Uid" not in status:
            return None, None
        return self._user(int(status["Uid"].split()[0])), self._program(pid) or status.get("Name")

    def _program(self, pid: int) -> str | None:
        """The executable's file name: unlike the process's own name it can't be made up in passing."""
        try:
            path = os.readlink(self.proc / str(pid) / "exe")
        except OSError:
            return None
        path = os.fsencode(path).decode(errors="replace")  # a name in no encoding: databases refuse its surrogates
        return os.path.basename(path.removesuffix(" (deleted)")) or None

    def _user(self, uid: int) -> str:
        """From the host's own file: a directory service that hangs must not stop the telemetry."""
        if uid not in self._users:
            self._users = {int(row[2]): row[0] for row in _rows("/etc/passwd") if len(row) > 2 and row[2].isdigit()}
            self._users.setdefault(uid, str(uid))
        return self._users[uid]


def identify_all(reading: HostReading, table: ProcessTable) -> HostReading:
    """The reading with every process identified."""
    return reading.with_gpus(
        tuple(replace(gpu, processes=tuple(map(table.identify, gpu.processes))) for gpu in reading.gpus)
    )


def _sees_host_pids(proc: Path) -> bool:
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


@dataclass(frozen=True)
class ContainerUse:
    """What a container has used since its start, and its memory now without the reclaimable file cache."""

    cpu_seconds: float | None
    memory_mib: int | None
    at: float  # monotonic
    read_kib: float | None = None  # from disks, not from the page cache
    written_kib: float | None = None
    received_kib: float | None = None
    sent_kib: float | None = None


class CgroupTree:
    """The cgroup files of containers, found once each."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self.root = root
        self.proc = proc
        self.unified = (root / "cgroup.controllers").exists()
        self._found: dict[tuple[str, str], Path] = {}
        self._missed: dict[tuple[str, str], float] = {}
        self._pids: dict[str, int] = {}  # a process of each container: its first lives as long as it

    def use(self, container: str) -> ContainerUse | None:
        """What `container` has used; None when it has no cgroup here (not started, ended, or out of our sight)."""
        cpu, memory = self._cpu_seconds(container), self._memory_mib(container)
        if cpu is None and memory is None:
            return None
        (read, written), (received, sent) = self._disk_kib(container), self._network_kib(container)
        return ContainerUse(cpu, memory, time.monotonic(), read, written, received, sent)

    def forget_all_but(self, containers: set[str]) -> None:
        self._found = {key: path for key, path in self._found.items() if key[1] in containers}
        self._missed = {key: at for key, at in self._missed.items() if key[1] in containers}
        self._pids = {container: pid for container, pid in self._pids.items() if container in containers}

    def _cpu_seconds(self, container: str) -> float | None:
        if self.unified:
            usage = _pairs(self._file("", container, "cpu.stat")).get("usage_usec")
            return None if usage is None else usage / 1e6
        usage = _number(self._file("cpuacct", container, "cpuacct.usage"))
        return None if usage is None else usage / 1e9

    def _memory_mib(self, container: str) -> int | None:
        if self.unified:
            used, cache = _number(self._file("", container, "memory.current")), "inactive_file"
        else:
            used, cache = _number(self._file("memory", container, "memory.usage_in_bytes")), "total_inactive_file"
        if used is None:
            return None
        controller = "" if self.unified else "memory"
        return max(used - _pairs(self._file(controller, container, "memory.stat")).get(cache, 0), 0) // MIB

    def _disk_kib(self, container: str) -> tuple[float | None, float | None]:
        """(read, written). The file is empty until the container has used a disk: then both are nought."""
        controller, name = ("", "io.stat") if self.unified else ("blkio", "blkio.throttle.io_service_bytes")
        folder = self._folder(controller, container)
        text = _maybe(folder / name) if folder else None
        if text is None:
            return None, None
        return (_moved(text, "rbytes="), _moved(text, "wbytes=")) if self.unified else (
            _moved(text, "Read "), _moved(text, "Write ")
        )  # fmt: skip

    def _network_kib(self, container: str) -> tuple[float | None, float | None]:
        """(received, sent) by all interfaces but the loopback of the container's own network."""
        pid = self._pids.get(container) or self._first_pid(container)
        text = _text(self.proc / str(pid) / "net" / "dev") if pid else ""
        rows = [line.partition(":")[::2] for line in text.splitlines()[2:]]
        counts = [values.split() for name, values in rows if name.strip() != "lo"]
        if not pid or not text:
            self._pids.pop(container, None)
            return None, None
        self._pids[container] = pid
        return sum(int(row[0]) for row in counts) / 1024, sum(int(row[8]) for row in counts) / 1024

    def _first_pid(self, container: str) -> int | None:
        """One whose number means nothing here (0) is none."""
        words = self._file("" if self.unified else "memory", container, "cgroup.procs").split(maxsplit=1)
        return int(words[0]) if words and words[0].isdigit() else None

    def _file(self, controller: str, container: str, name: str) -> str:
        folder = self._folder(controller, container)
        text = _text(folder / name) if folder else ""
        if folder and not text:
            self._found.pop((controller, container), None)
        return text

    def _folder(self, controller: str, container: str) -> Path | None:
        key = (controller, container)
        if key in self._found:
            return self._found[key]
        base = self.root / controller
        usual = (base / "docker" / container, base / "system.slice" / f"docker-{container}.scope")
        folder = next((folder for folder in usual if folder.is_dir()), None)
        if folder is None and time.monotonic() >= self._missed.get(key, 0):
            folder = next(_search(base, container), None)
            self._missed[key] = time.monotonic() + _SEARCH_AGAIN
        if folder is not None:
            self._found[key] = folder
        return folder


def _search(base: Path, container: str) -> Iterator[Path]:
    """A bounded search: engines may be given a parent cgroup of any name."""
    for path, folders, _files in os.walk(base):
        yield from (Path(path, folder) for folder in folders if container in folder)
        if path.count(os.sep) - str(base).count(os.sep) >= _SEARCH_DEPTH - 1:
            folders.clear()


def cpu_percent(before: ContainerUse | None, after: ContainerUse) -> float | None:
    """CPU between two readings in percent of one core; None when either is not known or the counter fell."""
    if before is None or before.cpu_seconds is None or after.cpu_seconds is None or after.at <= before.at:
        return None
    used = after.cpu_seconds - before.cpu_seconds
    return round(100 * used / (after.at - before.at), 1) if used >= 0 else None


def rate(before: ContainerUse | None, after: ContainerUse, counter: str) -> float | None:
    """How fast a counter of the use grows, in its unit a second; None as in `cpu_percent`."""
    old, new = before and getattr(before, counter), getattr(after, counter)
    if before is None or old is None or new is None or after.at <= before.at or new < old:
        return None
    return round(float(new - old) / (after.at - before.at), 1)


def _moved(text: str, mark: str) -> float:
    """The sum of the numbers right after each `mark`, bytes, in KiB."""
    return sum(int(piece.split(maxsplit=1)[0]) for piece in text.split(mark)[1:]) / 1024


def _text(path: Path) -> str:
    """The file's text, or nothing: processes and cgroups may go while we look."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _maybe(path: Path) -> str | None:
    """The file's text, which may be empty; None where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _pairs(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _rows(path: str) -> list[list[str]]:
    return [line.split(":") for line in _text(Path(path)).splitlines()]
