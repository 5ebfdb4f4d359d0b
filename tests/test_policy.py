"""The policy as a function: order, placing, gates and quotas. The rest is in test_policy_*."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.policy import Node, Waiting, make_plan
from jobs.policy.explain import is_final
from jobs.policy.helps import HELPS
from jobs.quotas import Limits, Usage
from tests.rigs.pictures import A100, L4, NOW, codes, gpu, job, node, placed, snapshot


def test_higher_priority_goes_first_then_the_older_job() -> None:
    jobs = [job(1), job(2, priority=3), job(3), job(4, priority=2)]
    plan = make_plan(snapshot(*jobs, nodes=(node(gpus=3),)))
    assert [p.job for p in plan.placements] == [2, 4, 1]
    assert codes(plan, 3) == ["BUSY_GPUS"]


def test_two_jobs_at_once_get_different_gpus() -> None:
    """Asking an engine for "one GPU" always gives the first: microsoft/pai#2910, codalab/codalab-worksheets#895."""
    plan = make_plan(snapshot(job(1), job(2)))
    first, second = (p.gpu_uuids for p in plan.placements)
    assert set(first).isdisjoint(second)


def test_all_or_nothing_also_for_cpus_and_memory() -> None:
    cases = {
        "BUSY_GPUS": job(1, gpus=4),
        "BUSY_CPUS": job(1, gpus=0, millicpus=9000),
        "BUSY_MEMORY": job(1, gpus=0, memory_mib=9000),
    }
    host = node(millicpus=16_000, memory_mib=16_384, used_millicpus=8000, used_memory_mib=8192,
                cards=(gpu("a", 0, used_slots=1), *(gpu("a", i) for i in (1, 2, 3))))  # fmt: skip
    for code, waiting in cases.items():
        plan = make_plan(snapshot(waiting, nodes=(host,)))
        assert placed(plan) == {}
        assert codes(plan, 1)[0] == code


def test_small_jobs_fill_the_fullest_host_that_fits() -> None:
    nodes = (
        node("empty"),
        node("half", cards=(gpu("half", 0, used_slots=1), *(gpu("half", i) for i in (1, 2, 3)))),
    )
    assert placed(make_plan(snapshot(job(1), nodes=nodes))) == {1: "half"}


def test_a_job_without_model_spares_the_larger_gpus() -> None:
    small = node("small", cards=(gpu("small", 0, model=L4, memory_mib=24_576),))
    assert placed(make_plan(snapshot(job(1), nodes=(node("large"), small)))) == {1: "small"}


@pytest.mark.parametrize(
    ("waiting", "code"),
    [
        (job(1, gpus=8), "TOO_LARGE_GPUS"),
        (job(1, gpu_model="NVIDIA H100"), "NO_GPU_MODEL"),
        (job(1, gpu_memory_mib=80_000), "NO_GPU_MEMORY"),
        (job(1, millicpus=64_000), "TOO_LARGE_CPUS"),
        (job(1, memory_mib=999_999), "TOO_LARGE_MEMORY"),
    ],
)
def test_what_can_never_run_is_told_from_what_must_wait(waiting: Waiting, code: str) -> None:
    """codalab/codalab-worksheets#861: a request for more than any host has waited for ever without a word."""
    found = codes(make_plan(snapshot(waiting)), 1)
    assert [reason for reason in found if reason not in HELPS] == [code]


def test_a_request_that_only_several_hosts_together_could_meet_says_so() -> None:
    nodes = (node("cpus", gpus=0, millicpus=64_000, memory_mib=1024), node("gpus", gpus=4, millicpus=1000))
    assert codes(make_plan(snapshot(job(1, millicpus=8000, memory_mib=1024), nodes=nodes)), 1) == ["TOO_LARGE_TOGETHER"]


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (node(closed={"code": "NODES_CORDONED", "nodes": ["a"]}), "NODES_CORDONED"),
        (node(closed={"code": "NODES_SILENT", "nodes": ["a"]}), "NODES_SILENT"),
        (node(closed={"code": "DRIVER", "node": "a", "status": "driver_mismatch"}), "DRIVER"),
        (node(closed={"code": "ENGINE", "node": "a", "message": "gone"}), "ENGINE"),
    ],
)
def test_a_closed_host_takes_nothing_and_says_why(host: Node, code: str) -> None:
    plan = make_plan(snapshot(job(1), nodes=(host,)))
    assert placed(plan) == {}
    assert code in codes(plan, 1)


def test_a_gpu_used_from_outside_is_not_given_and_is_named() -> None:
    """clearml/clearml-agent#71: jobs were started on GPUs that somebody used beside the scheduler."""
    busy = gpu("a", 0, unavailable={"code": "GPU_BUSY_OUTSIDE", "outsiders": [{"pid": 7}]})
    plan = make_plan(snapshot(job(1), nodes=(node(cards=(busy,)),)))
    assert placed(plan) == {}
    reason = next(r for r in plan.reasons[1] if r["code"] == "GPU_BUSY_OUTSIDE")
    assert reason["count"] == 1
    assert reason["node"] == "a"


def test_a_hidden_gpu_is_no_hardware_to_wait_for() -> None:
    hidden = gpu("a", 0, unavailable={"code": "GPU_HIDDEN"})
    plan = make_plan(snapshot(job(1, gpus=2), nodes=(node(cards=(hidden, gpu("a", 1))),)))
    assert plan.reasons[1][0] == {"code": "TOO_LARGE_GPUS", "asked": 2, "most": 1, "node": "a"}


def test_unknown_gpu_memory_suits_only_who_asks_for_none() -> None:
    unified = node(cards=(gpu("a", 0, memory_mib=None),))
    assert placed(make_plan(snapshot(job(1), nodes=(unified,)))) == {1: "a"}
    assert codes(make_plan(snapshot(job(1, gpu_memory_mib=1), nodes=(unified,))), 1) == ["NO_GPU_MEMORY"]


def test_a_quota_in_use_holds_back_within_one_pass_too() -> None:
    """A pass that keeps no account gives two jobs what only one may have: zouharvi/last-translation-benchmark#118."""
    limits = {1: Limits(scope="user", name="alice", gpus=2)}
    plan = make_plan(snapshot(*(job(n) for n in range(1, 5)), user_limits=limits))
    assert sorted(placed(plan)) == [1, 2]
    assert plan.reasons[3][0]["code"] == "QUOTA_GPUS"
    assert (plan.reasons[3][0]["used"], plan.reasons[3][0]["limit"]) == (2, 2)


@pytest.mark.parametrize("gpus", [6, 5])
def test_a_quota_that_all_which_waits_just_fills_is_as_good_as_none_and_a_smaller_one_is_not(gpus: int) -> None:
    jobs = [job(n, gpus=2, limit_seconds=600) for n in (1, 2)]
    usage = {1: Usage(gpu_milli=2000, running_jobs=1)}
    limits = {1: Limits(scope="user", name="alice", gpus=gpus)}
    unlimited = make_plan(snapshot(*jobs, nodes=(node(gpus=2),), user_usage=usage))
    plan = make_plan(snapshot(*jobs, nodes=(node(gpus=2),), user_usage=usage, user_limits=limits))
    assert placed(plan) == placed(unlimited)
    assert (plan == unlimited) is (gpus == 6)
    assert codes(plan, 2)[0] == ("BUSY_GPUS" if gpus == 6 else "QUOTA_GPUS")


def test_a_team_quota_holds_back_all_its_members() -> None:
    limits = {1: Limits(scope="team", name="vision", gpus=1)}
    plan = make_plan(snapshot(job(1, user=1), job(2, user=2), job(3, user=3, team=2), team_limits=limits))
    assert sorted(placed(plan)) == [1, 3]


def test_a_job_over_its_quota_blocks_nobody() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus=1)}
    usage = {1: Usage(gpu_milli=1000, running_jobs=1)}
    plan = make_plan(
        snapshot(job(1, priority=3), job(2, user=2), user_limits=limits, user_usage=usage, nodes=(node(gpus=1),))
    )
    assert sorted(placed(plan)) == [2]


def test_the_budget_counts_what_running_jobs_may_still_use() -> None:
    limits = {1: Limits(scope="user", name="alice", gpu_seconds=7200)}
    usage = {1: Usage(gpu_seconds=3601)}
    plan = make_plan(snapshot(job(1), user_limits=limits, user_usage=usage))
    assert plan.reasons[1][0]["code"] == "BUDGET_USED"
    assert plan.reasons[1][0]["nearest"] == 3599


def test_every_gate_is_told_at_once() -> None:
    held = job(1, gpus=2, held_by=("admin",), start_after=NOW + timedelta(hours=1))
    plan = make_plan(
        snapshot(
            held, paused={"code": "PAUSED", "reason": "moving"}, user_limits={1: Limits(scope="user", name="a", gpus=1)}
        )
    )
    assert codes(plan, 1) == ["HELD_BY_ADMIN", "PAUSED", "START_AFTER", "QUOTA_GPUS"]


def test_what_a_pass_counts_for_a_share_are_the_slots_that_it_takes() -> None:
    host = node(cards=tuple(gpu("a", n, slots=4) for n in range(4)))
    limits = {1: Limits(scope="user", name="alice", gpus=1)}
    plan = make_plan(snapshot(*(job(n, gpu_milli=300) for n in (1, 2, 3)), nodes=(host,), user_limits=limits))
    assert len(plan.placements) == 2, "each takes two slots of four: half a GPU"
    (waits,) = plan.reasons.values()
    assert (waits[0]["code"], waits[0]["asked"], waits[0]["used"]) == ("QUOTA_GPUS", 0.5, 1)


def test_a_share_that_is_charged_a_whole_gpu_goes_to_one_that_is_cut() -> None:
    host = node(cards=(gpu("a", 0), gpu("a", 1, slots=2), gpu("a", 2)))
    plan = make_plan(snapshot(job(1, gpu_milli=600), job(2, gpu_milli=600), job(3), nodes=(host,)))
    assert {found.job: found.gpu_uuids for found in plan.placements} == {1: ("GPU-a-1",), 3: ("GPU-a-0",)}
    assert plan.reasons[2][0]["code"] == "BUSY_GPUS"


def test_a_share_starts_where_quotas_leave_enough_though_others_are_cut_more_coarsely() -> None:
    hosts = (node("a", cards=(gpu("a", 0, slots=2),)), node("b", cards=(gpu("b", 0, slots=10),)))
    limits = {1: Limits(scope="user", name="alice", gpus=1)}
    usage = {1: Usage(gpu_milli=600, running_jobs=1)}
    plan = make_plan(snapshot(job(1, gpu_milli=300), nodes=hosts, user_limits=limits, user_usage=usage))
    assert [(found.job, found.node) for found in plan.placements] == [(1, "b")]


@pytest.mark.parametrize(("cut", "models"), [((), []), ((L4,), [L4])])
def test_a_share_of_gpus_that_nobody_cut_never_starts(cut: tuple[str, ...], models: list[str]) -> None:
    cards = (gpu("a", 0), *(gpu("a", 1 + n, model=model, slots=4) for n, model in enumerate(cut)))
    plan = make_plan(snapshot(job(1, gpu_milli=10, gpu_model=A100), nodes=(node(cards=cards),)))
    assert plan.reasons[1][0] == {"code": "NO_SHARED_GPU", "models": models}


@pytest.mark.parametrize(
    ("free", "given"),
    [({A100: 4}, {A100: 2}), ({A100: 4, L4: 4}, {L4: 3}), ({A100: 4, L4: 1}, {A100: 2}), ({A100: 1, L4: 0}, {A100: 1})],
)
def test_an_elastic_job_is_as_large_as_quotas_allow_on_the_models_it_gets(
    free: dict[str, int], given: dict[str, int]
) -> None:
    cards = tuple(
        gpu(model, n, model=model, used_slots=int(n >= count)) for model, count in free.items() for n in range(4)
    )
    hosts = tuple(node(model, cards=tuple(card for card in cards if card.model == model)) for model in free)
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 2, L4: 3})}
    plan = make_plan(snapshot(job(1, gpus=4, least_gpus=1), nodes=hosts, user_limits=limits))
    (found,) = plan.placements
    assert {found.node: len(found.gpu_uuids)} == given


@pytest.mark.parametrize("ask", [{}, {"gpu_model": A100}, {"gpu_model": f"{A100}|Nobody's"}, {"gpu_memory_mib": 40000}])
def test_more_of_the_only_models_that_would_do_than_a_quota_allows_is_final(ask: dict[str, Any]) -> None:
    cards = (*(gpu("a", n) for n in range(4)), gpu("a", 4, model=L4, memory_mib=24000))
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 1, L4: 1})}
    plan = make_plan(snapshot(job(1, gpus=2, **ask), nodes=(node(cards=cards),), user_limits=limits))
    assert is_final(plan.reasons[1][0])
