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

from jobs import pump

T = TypeVar("T")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, and that no client's connection is given by the system."""
    while True:
        port = 12000 + secrets.randbelow(20000)  # Linux gives connections 32768 and up
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def wait_until(fact: Callable[[], T], what: str, *, seconds: float = 120, every: float = 0.05) -> T:
    """Return `fact()` as soon as it is truthy; TimeoutError naming `what` when it never is."""
    end = time.monotonic() + seconds
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(every)


def run_command(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end and return its status; whatever asks this process to end, asks the command."""
    process = subprocess.Popen(command, env=env)
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a child has ended. It is not collected, so that its number stays its own, and its group's."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(process: "subprocess.Popen[bytes]", *, seconds: float = 40) -> None:
    """SIGTERM, and SIGKILL for one that does not go. It is not collected."""
    if has_ended(process):
        return
    process.terminate()
    try:
        wait_until(lambda: has_ended(process), "its end", seconds=seconds)
    except TimeoutError:
        process.kill()


def terminate(process: "subprocess.Popen[bytes]", *, seconds: float = 40) -> int:
    """End it and return its status."""
    end(process, seconds=seconds)
    return process.wait()


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a process that leads its own group, with everything in the group, unless it was collected before."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Guard:
    """Ends the group of a process once we are gone, however we went: a pipe from us to a watching shell closes.

    A child's `PR_SET_PDEATHSIG` would follow the thread that started it, which may end long before.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", number: signal.Signals = signal.SIGKILL) -> None:
        self._watcher = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -s "$0" -- "-$1"', number.name.removeprefix("SIG"), str(process.pid)],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def release(self) -> None:
        """Before the process is collected, and its number is another's."""
        self._watcher.kill()
        self._watcher.communicate()


def processes_naming(text: str) -> list[int]:
    """The ids of the processes whose command line holds `text`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def kill_pump(spool: Path) -> None:
    """SIGKILL the log pump of a spool, which outlives the node, if there is one."""
    pump.end(spool)
    with contextlib.suppress(OSError, ValueError):
        pid = int((spool / "pump.pid").read_text())
        wait_until(lambda: b"pump.py" not in Path(f"/proc/{pid}/cmdline").read_bytes(), "its end", every=0.005)


def tail_of(path: Path, *, size: int = 3000) -> str:
    """The end of a log file, for error messages."""
    return path.read_bytes()[-size:].decode(errors="replace") if path.exists() else ""
