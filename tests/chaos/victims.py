"""Processes to be killed: which there are, and that they are dead. One that waits to be collected is dead."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from tests.rigs.processes import wait_until

_TICKS = os.sysconf("SC_CLK_TCK")


def kill(*pids: int) -> None:
    """SIGKILL; returns when none of them lives any more."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_dead(pids)


def wait_dead(pids: Iterable[int]) -> None:
    wait_until(lambda: not any(lives(pid) for pid in pids), "their death", every=0.005)


def children(pid: int, *, older: float = 0) -> list[int]:
    """Those of a process that live, for so many seconds already."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if lives(child, older)]


def lives(pid: int, older: float = 0) -> bool:
    """Whether there is such a process, for so many seconds already."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from its third on, see proc(5)
    except OSError:
        return False
    up = float(Path("/proc/uptime").read_text().split()[0])
    return fields[0] not in "ZX" and up - int(fields[19]) / _TICKS >= older


def threads(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return 0
