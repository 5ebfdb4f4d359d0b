"""The processes the demo has started: all of them stop when it stops, in reverse order, and nothing else does."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_END_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")  # the kernel ends them should the demo itself be killed


class Failed(Exception):
    """The demo cannot go on. str() is one sentence for a person, perhaps with the end of a log below it."""


@dataclass
class Child:
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path


class Children:
    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._children: list[Child] = []

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"", cwd: Path | None = None
    ) -> None:
        """Start a process in a session of its own, so that Ctrl-C reaches it through us alone, in order."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_END_WITH_US, *command], env=dict(env), cwd=cwd, stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._children.append(Child(name, process, log))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()

    def check(self) -> None:
        """Raise Failed when any of them has ended."""
        for child in self._children:
            status = child.process.poll()
            if status is not None:
                raise Failed(f"{child.name} has ended with status {status}. The end of {child.log}:\n{tail(child.log)}")

    def stop(self) -> None:
        """Stop all, the last started first. Whoever does not go in time is killed, with all it has started."""
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self._children.clear()

    def stop_only(self, *names: str) -> None:
        """Stop these, the last started first; the others stay."""
        chosen = Children(self.logs)
        chosen._children = [child for child in self._children if child.name in names]
        self._children = [child for child in self._children if child.name not in names]
        chosen.stop()


def tail(log: Path, *, size: int = 2000) -> str:
    """The end of a log file."""
    return log.read_bytes()[-size:].decode(errors="replace").strip() if log.exists() else ""
