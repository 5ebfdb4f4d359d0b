"""A person's shell with the `dockyard` command in it, what it prints while it runs, and a node that a test plays."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.utils import timezone

from jobs import logstore, tail
from jobs.models import Job, Run
from jobs.states import EndReason, JobState, RunState
from portal import live
from portal.models import ApiToken, User
from tests import factories
from tests.rigs.processes import wait_until
from tests.rigs.web import BASE_DIR


class Shell:
    """A person's shell with the command in it, logged in by a token in the environment."""

    def __init__(self, home: Path, url: str, user: User | None = None) -> None:
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(BASE_DIR), "COLUMNS": "160",
                    "LANG": "C.UTF-8", "DOCKYARD_URL": url}  # fmt: skip
        if user is not None:
            self.env["DOCKYARD_TOKEN"] = ApiToken.issue(user, name="test", scope="write", expires_at=None)[1]

    def run(self, *words: str, text: str | None = None, **env: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-m", "portal.cli", *words], env=self.env | env, capture_output=True, timeout=240,
            input=text.encode() if text is not None else None, cwd=self.env["HOME"],
        )  # fmt: skip

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "portal.cli", *words], env=self.env, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=self.env["HOME"],
        )  # fmt: skip


def said(done: "subprocess.CompletedProcess[bytes]") -> str:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def complaint(done: "subprocess.CompletedProcess[bytes]") -> str:
    """The sentence and next step on stderr of a command that failed; never a trace."""
    assert (done.returncode, done.stdout) == (2, b"")
    text = done.stderr.decode()
    assert "Traceback" not in text
    return text


class Node:
    """Plays the node for one run: prints, and ends."""

    def __init__(self, job: Job) -> None:
        node, _ = factories.Node.objects.get_or_create(
            name="alpha", defaults={"last_seen": timezone.now(), "gpu_status": "simulated"}
        )
        self.run: Run = factories.make_run(job, node, gpus=())
        live.publish(live.job_topic(job.pk), {"job": job.pk})
        self.end = self.entries = 0

    def print(self, data: bytes) -> None:
        self.end += len(data)
        self.entries += 1
        tail.push(self.run.pk, 0, self.end, data, entries=self.entries)
        live.publish(live.log_topic(self.run.pk), {"generation": 0, "end": self.end})

    def reach(self, done: int, total: int) -> None:
        """Note how far its output says that it is, with five minutes to go."""
        share = {"fraction": done / total, "label": "step", "done": done, "total": total}
        found = {**share, "left": 299, "at": time.time()}
        Run.objects.filter(pk=self.run.pk).update(output_progress=found)
        live.publish(live.job_topic(self.run.job_id), {"job": self.run.job_id})

    def finish(self, code: int, reason: EndReason = EndReason.COMPLETED, state: JobState = JobState.SUCCEEDED) -> None:
        data = logstore.read(self.run, 0, self.end)
        if data:
            logstore.save(self.run.pk, 0, 0, data).save()
        Run.objects.filter(pk=self.run.pk).update(log_bytes=self.end, log_complete=True)
        self.run.end(RunState.RUNNING, reason, state, now=timezone.now(), exit_code=code)


class Reader:
    """Collects what a process prints while it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.out = self.err = b""
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        stream: Any = getattr(self.process, f"std{name}")
        while data := os.read(stream.fileno(), 65536):
            setattr(self, name, getattr(self, name) + data)

    def until(self, data: bytes) -> None:
        wait_until(lambda: data in self.out or self.process.poll() is not None, f"{data!r} in {self.out!r}")
        assert data in self.out, self.err

    def ends(self) -> int:
        code = self.process.wait(120)
        for thread in self._threads:
            thread.join(60)
        return code


@contextlib.contextmanager
def following(shell: Shell, job: Job) -> Iterator[Reader]:
    process = shell.start("logs", "-f", str(job.pk))
    try:
        yield Reader(process)
    finally:
        process.kill()
        process.wait()
