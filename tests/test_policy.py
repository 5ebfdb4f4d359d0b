"""The policy as a function: order, placing, quotas, keeping, and a reason for every job that waits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policy import Gpu, Node, Plan, Reservation, Snapshot, Waiting, make_plan
from jobs.quotas import Limits, Usage

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
A100, L4 = "NVIDIA A100", "NVIDIA L4"


def gpu(node: str, index: int, **fields: Any) -> Gpu:
    defaults: dict[str, Any] = {"model": A100, "memory_mib": 40960, "used_slots": 0}
    return Gpu(uuid=f"GPU-{node}-{index}", index=index, **{**defaults, **fields})


def node(name: str = "a", gpus: int = 4, **fields: Any) -> Node:
    defaults: dict[str, Any] = {"millicpus": 32_000, "memory_mib": 131_072}
    cards = fields.pop("cards", None) or tuple(gpu(name, index) for index in range(gpus))
    return Node(name=name, gpus=cards, **{**defaults, **fields})


def job(pk: int, **fields: Any) -> Waiting:
    defaults: dict[str, Any] = {
        "user": 1, "team": 1, "priority": 1, "queued_at": NOW - timedelta(minutes=60 - pk), "gpus": 1,
        "gpu_model": "", "gpu_memory_mib": 0, "millicpus": 1000, "memory_mib": 1024, "limit_seconds": 3600,
    }  # fmt: skip
    return Waiting(id=pk, **{**defaults, **fields})


def snapshot(*waiting: Waiting, nodes: tuple[Node, ...] = (), **fields: Any) -> Snapshot:
    defaults: dict[str, Any] = {
        "user_limits": {}, "team_limits": {}, "user_usage": {}, "team_usage": {},
    }  # fmt: skip
    return Snapshot(now=NOW, nodes=nodes or (node(),), waiting=waiting, **{**defaults, **fields})


def placed(plan: Plan) -> dict[int, str]:
    return {p.job: p.node for p in plan.placements}


def codes(plan: Plan, pk: int) -> list[str]:
    return [reason["code"] for reason in plan.reasons[pk]]


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
                cards=(gpu("a", 0, used_slots=int(True)), *(gpu("a", i) for i in (1, 2, 3))))  # fmt: skip
    for code, waiting in cases.items():
        plan = make_plan(snapshot(waiting, nodes=(host,)))
        assert placed(plan) == {}
        assert codes(plan, 1)[0] == code


def test_small_jobs_fill_the_fullest_host_that_fits() -> None:
    nodes = (
        node("empty"),
        node("half", cards=(gpu("half", 0, used_slots=int(True)), *(gpu("half", i) for i in (1, 2, 3)))),
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
    assert codes(make_plan(snapshot(waiting)), 1) == [code]


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


def test_smaller_jobs_pass_a_blocked_one_until_it_has_waited_for_long() -> None:
    """cBio/cbio-cluster#21: a large job starved behind an endless stream of small ones."""
    cards = (gpu("a", 0, used_slots=int(True)), *(gpu("a", i) for i in (1, 2, 3)))
    host = node(cards=cards)
    fresh = job(1, gpus=4, blocked_since=NOW - timedelta(seconds=599))
    plan = make_plan(snapshot(fresh, job(2), nodes=(host,)))
    assert placed(plan) == {2: "a"}
    assert plan.blocked == {1}
    old = replace(fresh, blocked_since=NOW - timedelta(seconds=601))
    plan = make_plan(snapshot(old, job(2), nodes=(host,)))
    assert placed(plan) == {}
    assert plan.reservations == (Reservation(job=1, node="a", at=None),)
    assert {"code": "KEPT_FOR", "job": 1, "node": "a"} in plan.reasons[2]


def test_what_a_kept_node_has_left_over_may_go() -> None:
    cards = (*(gpu("a", i, used_slots=int(i == 0)) for i in range(4)), gpu("a", 9, model=L4))
    old = job(1, gpus=4, gpu_model=A100, blocked_since=NOW - timedelta(hours=1))
    plan = make_plan(snapshot(old, job(2), job(3, gpus=0), nodes=(node(cards=cards),)))
    assert placed(plan) == {2: "a", 3: "a"}
    assert plan.placements[0].gpu_uuids == ("GPU-a-9",)


def test_keeping_one_node_leaves_the_others_open() -> None:
    full = node("full", cards=tuple(gpu("full", i, used_slots=int(True)) for i in range(4)))
    half = node("half", cards=tuple(gpu("half", i, used_slots=int(i < 2)) for i in range(4)))
    tiny = node("tiny", gpus=1)
    old = job(1, gpus=4, blocked_since=NOW - timedelta(hours=1))
    plan = make_plan(snapshot(old, job(2), job(3), nodes=(full, half, tiny)))
    assert plan.reservations == (Reservation(job=1, node="half", at=None),)
    assert placed(plan) == {2: "tiny"}


def test_a_large_job_starts_under_an_endless_stream_of_small_ones() -> None:
    """cBio/cbio-cluster#21, played out: one GPU frees at a time, and a new small job is always there."""
    waiting = job(1, gpus=4, queued_at=NOW - timedelta(days=1))
    taken, large_started = {0, 1, 2, 3}, False
    for minute in range(30):
        taken.discard(minute % 4)
        cards = tuple(gpu("a", i, used_slots=int(i in taken)) for i in range(4))
        picture = replace(snapshot(waiting, job(100 + minute), nodes=(node(cards=cards),)))
        plan = make_plan(replace(picture, now=NOW + timedelta(minutes=minute)))
        for placement in plan.placements:
            large_started |= placement.job == 1
            taken |= {int(uuid[-1]) for uuid in placement.gpu_uuids}
        if large_started:
            break
        waiting = replace(waiting, blocked_since=waiting.blocked_since or NOW + timedelta(minutes=minute))
    assert large_started
    assert minute <= 10 + 4


shapes = st.builds(
    job,
    st.just(0),
    user=st.integers(1, 3),
    team=st.integers(1, 2),
    priority=st.integers(0, 3),
    gpus=st.integers(0, 5),
    gpu_model=st.sampled_from(["", A100, L4]),
    gpu_memory_mib=st.sampled_from([0, 24_000, 50_000]),
    millicpus=st.integers(100, 40_000),
    memory_mib=st.integers(16, 140_000),
    blocked_since=st.sampled_from([None, NOW - timedelta(hours=1)]),
    held_by=st.sampled_from([(), (), (), ("user",)]),
)
cards = st.lists(
    st.tuples(st.sampled_from([A100, L4]), st.booleans(), st.sampled_from([None, None, {"code": "GPU_UNSAMPLED"}])),
    max_size=6,
)


def build_node(number: int, rows: list[tuple[str, bool, Any]], used: int) -> Node:
    name = f"n{number}"
    found = tuple(gpu(name, i, model=m, used_slots=int(t), unavailable=u) for i, (m, t, u) in enumerate(rows))
    return Node(name=name, millicpus=32_000, memory_mib=131_072, used_millicpus=used, used_memory_mib=used, gpus=found)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(shapes, max_size=12),
    st.lists(st.tuples(cards, st.integers(0, 32_000)), max_size=4),
    st.integers(0, 6),
)
def test_whatever_the_picture_the_plan_keeps_its_promises(
    jobs: list[Waiting], hosts: list[tuple[list[tuple[str, bool, Any]], int]], quota: int
) -> None:
    """No GPU twice, none that is taken or unavailable, no host overfull, no quota passed, a reason for all the rest."""
    waiting = tuple(replace(item, id=number) for number, item in enumerate(jobs, 1))
    nodes = tuple(build_node(number, rows, used) for number, (rows, used) in enumerate(hosts))
    limits = {user: Limits(scope="user", name=str(user), gpus=quota) for user in (1, 2, 3)}
    picture = Snapshot(
        now=NOW, nodes=nodes, waiting=waiting, user_limits=limits, team_limits={}, user_usage={}, team_usage={},

    )  # fmt: skip
    plan = make_plan(picture)
    assert plan == make_plan(picture), "the same picture gives the same plan"
    check_promises(picture, plan, quota)


def check_promises(picture: Snapshot, plan: Plan, quota: int) -> None:
    by_id = {item.id: item for item in picture.waiting}
    free = {g.uuid: g for n in picture.nodes for g in n.gpus if not g.taken and g.unavailable is None}
    given = [uuid for p in plan.placements for uuid in p.gpu_uuids]
    assert len(given) == len(set(given))
    assert set(given) <= set(free)
    assert {p.job for p in plan.placements} | set(plan.reasons) == set(by_id)
    assert all(plan.reasons[pk] for pk in plan.reasons), "no job waits without a reason"
    for placement in plan.placements:
        item = by_id[placement.job]
        assert len(placement.gpu_uuids) == item.gpus
        assert not item.held_by
        assert all(uuid.startswith(f"GPU-{placement.node}-") for uuid in placement.gpu_uuids)
        assert not item.gpu_model or all(free[uuid].model == item.gpu_model for uuid in placement.gpu_uuids)
    for host in picture.nodes:
        here = [by_id[p.job] for p in plan.placements if p.node == host.name]
        assert not here or host.used_millicpus + sum(j.millicpus for j in here) <= host.millicpus
        assert not here or host.used_memory_mib + sum(j.memory_mib for j in here) <= host.memory_mib
    for user in (1, 2, 3):
        assert sum(by_id[p.job].gpus for p in plan.placements if by_id[p.job].user == user) <= quota
