"""What may stay when a user's files are too many: a job that deletes, and nothing that only seems to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from gpus.models import Node
from jobs.diskuse import Size
from jobs.diskwatch import DiskWatch
from jobs.models import Run
from jobs.states import EndReason, JobState, RunState, Wish
from tests import factories

MOST = Size(1000, 10)


@pytest.mark.parametrize(
    ("before", "now", "over", "shrinks"),
    [
        (Size(900, 9), Size(1000, 10), [], True),
        (Size(5000, 9), Size(4000, 9), ["bytes"], True),
        (Size(5000, 9), Size(5000, 9), ["bytes"], False),
        (Size(5000, 9), Size(6000, 8), ["bytes"], False),  # one file less is no excuse for more bytes
        (Size(5000, 50), Size(6000, 49), ["bytes", "files"], False),
        (Size(5000, 50), Size(4999, 51), ["bytes", "files"], False),
        (Size(5000, 50), Size(4999, 49), ["bytes", "files"], True),
        (Size(900, 50), Size(950, 49), ["files"], True),
    ],
)
def test_all_that_is_too_much_has_to_shrink(before: Size, now: Size, over: list[Any], shrinks: bool) -> None:
    assert now.beyond(MOST) == over
    assert now.shrinks(before, over) is shrinks


def test_a_limit_of_0_is_none() -> None:
    assert Size(1 << 60, 1 << 40).beyond(Size(0, 0)) == []


class Clock:
    """Goes on by `step` each time that it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


Fill = Callable[[Any, int], None]


@pytest.fixture
def fill(settings: Any, tmp_path: Path) -> Fill:
    """Let a user have so many files, where 10 are allowed; the engine is away, so that only workspaces are known."""
    settings.WORKSPACE_ROOT, settings.WORKSPACE_FILES, settings.WORKSPACE_BYTES = tmp_path, 10, 0
    settings.DOCKER_HOST = f"unix://{tmp_path}/no-engine.sock"

    def to(user: Any, count: int) -> None:
        folder = tmp_path / str(user.pk)
        folder.mkdir(exist_ok=True)
        for file in list(folder.iterdir()):
            os.unlink(file)
        for number in range(count - 1):  # the folder counts too
            (folder / str(number)).touch()

    return to


def running(owner: Any, state: RunState = RunState.RUNNING) -> Run:
    node = Node.objects.first() or factories.make_node()
    return factories.make_run(factories.make_job(owner, gpus=0), node, state=state, container_id="0" * 64)


def stopped() -> set[int]:
    return set(Run.objects.filter(wish=Wish.DISK_LIMIT).values_list("pk", flat=True))


@pytest.mark.django_db
def test_who_deletes_is_spared_until_it_stands_still(alice: Any, bob: Any, fill: Fill) -> None:
    watch, run, other = DiskWatch(Clock()), running(alice), running(bob)
    fill(bob, 5)
    for count in (40, 30, 20):
        fill(alice, count)
        watch.look("alpha")
        assert stopped() == set()
    watch.look("alpha")
    assert stopped() == {run.pk}
    assert [w["counts"] for w in Run.objects.get(pk=run.pk).warnings] == ["files"]
    assert Run.objects.get(pk=other.pk).warnings == []


@pytest.mark.django_db
def test_a_run_that_begins_in_a_full_workspace_has_to_fill_no_more_of_it(alice: Any, fill: Fill) -> None:
    """Jobs that end between two looks would otherwise add to it for ever."""
    watch = DiskWatch(Clock())
    for count in (20, 20, 21):
        run = running(alice)
        fill(alice, count)
        watch.look("alpha")
        assert stopped() == (set() if count == 20 else {run.pk})
        run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())


@pytest.mark.django_db
def test_an_engine_that_is_away_keeps_nobody_from_being_looked_at(alice: Any, bob: Any, fill: Fill) -> None:
    """What a container holds is unknown then, and nobody hears the SIGKILL of one that goes on."""
    watch, going_on, other = DiskWatch(Clock()), running(alice, RunState.STOPPING), running(bob)
    for _look in range(3):
        fill(alice, 40)
        fill(bob, 40)
        watch.look("alpha")
    assert stopped() == {going_on.pk, other.pk}


@pytest.mark.django_db
def test_a_tree_that_takes_long_is_looked_at_more_seldom(alice: Any, fill: Fill) -> None:
    clock = Clock(step=3)
    watch, run = DiskWatch(clock), running(alice)
    for _look in range(5):
        fill(alice, 40)
        watch.look("alpha")
    assert stopped() == set(), "it was looked at once"
    clock.now += 3600
    watch.look("alpha")
    assert stopped() == {run.pk}
