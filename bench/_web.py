"""The web process under measurement: its CPU and memory, and the browsers that look at it, in another process."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from bench._report import say

GROUP = "gpus"  # of plain Channels
ROOT = Path(__file__).resolve().parent.parent


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """The memory that a process really has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def pin(pid: int, cpu: int) -> None:
    """Keep a process with all its threads on one CPU, where there are several."""
    if cpu in os.sched_getaffinity(0) and len(os.sched_getaffinity(0)) > 1:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def cookies_of(users: list[Any], client: type) -> list[str]:
    """A Cookie header for each, signed in."""
    found = []
    for user in users:
        tab = client()
        tab.force_login(user)
        found.append(f"{settings.SESSION_COOKIE_NAME}={tab.cookies[settings.SESSION_COOKIE_NAME].value}")
    return found


# --- the process that plays the browsers: a line of JSON each way at a time ---


@contextlib.contextmanager
def helpers(module: str) -> Iterator["subprocess.Popen[str]"]:
    """That module, running; killed at the end."""
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: "subprocess.Popen[str]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def kept(bounds: dict[str, bool]) -> dict[str, bool]:
    """Say of each bound whether it was kept."""
    for name, is_kept in bounds.items():
        say(f"{'kept' if is_kept else 'MISSED'}: {name}")
    return bounds
