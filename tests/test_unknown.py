"""After a restore, containers whose runs the database does not know go on, and an admin is told of them."""

from typing import Any

import pytest

from jobs import containers, unknown
from jobs.containerspec import LABEL, LABEL_JOB, LABEL_RUN
from jobs.reconcile import reconcile
from jobs.states import RunState
from portal import nodereports
from tests import factories
from tests.rigs.engine import BUSYBOX, Engine


class Nobody:
    """A follower of an agent that follows no run."""

    def active_runs(self) -> set[int]:
        return set()

    def forget_ended(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked of a run that is not there")


@pytest.mark.django_db(transaction=True)
def test_unknown_containers_are_told_of_and_left_alone(engine: Engine, settings: Any, alice: Any) -> None:
    node = factories.make_node(settings.NODE_NAME, gpus=0)
    job = factories.make_job(alice, gpus=0)
    run = factories.make_run(job, node, state=RunState.STARTING, engine_id=containers.engine().id)
    labels = {LABEL: settings.INSTALLATION, LABEL_JOB: str(job.pk), LABEL_RUN: "987654"}
    with engine.client() as client:
        stray = client.containers.run(BUSYBOX, ["sleep", "60"], name=run.container_name, labels=labels, detach=True)
        foreign = client.containers.run(BUSYBOX, ["sleep", "60"], labels={LABEL: "another"}, detach=True)
        reconcile(Nobody(), lambda _run: pytest.fail("nothing has ended"))
        stray.reload()
        assert (stray.status, foreign.status) == ("running", "created")
    [told] = nodereports.read([node.name])[node.name]["unknown"]
    assert (told["name"], told["run"], told["job"]) == (run.container_name, 987654, job.pk)
    assert containers.of_run(run.container_name, run.pk) is None  # its name is that of a run's own, and it is not its
    assert unknown.unknown([]) == []
