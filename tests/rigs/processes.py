"""What every rig needs: a free port, waiting for a fact, and ending a process for good."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, and that no client's connection is given by the system."""
    while True:
        port = 12000 + secrets.randbelow(20000)  # Linux gives connections 32768 and up
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def wait_until(fact: Callable[[], T], what: str, *, seconds: float = 60, every: float = 0.05) -> T:
    """Return `fact()` as soon as it is truthy; TimeoutError naming `what` when it never is."""
    end = time.monotonic() + seconds
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(every)


def terminate(process: "subprocess.Popen[bytes]", *, seconds: float = 15) -> int:
    """SIGTERM, and SIGKILL for one that does not go; return its status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def run_command(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end and return its status; whatever asks this process to end, asks the command."""
    process = subprocess.Popen(command, env=env)
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a process that leads its own group, with everything in the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def processes_naming(text: str) -> list[int]:
    """The ids of the processes whose command line holds `text`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def tail_of(path: Path, *, size: int = 3000) -> str:
    """The end of a log file, for error messages."""
    return path.read_bytes()[-size:].decode(errors="replace") if path.exists() else ""
