"""A pass over a host's containers: one that can't be acted on keeps no other from its turn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from jobs import containers
from jobs.containers import Container, EngineRefused, EngineUnavailable
from jobs.containerspec import LABEL, LABEL_JOB, LABEL_RUN
from jobs.models import Run
from jobs.reconcile import reconcile
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db
PAUSED = EngineRefused(409, "container is paused, unpause the container before attach")
HUNG = EngineUnavailable("read timed out")


class Follower:
    """One that can take over no run, for the given reason."""

    def __init__(self, why_not: Exception) -> None:
        self.why_not = why_not

    def active_runs(self) -> set[int]:
        return set()

    def adopt(self, run_id: int, container_id: str) -> None:
        raise self.why_not

    def finish(self, run_id: int, container_id: str, timeout: float) -> None: ...

    def discard(self, run_id: int) -> None: ...

    def forget_ended(self) -> None: ...


@pytest.fixture
def runs(settings: LazySettings, alice: User, spool: Path) -> list[Run]:
    """Two of this host: the first that a pass comes to, and the one after it."""
    node = factories.make_node(settings.NODE_NAME)
    older, newer = (factories.make_run(factories.make_job(alice), node) for _ in range(2))
    return [newer, older]


@pytest.fixture
def engine_says(monkeypatch: pytest.MonkeyPatch, settings: LazySettings) -> Callable[..., None]:
    """Gives the engine these containers, as (run, status); one of them may be where it hangs."""

    def say(*rows: tuple[Run, str], killed: list[str] | None = None, hangs_at: Run | None = None) -> None:
        def kill(container_id: str, signal: str) -> bool:
            assert killed is not None
            killed.append(container_id)
            if hangs_at and container_id == hangs_at.container_name:
                raise HUNG
            return True

        monkeypatch.setattr(containers, "ours", lambda: [_listed(run, status, settings) for run, status in rows])
        monkeypatch.setattr(containers, "kill", kill)

    return say


def _listed(run: Run, status: str, settings: Any) -> Container:
    labels = {LABEL: settings.INSTALLATION, LABEL_JOB: str(run.job_id), LABEL_RUN: str(run.pk)}
    return Container(
        id=run.container_name, name=run.container_name, labels=labels, status=status, pid=0, exit_code=None,
        oom_killed=False, error="", started_at=None, finished_at=None,
    )  # fmt: skip


def _give_up(runs: list[Run]) -> None:
    for run in runs:
        run.end(RunState.RUNNING, EndReason.HOST_LOST, JobState.LOST, now=timezone.now())


def test_a_container_that_cannot_be_taken_over_keeps_no_run_from_its_end(
    runs: list[Run], engine_says: Callable[..., None]
) -> None:
    first, second = runs
    engine_says((first, "paused"), (second, "exited"))
    ended: list[int] = []
    with pytest.raises(EngineRefused, match="paused"):
        reconcile(Follower(PAUSED), ended.append)
    assert ended == [second.pk]


def test_a_hung_container_of_a_host_that_was_given_up_lets_no_other_run_on(
    runs: list[Run], engine_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_up(runs)
    killed: list[str] = []
    engine_says((runs[0], "running"), (runs[1], "running"), killed=killed, hangs_at=runs[0])
    monkeypatch.setattr(containers, "confirm", lambda since: None)  # the engine is there
    with pytest.raises(EngineUnavailable):
        reconcile(Follower(HUNG), lambda _run: None)
    assert killed == [run.container_name for run in runs]


def test_an_engine_that_is_away_is_waited_for_once(
    runs: list[Run], engine_says: Callable[..., None], settings: LazySettings, tmp_path: Path
) -> None:
    settings.DOCKER_HOST = f"unix://{tmp_path}/nobody.sock"
    _give_up(runs)
    killed: list[str] = []
    engine_says((runs[0], "running"), (runs[1], "running"), killed=killed, hangs_at=runs[0])
    with pytest.raises(EngineUnavailable):
        reconcile(Follower(HUNG), lambda _run: None)
    assert killed == [runs[0].container_name]
