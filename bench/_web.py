"""The web process under measurement: its CPU and memory, and the cookies of those who look at it."""

import os
from pathlib import Path
from typing import Any

from django.conf import settings

GROUP = "gpus"  # of plain Channels


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
