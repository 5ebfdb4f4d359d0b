"""The processes the demo has started: all of them stop when it stops, in reverse order, and nothing else does."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_DEATHS = 4  # so many
WITHIN = 60.0  # in so many seconds are no accident
PATIENCE = 20.0  # seconds for one to end when asked to
_END_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")  # the kernel ends them should the demo itself be killed


class Failed(Exception):
    """The demo cannot go on. str() is one sentence for a person, perhaps with the end of a log below it."""


@dataclass(kw_only=True)
class Child:
    """One program. `again`: it is started again when it dies, as a service manager would."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes
    cwd: Path | None
    log: Path
    again: bool
    process: "subprocess.Popen[bytes]" = field(init=False)
    deaths: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches it through us alone, in order."""
        with self.log.open("ab" if self.deaths else "wb") as output:
            self.process = subprocess.Popen(
                [*_END_WITH_US, *self.command], env=dict(self.env), cwd=self.cwd, stdin=subprocess.PIPE,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(self.stdin)
            self.process.stdin.close()

    @property
    def has_ended(self) -> bool:
        """Whether it has; not collected yet, so that its number stays its own, and its session's."""
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> int:
        """Kill it with whatever is left of its session; return its exit status."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def dies_too_often(self) -> bool:
        now = time.monotonic()
        self.deaths = [at for at in self.deaths if now - at < WITHIN] + [now]
        return len(self.deaths) >= MOST_DEATHS


class Children:
    """`say` prints a line for a person."""

    def __init__(self, logs: Path, say: Callable[[str], None] = print) -> None:
        self.logs = logs
        self._say = say
        self._children: list[Child] = []

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"",
        cwd: Path | None = None, again: bool = False,
    ) -> None:  # fmt: skip
        child = Child(
            name=name, command=command, env=env, stdin=stdin, cwd=cwd, log=self.logs / f"{name}.log", again=again
        )
        child.run()
        self._children.append(child)

    def check(self) -> None:
        """Start again whatever has died and may; raise Failed for what may not, or dies again and again."""
        for child in self._children:
            if not child.has_ended:
                continue
            status = child.kill()
            if not child.again or child.dies_too_often():
                often = f" ({len(child.deaths)} times within a minute)" if child.again else ""
                raise Failed(f"{child.name} has {_how(status)}{often}. The end of {child.log}:\n{tail(child.log)}")
            child.run()
            self._say(f"{child.name} has {_how(status)}; started again as process {child.process.pid}.")

    def stop(self) -> None:
        """Stop all, the last started first. Whoever does not go in time is killed, with all it has started."""
        for child in reversed(self._children):
            end = time.monotonic() + PATIENCE
            if not child.has_ended:
                child.process.terminate()
            while not child.has_ended and time.monotonic() < end:
                time.sleep(0.02)
            child.kill()
        self._children.clear()

    def stop_only(self, *names: str) -> None:
        """Stop these, the last started first; the others stay."""
        chosen = Children(self.logs, self._say)
        chosen._children = [child for child in self._children if child.name in names]
        self._children = [child for child in self._children if child.name not in names]
        chosen.stop()


def _how(status: int) -> str:
    return f"been killed by signal {-status}" if status < 0 else f"ended with status {status}"


def tail(log: Path, *, size: int = 2000) -> str:
    """The end of a log file."""
    return log.read_bytes()[-size:].decode(errors="replace").strip() if log.exists() else ""
