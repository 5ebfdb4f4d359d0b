"""A user on the running product, for tests that follow jobs from the queue to their end."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import control, logstore
from jobs.models import AllocationSlot, Job, Run, Team
from jobs.request import JobRequest
from jobs.states import ENDED
from jobs.submit import submit
from portal.models import User
from tests import factories
from tests.rigs.engine import BUSYBOX, Engine
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack


def gate(name: str = "go") -> str:
    """Words for a job's script that end once the test opens the gate of that name, `Lab.open`."""
    return f"until [ -e {name} ]; do sleep 0.05; done"


class Lab:
    """A user on the running product. Everything it does to the database runs in the stack's own thread."""

    def __init__(self, stack: Stack, engine: Engine) -> None:
        self.stack, self.engine = stack, engine
        self.user, self.team = stack.orm(self._cast)

    @staticmethod
    def _cast() -> tuple[User, Team]:
        team = factories.make_team(f"team {uuid.uuid4().hex[:6]}")
        return factories.make_user(f"user-{uuid.uuid4().hex[:6]}", teams=(team,)), team

    def submit(self, script: str = "true", **fields: Any) -> Job:
        fields = {"name": "t", "image": BUSYBOX, "script": script, "memory_mib": 64, "shm_mib": 16, "millicpus": 100,
                  "grace_seconds": 2, **fields}  # fmt: skip
        request = JobRequest(**fields)
        return self.stack.orm(lambda: submit(request, owner=self.user, team=self.team, submission=uuid.uuid4()))

    def start(self, script: str = "exec sleep 600", **fields: Any) -> Job:
        """Submit and wait until it runs, or has run: a short one may have ended before anybody looks."""
        job = self.submit(script, **fields)
        wait_until(lambda: self.fresh(job).started_at, f"{job} runs")
        return self.fresh(job)

    def folder(self, job: Job) -> Path:
        """What the job sees as its working directory."""
        return Path(self.stack.data) / "workspaces" / str(self.user.pk) / "jobs" / str(job.pk)

    def open(self, job: Job, name: str = "go") -> None:
        """Let the job go on behind `gate(name)`."""
        (self.folder(job) / name).touch()

    def cancel(self, job: Job) -> bool:
        return self.stack.orm(lambda: control.cancel(job, self.user))

    def cancel_all(self) -> None:
        """Whatever a failed test left running."""
        for job in self.stack.orm(lambda: list(Job.objects.filter(owner=self.user).exclude(state__in=ENDED))):
            self.cancel(job)

    def fresh(self, job: Job) -> Job:
        return self.stack.orm(lambda: Job.objects.get(pk=job.pk))

    def wait(self, job: Job, *states: str, seconds: float = 150) -> Job:
        wait_until(lambda: self.fresh(job).state in states, f"{job} in {states}", seconds=seconds)
        return self.fresh(job)

    def end(self, job: Job, seconds: float = 200) -> Job:
        try:
            return self.wait(job, *ENDED, seconds=seconds)
        except Exception:
            print(self.stack.log_of("node"), self.stack.log_of("scheduler"))
            raise

    def run(self, job: Job) -> Run:
        return self.stack.orm(lambda: Run.objects.filter(job=job).latest("number"))

    def log(self, job: Job) -> bytes:
        run = self.run(job)
        return self.stack.orm(lambda: b"".join(logstore.stream(run)))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.stack.orm(lambda: function(*args))

    def containers(self) -> list[Any]:
        """Every container of the engine, running or not."""
        with self.engine.client() as client:
            return list(client.containers.list(all=True, ignore_removed=True))

    def inspect(self, job: Job) -> dict[str, Any]:
        """What the engine says of the job's container, which must be there."""
        with self.engine.client() as client:
            found: dict[str, Any] = client.api.inspect_container(self.run(job).container_name)
            return found

    def held_slots(self) -> int:
        return self.stack.orm(lambda: AllocationSlot.objects.filter(released_at=None).count())
