"""The next release beside this one: its migration under our processes, then its processes one after another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpus.models import HostEvent, Node
from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until
from tests.rigs.release import VERSION, last_migration, make_next_release
from tests.rigs.stack import Stack
from tests.way.lab import Lab

COUNT = "i=0; while [ ! -e end ]; do i=$((i+1)); echo n=$i; sleep 0.1; done; exit 7"


@pytest.fixture
def following(stack: Stack, engine: Engine, tmp_path: Path) -> Iterator[Stack]:
    """The next release on the same data. Afterwards all is as it was, and of this release."""
    release = Stack(engine.url, tree=make_next_release(tmp_path / "next"))
    yield release
    release.close()
    release.manage("migrate", "jobs", last_migration(), "--verbosity", "0")
    stack.start_all()


def test_a_new_version_takes_over_while_jobs_run(stack: Stack, lab: Lab, following: Stack) -> None:
    """rq/rq#584, #1516, okpy/ok#1062: no job fails because of a deploy, nor waits for its end."""
    running = lab.start(COUNT, gpus=1)
    following.manage("migrate", "--verbosity", "0")
    assert lab.log(lab.end(lab.submit("echo old on new tables", gpus=1))) == b"old on new tables\n"
    for role in ("web", "scheduler"):
        following.start(role)
    following.wait_ready("web")
    stack.stop("scheduler")
    assert lab.log(lab.end(lab.submit("echo new beside old", gpus=1))) == b"new beside old\n"
    stack.stop("node")
    following.start("node")
    node = Node.objects.filter(name=stack.env["NODE_NAME"])
    wait_until(lambda: lab.call(node.get).agent_version == VERSION, "the new node")
    started = HostEvent.objects.filter(node__in=node, kind="STARTED", params__version=VERSION)
    wait_until(lambda: lab.call(started.exists), "its start in the host's journal")
    assert lab.log(lab.end(lab.submit("echo all new", gpus=1))) == b"all new\n"
    assert lab.fresh(running).state == "RUNNING"
    (Path(stack.data) / "workspaces" / str(lab.user.pk) / "jobs" / str(running.pk) / "end").touch()
    ended = lab.end(running)
    assert (ended.state, ended.exit_code, lab.call(running.runs.count)) == ("FAILED", 7, 1)
    numbers = [int(line.removeprefix(b"n=")) for line in lab.log(running).splitlines()]
    assert numbers == list(range(1, len(numbers) + 1)), "whoever followed it"
