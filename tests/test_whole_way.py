"""The whole way of a job on the running product: from the queue to a finished log, on a real engine."""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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

    def fresh(self, job: Job) -> Job:
        return self.stack.orm(lambda: Job.objects.get(pk=job.pk))

    def wait(self, job: Job, *states: str, seconds: float = 40) -> Job:
        wait_until(lambda: self.fresh(job).state in states, f"{job} in {states}", seconds=seconds)
        return self.fresh(job)

    def end(self, job: Job, seconds: float = 60) -> Job:
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

    def held_slots(self) -> int:
        return self.stack.orm(lambda: AllocationSlot.objects.filter(released_at=None).count())


@pytest.fixture
def lab(stack: Stack, engine: Engine) -> Iterator[Lab]:
    yield Lab(stack, engine)
    wait_until(lambda: not engine.containers(), "no container is left", seconds=30)


def test_a_gpu_job_runs_and_leaves_its_log_exit_code_and_grant(lab: Lab) -> None:
    job = lab.end(lab.submit("echo hello; echo $NVIDIA_VISIBLE_DEVICES; exit 3", gpus=2))
    run = lab.run(job)
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", "EXIT_CODE", 3)
    uuids = lab.call(lambda: run.gpu_uuids)
    assert lab.log(job) == f"hello\n{','.join(uuids)}\n".encode()
    assert len(uuids) == 2
    assert run.log_complete
    assert lab.held_slots() == 0
