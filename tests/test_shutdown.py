"""What runs while everything is shut down with its containers, as by the demo's Ctrl-C, is told so."""

import pytest
from django.core.management import call_command

from jobs import endings, wording
from jobs.models import Job, JobEvent, Run
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def test_what_runs_is_cancelled_for_that_reason_and_what_waits_goes_on(alice: User) -> None:
    node = factories.make_node("alpha")
    run = factories.make_run(factories.make_job(alice), node)
    starting = factories.make_run(factories.make_job(alice), node, state=RunState.STARTING)
    waiting = factories.make_job(alice)
    call_command("shutdown")
    run.refresh_from_db()
    found = endings.Facts(
        exit_code=None, oom_killed=False, finished_at=None, wish=run.wished, wish_by_owner=False,
        signalled_at=run.stopping_at,
    )  # fmt: skip
    assert endings.decide(found) is EndReason.SHUT_DOWN, "as its node finds, once the container is gone"
    assert run.end(RunState.STOPPING, EndReason.SHUT_DOWN, JobState.CANCELLED, now=run.stopping_at or run.placed_at)
    job = Job.objects.get(pk=run.job_id)
    assert wording.headline(job) == "It was stopped because Dockyard on alpha was shut down."
    assert wording.event_sentence(JobEvent.objects.get(kind="WISHED")) == "Dockyard was shut down"
    states = [Run.objects.get(pk=starting.pk).state, Job.objects.get(pk=waiting.pk).state]
    assert states == ["STARTING", "QUEUED"]
