"""Who works on the running product, and what they submit there."""

import uuid
from typing import Any

from jobs import workspace
from jobs.models import Job
from jobs.request import JobRequest
from jobs.submit import submit
from tests import factories
from tests.rigs.engine import BUSYBOX
from tests.rigs.stack import Stack

GATE = "until [ -e go ]; do sleep 0.1; done"  # words for a job's script that end once `open_gate` was called


def researcher(stack: Stack, name: str, team: str, **fields: Any) -> str:
    """A new user of a new team of four GPUs; `fields` are more columns of the user. Returns the name."""

    def make() -> str:
        return factories.make_user(name, teams=(factories.make_team(team, gpus=4),), **fields).username

    return stack.orm(make)


def open_gate(stack: Stack, job: int) -> None:
    """Let a running job go on behind its GATE."""
    stack.orm(lambda: (workspace.of_user(Job.objects.get(pk=job).owner_id) / "jobs" / str(job) / "go").touch())


def submitted(stack: Stack, owner: str, script: str, **fields: Any) -> int:
    """A small job of busybox with one GPU, of the owner's only team. Returns its number."""

    def make() -> int:
        from portal.models import User

        user = User.objects.get(username=owner)
        values: dict[str, Any] = {
            "name": "page test", "gpus": 1, "millicpus": 500, "memory_mib": 64, "shm_mib": 16, "limit_seconds": 300,
        }  # fmt: skip
        request = JobRequest(image=BUSYBOX, script=script, **{**values, **fields})
        return submit(request, owner=user, team=user.teams.get(), submission=uuid.uuid4()).pk

    return stack.orm(make)
