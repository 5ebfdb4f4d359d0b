"""Quotas as vectors: what is refused, with which numbers, for ever or for now; on paper and in the placing itself."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from jobs import dispatch, quotas, usage
from jobs.models import Allocation, Job, Quota, Run
from jobs.quotas import Limits, Refusal, Usage
from jobs.request import JobRequest
from jobs.states import JobState
from jobs.submit import Refused
from portal.models import User
from tests import factories
from tests.factories import make_job

A100, L4 = "NVIDIA A100", "NVIDIA L4"
HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Ask:
    gpus: int = 1
    least_gpus: int | None = None
    gpu_milli: int = 1000
    gpu_model: str = ""
    millicpus: int = 1000
    memory_mib: int = 1024
    limit_seconds: int | None = HOUR
    priority: int = 1
    interactive: bool = False


def limits(**fields: Any) -> Limits:
    return Limits(scope="user", name="alice", **fields)


def codes(found: list[Refusal]) -> list[str]:
    return [refusal.code for refusal in found]


def numbers(refused: Refusal) -> tuple[str, float | None, int, float, int | None]:
    return refused.field, refused.asked, refused.limit, refused.used, refused.nearest


@pytest.mark.parametrize(
    ("ask", "limit", "code", "said"),
    [
        (Ask(gpus=3), {"gpus": 2}, "QUOTA_GPUS", ("gpus", 3, 2, 0, 2)),
        (Ask(gpus=3), {"gpus": 4, "job_gpus": 2}, "LARGEST_JOB", ("gpus", 3, 2, 0, 2)),
        (Ask(gpu_milli=460), {"gpus": 0}, "QUOTA_GPUS", ("gpu_milli", 0.46, 0, 0, None)),
        (Ask(gpus=3, gpu_model=A100), {"gpus_by_model": {A100: 2}}, "QUOTA_MODEL", ("gpus", 3, 2, 0, 2)),
        (Ask(gpus=3, gpu_model=f"{A100}|{L4}"), {"gpus_by_model": {A100: 2, L4: 1}}, "QUOTA_MODEL",
         ("gpus", 3, 2, 0, 2)),
        (Ask(interactive=True), {"interactive_jobs": 0}, "QUOTA_INTERACTIVE", ("", 1, 0, 0, None)),
        (Ask(gpus=2, limit_seconds=2 * HOUR), {"gpu_seconds": HOUR}, "BUDGET_SIZE",
         ("limit_seconds", 4 * HOUR, HOUR, 0, HOUR // 2)),
        (Ask(gpu_milli=500, limit_seconds=4 * HOUR), {"gpu_seconds": HOUR}, "BUDGET_SIZE",
         ("limit_seconds", 2 * HOUR, HOUR, 0, 2 * HOUR)),
        (Ask(gpus=8, least_gpus=3), {"gpus": 2}, "QUOTA_GPUS", ("gpus", 3, 2, 0, 2)),
    ],
)  # fmt: skip
def test_what_no_waiting_mends_is_refused_with_the_nearest_that_would_pass(
    ask: Ask, limit: dict[str, Any], code: str, said: tuple[Any, ...]
) -> None:
    """lablup/backend.ai and kai-scheduler/KAI-Scheduler#1087: by model and by share, too."""
    (found,) = quotas.never(ask, limits(**limit))
    assert (found.code, numbers(found)) == (code, said)


@pytest.mark.parametrize(
    ("ask", "limit", "why"),
    [
        (Ask(gpus=3, gpu_model=f"{A100}|{L4}"), {"gpus_by_model": {A100: 2}}, "the other model is not limited"),
        (Ask(gpus=3), {"gpus_by_model": {A100: 2}}, "another model may do"),
        (Ask(gpus=8, least_gpus=2), {"gpus": 2}, "it starts with fewer"),
        (Ask(gpus=0, interactive=True), {"gpu_seconds": 0, "interactive_jobs": 1}, "no GPU, no budget"),
    ],
)
def test_what_may_pass_is_not_refused_for_ever(ask: Ask, limit: dict[str, Any], why: str) -> None:
    assert quotas.never(ask, limits(**limit)) == [], why


@pytest.mark.parametrize(
    ("ask", "limit", "used", "code", "said"),
    [
        (Ask(gpus=2), {"gpus": 4}, {"gpu_milli": 2500}, "QUOTA_GPUS", ("gpus", 2, 4, 2.5, 1)),
        (Ask(gpu_milli=600), {"gpus": 1}, {"gpu_milli": 500}, "QUOTA_GPUS", ("gpu_milli", 0.6, 1, 0.5, 500)),
        (Ask(gpu_model=A100), {"gpus_by_model": {A100: 1}}, {"milli_by_model": {A100: 1000}}, "QUOTA_MODEL",
         ("gpus", 1, 1, 1, None)),
        (Ask(interactive=True), {"interactive_jobs": 1}, {"interactive_jobs": 1}, "QUOTA_INTERACTIVE",
         ("", 1, 1, 1, None)),
        (Ask(gpus=2), {"gpu_seconds": 3 * HOUR}, {"gpu_seconds": 2 * HOUR}, "BUDGET_USED",
         ("limit_seconds", 2 * HOUR, 3 * HOUR, 2 * HOUR, HOUR // 2)),
    ],
)  # fmt: skip
def test_what_is_in_use_is_waited_for(
    ask: Ask, limit: dict[str, Any], used: dict[str, Any], code: str, said: tuple[Any, ...]
) -> None:
    assert quotas.never(ask, limits(**limit)) == []
    (found,) = quotas.start(ask, (limits(**limit), Usage(**used)))
    assert (found.code, numbers(found)) == (code, said)


def test_a_job_for_any_model_waits_only_once_all_are_used_up() -> None:
    level = (limits(gpus_by_model={A100: 1, L4: 1}), Usage(milli_by_model={A100: 1000}))
    ask = Ask()
    assert list(quotas.closed_models(ask, level, models=[A100, L4])) == [A100]
    assert quotas.start(ask, level, models=[A100, L4]) == []
    assert codes(quotas.start(ask, level, models=[A100])) == ["QUOTA_MODEL"]
    assert quotas.start(replace(ask, gpu_model=f"{A100}|{L4}"), level) == []


def test_an_elastic_job_gets_what_the_quotas_leave() -> None:
    ask = Ask(gpus=8, least_gpus=1)
    levels = [
        (limits(gpus=6, job_gpus=7), Usage(gpu_milli=1500)),
        (limits(gpu_seconds=5 * HOUR), Usage(gpu_seconds=2 * HOUR)),
    ]
    assert quotas.most_gpus(ask, levels[0]) == 4
    assert quotas.most_gpus(ask, *levels) == 3


def test_what_is_left_of_each_model_is_what_all_levels_leave() -> None:
    levels = [
        (limits(gpus_by_model={A100: 3}), Usage(milli_by_model={A100: 500})),
        (limits(gpus_by_model={A100: 9, L4: 1}), Usage(milli_by_model={L4: 3000})),
    ]
    ask = Ask(gpus=8, least_gpus=1)
    assert quotas.left_by_model(ask, *levels, models=[A100, L4, "H100"]) == {A100: 2, L4: 0, "H100": 8}


asks = st.builds(
    Ask, gpus=st.integers(0, 9), gpu_milli=st.integers(10, 1000), gpu_model=st.sampled_from(["", A100, f"{A100}|{L4}"]),
    millicpus=st.integers(100, 9000), limit_seconds=st.none() | st.integers(1, 9 * HOUR), interactive=st.booleans(),
)  # fmt: skip
few = st.none() | st.integers(0, 8)
vectors = st.builds(
    limits, gpus=few, job_gpus=few, running_jobs=few, interactive_jobs=few,
    gpu_seconds=st.none() | st.integers(0, 99999), millicpus=st.none() | st.integers(0, 20000),
    gpus_by_model=st.dictionaries(st.sampled_from([A100, L4]), st.integers(0, 8)),
)  # fmt: skip


@given(vectors, st.lists(asks, max_size=12))
def test_whatever_starts_stays_within_every_limit(level: Limits, wishes: list[Ask]) -> None:
    used, begun = Usage(), list[Ask]()
    for ask in wishes:
        model = next(iter(sorted({A100, L4} - quotas.closed_models(ask, (level, used), models=[A100, L4]).keys())), "")
        if quotas.never(ask, level) or quotas.start(ask, (level, used), models=[A100, L4]):
            continue
        used = used.plus(ask, model=ask.gpu_model if ask.gpu_model == A100 else model)
        begun.append(ask)
    assert level.gpus is None or used.gpus <= level.gpus
    assert level.running_jobs is None or len(begun) <= level.running_jobs
    assert level.interactive_jobs is None or sum(a.interactive for a in begun) <= level.interactive_jobs
    assert level.millicpus is None or used.millicpus <= level.millicpus
    assert level.gpu_seconds is None or used.gpu_seconds <= level.gpu_seconds
    for model, most in level.gpus_by_model.items():
        assert used.milli_by_model.get(model, 0) <= most * 1000


def test_never_looks_at_the_models_that_there_are() -> None:
    one = limits(gpus_by_model={A100: 1})
    for ask in (Ask(gpus=2), Ask(gpus=2, gpu_model=f"{A100}|{L4}")):
        (found,) = quotas.never(ask, one, models=[A100])
        assert (found.code, found.model, found.nearest) == ("QUOTA_MODEL", A100, 1)
        assert quotas.never(ask, one, models=[A100, L4]) == []
    assert quotas.never(Ask(gpus=2), one) == [], "nobody knows yet what there is"


def test_never_when_one_level_shuts_one_model_and_another_the_other() -> None:
    levels = limits(gpus_by_model={A100: 1}), limits(gpus_by_model={L4: 0})
    (found,) = quotas.never(Ask(gpus=2), *levels, models=[A100, L4])
    assert (found.model, found.limit) == (A100, 1), "the one that leaves more"
    assert quotas.never(Ask(gpus=1), *levels, models=[A100, L4]) == []


@given(vectors, asks)
def test_what_is_never_refused_starts_on_an_empty_cluster(level: Limits, ask: Ask) -> None:
    """ "Never" and "not now" leave no gap: with nothing in use, what is not refused for ever may start."""
    for models in ([], [A100], [A100, L4]):
        if not quotas.never(ask, level, models=models):
            assert quotas.start(ask, (level, Usage()), models=models) == []


# --- in the database ---


@pytest.mark.django_db
@pytest.mark.database
def test_gpus_are_counted_by_model_and_share(alice: User) -> None:
    node = factories.make_node("alpha", gpus=0)
    cards = [factories.make_gpu(node, index, model=model) for index, model in enumerate((A100, A100, L4))]
    factories.make_run(make_job(alice, gpus=2), node, gpus=(cards[0], cards[2]))
    factories.make_run(make_job(alice, gpu_milli=460, interactive=True), node, gpus=(cards[1],))
    (_limits, used), (_theirs, team) = usage.levels(alice, alice.teams.get(), timezone.now())
    assert used.gpu_milli == team.gpu_milli == 2460
    assert used.milli_by_model == {A100: 1460, L4: 1000}
    assert (used.running_jobs, used.interactive_jobs) == (2, 1)


@pytest.mark.django_db
@pytest.mark.database
def test_a_quota_by_model_leaves_the_other_models(alice: User) -> None:
    """kai-scheduler/KAI-Scheduler#1087"""
    Quota.objects.create(user=alice, gpus_by_model={A100: 1})
    node = factories.make_node("alpha", gpus=0)
    for index, model in enumerate((A100, A100, L4)):
        factories.make_gpu(node, index, model=model)
    jobs = [make_job(alice) for _ in range(3)]
    for _ in range(3):
        dispatch.run_pass()
    given = list(Allocation.objects.values_list("slots__gpu__model", flat=True).order_by("slots__gpu__index"))
    assert given == [A100, L4]
    waiting = Job.objects.get(state=JobState.QUEUED, pk__in=[job.pk for job in jobs])
    assert waiting.wait_reasons


@pytest.mark.django_db
@pytest.mark.database
def test_interactive_jobs_have_a_limit_of_their_own(alice: User) -> None:
    """raids-lab/crater#89"""
    Quota.objects.create(user=alice, interactive_jobs=1)
    factories.make_node("alpha", gpus=4)
    first, second, batch = make_job(alice, interactive=True), make_job(alice, interactive=True), make_job(alice)
    dispatch.run_pass()
    states = dict(Job.objects.values_list("pk", "state"))
    assert (states[first.pk], states[second.pk], states[batch.pk]) == ("PLACED", "QUEUED", "PLACED")
    second.refresh_from_db()
    assert [reason["code"] for reason in second.wait_reasons] == ["QUOTA_INTERACTIVE"]


@pytest.mark.django_db
@pytest.mark.database
def test_a_budget_counts_the_days_of_its_window(alice: User) -> None:
    """skypilot-org/skypilot#7837, Trainy-ai/konduktor#16"""
    Quota.objects.create(user=alice, gpu_hours=10, window_days=7)
    node = factories.make_node("alpha")
    run = factories.make_run(make_job(alice), node)
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(state="ENDED")
    run.allocation.slots.update(released_at=now)
    Job.objects.filter(pk=run.job_id).update(state="SUCCEEDED")
    job = make_job(alice, limit_seconds=HOUR)
    for days, expected in ((6, JobState.QUEUED), (8, JobState.PLACED)):
        begun = now - timedelta(days=days)
        Allocation.objects.filter(run=run).update(created_at=begun, released_at=begun + timedelta(hours=10))
        dispatch.run_pass()
        job.refresh_from_db()
        assert job.state == expected
        if expected == JobState.QUEUED:
            (reason,) = [r for r in job.wait_reasons if r["code"] == "BUDGET_USED"]
            assert (reason["days"], reason["used"]) == (7, 10 * HOUR)
            assert reason["back_at"] == job.expected_latest.isoformat()  # what began six days ago is a week old by then
            assert now + timedelta(days=1) < job.expected_latest < now + timedelta(days=3)


@pytest.mark.django_db
def test_the_ceiling_is_for_who_submits_not_for_whom_an_admin_raised(alice: User) -> None:
    from jobs.submit import check

    Quota.objects.create(user=alice, priority=1)
    with pytest.raises(Refused) as refused:
        check(JobRequest(name="a", image="b", script="c", priority=3), owner=alice, team=alice.teams.get())
    assert codes(list(refused.value.refusals)) == ["HIGHEST_PRIORITY"]
    factories.make_node("alpha")
    job = make_job(alice, priority=3)
    dispatch.run_pass()
    job.refresh_from_db()
    assert job.state == JobState.PLACED
