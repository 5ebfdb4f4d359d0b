"""A start that stops half way: what is known of it then."""

from pathlib import Path

import pytest
from django.conf import LazySettings

from jobs import claims, containers
from jobs.launch import launch
from jobs.states import RunState
from portal.models import User
from tests import factories
from tests.rigs.engine import Engine


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
