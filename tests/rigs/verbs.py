"""What is done to jobs for others, in few words."""

from typing import Any

import pytest
from django.utils import timezone

from gpus.models import Node
from jobs.models import Cluster, Job, Run
from jobs.policy import Move, Plan, Preemption
from jobs.states import EndReason, RunState, job_state_after
from jobs.submit import Refused
from portal.models import User
from tests import factories


def rules(**fields: Any) -> None:
    Cluster.get()
    Cluster.objects.update(**{"protected_minutes": 0, "preempt_lower": True, "defragment": True, **fields})


def plan(*asked: Preemption | Move) -> Plan:
    return Plan(
        placements=(), reasons={}, blocked=frozenset(),
        preemptions=tuple(one for one in asked if isinstance(one, Preemption)),
        moves=tuple(one for one in asked if isinstance(one, Move)),
    )  # fmt: skip


def wishes(*runs: Run) -> list[str]:
    return [Run.objects.get(pk=run.pk).wish for run in runs]


def run_of(owner: User, node: Node, **fields: Any) -> Run:
    return factories.make_run(factories.make_job(owner, **fields), node)


def codes(error: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [*(problem.code for problem in error.value.problems), *(found.code for found in error.value.refusals)]


def end(run: Run, reason: EndReason) -> None:
    """As its node ends a run whose wish was granted."""
    run.refresh_from_db()
    assert run.advance(RunState.RUNNING, RunState.STOPPING, stopping_at=timezone.now())
    job = Job.objects.get(pk=run.job_id)
    state = job_state_after(reason, requeues=job.requeues, max_requeues=3, held=job.is_held)
    assert run.end(RunState.STOPPING, reason, state, now=timezone.now())
