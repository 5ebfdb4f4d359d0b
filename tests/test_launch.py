"""A start that stops half way, and an end of which the engine forgot: what is known of them then."""

from pathlib import Path

import pytest
from django.conf import LazySettings

from jobs import claims, containers
from jobs.finish import EngineLife, finish
from jobs.launch import launch
from jobs.states import RunState
from portal.models import User
from tests import factories
from tests.rigs.engine import Engine
from tests.rigs.logs import running_follower
from tests.rigs.processes import wait_until


@pytest.mark.django_db(transaction=True)
def test_a_container_whose_start_nobody_noted_down_explains_its_processes(
    engine: Engine, settings: LazySettings, alice: User, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WORKSPACE_ROOT, settings.ATTACH_TIMEOUT = spool / "workspaces", 0.1
    settings.JOB_NETWORK, settings.GPU_INJECTION = "none", "none"
    start = containers.start

    def start_unheard(container_id: str) -> None:
        start(container_id)
        raise containers.EngineUnavailable("its answer was lost")

    monkeypatch.setattr(containers, "start", start_unheard)
    node = factories.make_node(settings.NODE_NAME, gpus=1, engine_id=containers.engine().id)
    run = factories.make_run(factories.make_job(alice, script="sleep 600"), node, state=RunState.PLACED)
    launch(run.pk)
    run.refresh_from_db()
    container = containers.of_run(run.container_name, run.pk)
    assert container is not None
    assert (run.state, container.status) == (RunState.STARTING, "running")
    assert [claim.container_id for claim in claims.of_node(node.name)] == [container.id]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("told", "state", "code"), [(0, "SUCCEEDED", 0), (None, "FAILED", 255)])
def test_a_code_that_the_engine_knows_no_longer_is_the_one_that_it_told(
    engine: Engine, settings: LazySettings, alice: User, spool: Path, told: int | None, state: str, code: int
) -> None:
    """One that is killed as a container ends tells of its exit code first, and calls it 255 when it is back."""
    settings.WORKSPACE_ROOT, settings.ATTACH_TIMEOUT = spool / "workspaces", 0.1
    settings.JOB_NETWORK, settings.GPU_INJECTION = "none", "none"
    node = factories.make_node(settings.NODE_NAME, gpus=1, engine_id=containers.engine().id)
    run = factories.make_run(factories.make_job(alice, script="exit 255"), node, state=RunState.PLACED)
    launch(run.pk)
    ended = EngineLife(exit_code=lambda: told)
    with running_follower() as follower:
        wait_until(lambda: finish(run.pk, follower, ended), "its end is written")
    run.refresh_from_db()
    assert (run.job.state, run.exit_code) == (state, code)
