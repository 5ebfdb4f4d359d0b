"""The whole product as processes: web, scheduler and node, on real parts. Any of them may be killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx

from tests.rigs.processes import Guard, end, free_port, has_ended, kill_group, kill_pump, tail_of, wait_until

BASE_DIR = Path(__file__).resolve().parents[2]
T = TypeVar("T")

# Waiting periods short enough for a test to wait for.
SHORT = {
    "SCHEDULER_PERIOD": "1", "RECONCILE_PERIOD": "2", "NODE_HEARTBEAT": "1", "NODE_SILENT_AFTER": "8",
    "START_RESEND": "3", "PLACED_TIMEOUT": "10", "SOCKET_RECHECK": "2", "LOG_SEGMENT_PERIOD": "2",
    "SAMPLE_PERIOD": "0.5", "START_WORKERS": "2",
}  # fmt: skip
ORDER = ("web", "scheduler", "node")  # of starting; stopped the other way round


class Stack:
    """One installation on one host. Roles: `web`, `scheduler`, `node`.

    Tests look at its database through `orm`, which runs in a thread of its own, so that browser tests may too.
    """

    def __init__(
        self, docker_host: str, env: Mapping[str, str] | None = None, periods: Mapping[str, str] = SHORT, *,
        tree: Path = BASE_DIR,
    ) -> None:  # fmt: skip
        """`tree`: the folder of the product's code, whose processes these are."""
        self.tree = tree
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings", "PYTHONUNBUFFERED": "1",
                    "DOCKER_HOST": docker_host, "PUBLIC_URL": self.url, **periods, **(env or {})}  # fmt: skip
        self.data = Path(self.env["DATA_DIR"])
        self.logs = self.data / "stack-logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._guards: dict[str, Guard] = {}
        self._thread = ThreadPoolExecutor(1)

    # --- its life ---

    def prepare(self) -> None:
        """Make the database, its cache table and the static files."""
        self.manage("prepare")

    def manage(self, *arguments: str) -> str:
        """Run a management command to its end; return what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=self.tree, env=self.env, capture_output=True, text=True,
            timeout=280,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"manage.py {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def cli(
        self, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run the `dockyard` command line as a person would; its output's bytes are kept, `\\r` too."""
        done = subprocess.run(
            [sys.executable, "-m", "portal.cli", *arguments], cwd=BASE_DIR, capture_output=True, timeout=240,
            env={**self.env, "DOCKYARD_URL": self.url, **(env or {})}, input=stdin.encode(),
        )  # fmt: skip
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start_all(self) -> None:
        for role in ORDER:
            self.start(role)
        for role in ORDER:
            self.wait_ready(role)

    def start(self, role: str, **env: str) -> None:
        """Start a role's process; it may not be ready yet."""
        if self.is_running(role):
            return
        self._collect(role)
        with (self.logs / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(
                self._command(role), cwd=self.tree, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, env={**self.env, **env},
            )  # fmt: skip
        self._guards[role] = Guard(self._processes[role], signal.SIGTERM)

    def _collect(self, role: str) -> int:
        """The exit status of a role that has ended; its number may be another's from now on. 0 when it never ran."""
        if role in self._guards:
            self._guards.pop(role).release()
        return self._processes[role].wait() if role in self._processes else 0

    def _command(self, role: str) -> list[str]:
        if role == "web":
            return [sys.executable, "-m", "uvicorn", "portal.asgi:application", "--host", "127.0.0.1",
                    "--port", str(self.port), "--no-access-log", "--ws-per-message-deflate", "false",
                    "--timeout-keep-alive", "75"]  # fmt: skip
        return [sys.executable, "manage.py", role]

    def wait_ready(self, role: str) -> None:
        """Wait until the role does its work: answers, has made a pass, or has been heard of and knows its GPUs."""
        ready = {"web": self._web_ready, "scheduler": self._scheduler_ready, "node": self._node_ready}[role]
        wait_until(lambda: self._alive(role) and ready(), f"{role} ready; its log: {self.log_of(role)}", seconds=240)

    def _alive(self, role: str) -> bool:
        if not self.is_running(role):
            raise RuntimeError(f"{role} ended with {self._collect(role)}: {self.log_of(role)}")
        return True

    def _web_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        return False

    def _scheduler_ready(self) -> bool:
        from jobs.models import Cluster

        return self.orm(lambda: Cluster.get().last_pass_at is not None)

    def _node_ready(self) -> bool:
        from gpus.models import Node

        return self.orm(lambda: any(n.is_alive() and n.engine_id and n.gpus.exists() for n in
                                    Node.objects.filter(name=self.env["NODE_NAME"])))  # fmt: skip

    def is_running(self, role: str) -> bool:
        return role in self._processes and not has_ended(self._processes[role])

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def children(self, role: str) -> list[int]:
        """The process ids of everything a role has started, itself not counted."""
        found = subprocess.run(["ps", "-o", "pid=", "--sid", str(self.pid(role))], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split() if int(pid) != self.pid(role)]

    def kill(self, role: str) -> None:
        """SIGKILL the role's main process alone."""
        self._processes[role].send_signal(signal.SIGKILL)
        wait_until(lambda: not self.is_running(role), f"{role} killed", every=0.005)

    def kill_group(self, role: str, *, pump: bool = True) -> None:
        """SIGKILL the role with everything it has started, as when its host loses power, or all but its log pump."""
        kill_group(self._processes[role])
        if pump and role == "node":
            kill_pump(self.data / "spool")
        self._collect(role)

    def stop(self, role: str) -> int:
        """SIGTERM; return the exit status."""
        end(self._processes[role])
        return self._collect(role)

    def restart(self, role: str, **env: str) -> None:
        """Stop a role if it runs, start it with its environment changed by `env`, wait until it is ready."""
        if self.is_running(role):
            self.stop(role)
        self.start(role, **env)
        self.wait_ready(role)

    def stop_all(self) -> None:
        """Stop every role, the last started first, and leave no process behind."""
        for role, process in reversed(self._processes.items()):
            end(process)
            kill_group(process)
            self._collect(role)
        self._processes.clear()
        kill_pump(self.data / "spool")

    def close(self) -> None:
        from django.db import connections

        self.stop_all()
        self.orm(connections.close_all)
        self._thread.shutdown()

    # --- looking at it ---

    def orm(self, work: Callable[[], T]) -> T:
        """Run `work` on this installation's database, in a thread where Playwright's event loop does not run."""
        return self._thread.submit(work).result()

    def log_of(self, role: str) -> str:
        """The end of what the role has printed."""
        return tail_of(self.logs / f"{role}.log")


@contextlib.contextmanager
def running_stack(docker_host: str, env: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """The product, ready, for as long as the block runs."""
    stack = Stack(docker_host, env)
    try:
        stack.prepare()
        stack.start_all()
        yield stack
    finally:
        stack.close()
