"""When a waiting job should start, as a range."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.policy import Plan, Running, Snapshot, make_plan
from jobs.quotas import Limits, Usage
from tests.rigs.pictures import A100, HOUR, L4, NOW, gpu, job, node, run, snapshot


def hours(plan: Plan, pk: int) -> tuple[float, float | None]:
    found = plan.expected[pk]
    early, late = ((at - NOW) / timedelta(hours=1) if at else None for at in (found.earliest, found.latest))
    assert early is not None
    return round(early, 2), late if late is None else round(late, 2)


def known(
    number: int, cards: list[int], early: float, late: float, limit: float | None = 9.0, **fields: Any
) -> Running:
    """A run of which is known when such runs end."""
    likely = NOW + timedelta(hours=early), NOW + timedelta(hours=late)
    return run(number, cards=cards, hours=limit, likely=likely, **fields)


def like(low: float, high: float) -> dict[str, Any]:
    return {"likely_seconds": (low * HOUR, high * HOUR), "limit_seconds": 9 * HOUR}


ONE = (node(gpus=1),)


def test_the_first_waits_for_the_run_and_the_next_for_the_first() -> None:
    jobs = [job(n, **like(1, 3)) for n in (1, 2)]
    plan = make_plan(snapshot(*jobs, nodes=ONE, running=[known(1, [0], 1, 2)]))
    assert hours(plan, 1) == (1.0, 2.0)
    assert hours(plan, 2) == (2.0, 5.0)


def test_no_run_takes_longer_than_its_limit_however_long_its_likes_ran() -> None:
    plan = make_plan(snapshot(job(1, **like(1, 3)), job(2), nodes=ONE, running=[known(1, [0], 1, 8, limit=2)]))
    assert hours(plan, 1) == (1.0, 2.0)


def test_where_nothing_is_known_limits_bound_the_range() -> None:
    jobs = [job(n, limit_seconds=10 * HOUR) for n in (1, 2)]
    plan = make_plan(snapshot(*jobs, nodes=ONE, running=[run(1, cards=[0], hours=2)]))
    assert hours(plan, 1) == (0.2, 2.0)
    assert hours(plan, 2) == (1.2, 12.0)


def test_without_limit_and_likes_nobody_can_say_the_latest() -> None:
    plan = make_plan(snapshot(job(1), nodes=ONE, running=[run(1, cards=[0], hours=None)]))
    assert hours(plan, 1) == (0.0, None)
    plan = make_plan(snapshot(job(1), nodes=ONE, running=[known(1, [0], 1, 2, limit=None)]))
    assert hours(plan, 1) == (1.0, 2.0)


@pytest.mark.parametrize(("count", "limit_seconds"), [(120, 2**31 - 1), (1000, 10 * 365 * 24 * HOUR)])
def test_where_limits_add_up_beyond_any_calendar_nobody_can_say(count: int, limit_seconds: int) -> None:
    jobs = [job(n, limit_seconds=limit_seconds, queued_at=NOW + timedelta(seconds=n)) for n in range(count)]
    plan = make_plan(snapshot(*jobs, nodes=ONE))
    assert [placed.job for placed in plan.placements] == [0]
    assert plan.expected[1].latest == NOW + timedelta(seconds=limit_seconds)
    assert plan.expected[count - 1] == (NOW, None)


def test_gpus_of_one_node_are_needed_together() -> None:
    nodes = (node("a", gpus=2), node("b", gpus=2))
    runs = [run(1, "a", [0], hours=1, likely=None), run(2, "a", [1], hours=4), run(3, "b", [0, 1], hours=3)]
    plan = make_plan(snapshot(job(1, gpus=2), nodes=nodes, running=runs))
    assert hours(plan, 1)[1] == 3.0, "not at 3 with one of a and one of b, nor at 4"


def test_each_model_has_its_own_queue() -> None:
    cards = (gpu("a", 0), gpu("a", 1, model=L4))
    runs = [run(1, cards=[0], hours=1), run(2, cards=[1], hours=5)]
    jobs = [job(1, gpu_model=L4), job(2, gpu_model=A100), job(3, gpu_model=L4, limit_seconds=2 * HOUR)]
    plan = make_plan(snapshot(*jobs, nodes=(node(cards=cards),), running=runs))
    assert [hours(plan, pk)[1] for pk in (1, 2, 3)] == [5.0, 1.0, 6.0]


def test_a_short_job_may_slip_in_before_a_large_one_so_its_range_begins_early() -> None:
    runs = [known(1, [0], 1, 1), known(2, [1], 9, 9)]
    jobs = [job(1, gpus=2, **like(1, 1)), job(2, **like(1, 1))]
    plan = make_plan(snapshot(*jobs, nodes=(node(gpus=2),), running=runs))
    assert hours(plan, 1) == (9.0, 9.0)
    assert hours(plan, 2) == (1.0, 10.0)


def test_shares_of_a_gpu_wait_for_a_part_only() -> None:
    host = node(cards=(gpu("a", 0, slots=2),))
    halves = [run(n, cards=[0], hours=n, gpu_milli=500) for n in (1, 3)]
    jobs = [job(1, gpu_milli=500, limit_seconds=9 * HOUR), job(2, gpu_milli=500)]
    plan = make_plan(snapshot(*jobs, nodes=(host,), running=halves))
    assert [hours(plan, pk)[1] for pk in (1, 2)] == [1.0, 3.0]


def test_a_start_time_is_the_earliest_and_a_hold_has_no_latest() -> None:
    at = NOW + timedelta(hours=5)
    plan = make_plan(snapshot(job(1, start_after=at), job(2, held_by=("user",)), job(3, held_by=("admin",))))
    assert hours(plan, 1) == (5.0, 5.0)
    assert hours(plan, 2) == hours(plan, 3) == (0.0, None)


def test_a_quota_holds_back_until_the_owners_own_runs_have_ended() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus=1)}
    mine = known(1, [0], 2, 3, user=1)
    jobs = [job(n, **like(1, 2)) for n in (1, 2)]
    plan = make_plan(snapshot(*jobs, running=[mine], user_limits=limits))
    assert [hours(plan, pk) for pk in (1, 2)] == [(2.0, 3.0), (3.0, 5.0)]
    of_team = {1: Limits(scope="team", name="vision", running_jobs=1)}
    plan = make_plan(snapshot(*jobs, running=[known(1, [0], 2, 3, team=1)], team_limits=of_team))
    assert [hours(plan, pk) for pk in (1, 2)] == [(2.0, 3.0), (3.0, 5.0)]


@pytest.mark.parametrize(
    ("limit", "fields"),
    [
        ({"millicpus": 1500}, {}),
        ({"memory_mib": 1500}, {}),
        ({"memory_mib": 1500}, {"gpus": 0}),
        ({"gpus_by_model": {A100: 1}}, {}),
        ({"gpus_by_model": {A100: 1}}, {"gpu_model": A100}),
        ({"interactive_jobs": 1}, {"interactive": True}),
        ({"running_jobs": 1}, {"gpus": 0}),
    ],
)
@pytest.mark.parametrize("scope", ["user", "team"])
def test_every_quota_of_what_runs_at_once_is_dated_by_the_own_runs(
    scope: str, limit: dict[str, Any], fields: dict[str, Any]
) -> None:
    levels = {1: Limits(scope="user" if scope == "user" else "team", name="alice", **limit)}
    jobs = [job(n, **{**like(1, 2), **fields}) for n in (1, 2)]
    plan = make_plan(snapshot(*jobs, **{f"{scope}_limits": levels}))
    assert plan.reasons[2][0]["code"].startswith("QUOTA_")
    assert hours(plan, 2) == (1.0, 2.0), "one starts, the other follows"


def test_a_run_of_one_s_own_that_holds_the_quota_dates_the_next_job() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 2})}
    mine, other = known(1, [0, 1], 1, 2, user=1), known(2, [2], 5, 6)
    used = {1: Usage(gpu_milli=2000, milli_by_model={A100: 2000}, running_jobs=1)}
    plan = make_plan(snapshot(job(1), running=[mine, other], user_limits=limits, user_usage=used))
    assert hours(plan, 1) == (1.0, 2.0)


def test_where_models_are_bounded_a_job_with_a_choice_has_the_first_that_comes_free() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 1, L4: 1})}
    cards = (gpu("a", 0), gpu("a", 1), gpu("a", 2, model=L4))
    jobs = [job(1, gpu_model=A100, **like(4, 5)), job(2, gpu_model=L4, **like(1, 2)), job(3, **like(1, 2)), job(4)]
    plan = make_plan(snapshot(*jobs, nodes=(node(cards=cards),), user_limits=limits))
    assert plan.reasons[3][0]["code"] == "QUOTA_MODEL"
    assert [hours(plan, pk) for pk in (3, 4)] == [(1.0, 2.0), (2.0, 4.0)]


def test_the_place_that_a_moved_job_goes_on_at_counts_as_taken_for_as_long_as_it_runs() -> None:
    ask = job(9, gpus=2, avoid=frozenset({"GPU-a-0", "GPU-a-1"}))
    moving = run(1, "a", [0, 1], hours=6, job=9, stopping=True, goes_on=True, ask=ask)
    stays = run(2, "a", [2, 3], hours=8)
    jobs = [job(1, gpus=2, **like(1, 1)), job(2, gpus=2, **like(1, 1), labels=frozenset({"disk=big"}))]
    hosts = (node("a"), node("b", gpus=2, labels=frozenset({"disk=big"})))
    plan = make_plan(snapshot(*jobs, nodes=hosts, running=[moving, stays]))
    assert [run.node for run in plan.going_on] == ["b"]
    assert (hours(plan, 1), hours(plan, 2)[1]) == ((0.0, 0.0), 6.0)


@pytest.mark.parametrize(
    "limit", [{"millicpus": 500}, {"memory_mib": 500}, {"running_jobs": 0}, {"gpus_by_model": {A100: 0}}]
)
def test_what_passes_the_quota_itself_is_never_dated_and_keeps_nobody_waiting(limit: dict[str, Any]) -> None:
    limits = {1: Limits(scope="user", name="alice", **limit)}
    plan = make_plan(snapshot(job(1), running=[known(1, [0], 1, 2, user=1)], user_limits=limits))
    assert hours(plan, 1) == (0.0, None)


CLOSED = {"code": "NODES_CORDONED", "nodes": ["a"]}


@pytest.mark.parametrize("fields", [{"gpus": 0}, {"gpus": 1}, {"gpus": 1, "gpu_milli": 500}])
@pytest.mark.parametrize("code", ["NODES_CORDONED", "NODES_SILENT"])
def test_no_start_is_promised_where_every_host_that_would_do_is_closed(code: str, fields: dict[str, Any]) -> None:
    closed = node("a", closed={"code": code, "nodes": ["a"]})
    runs = [run(1, cards=[0], hours=1), run(2, cards=[], hours=2, millicpus=8000)]
    assert hours(make_plan(snapshot(job(1, **fields), nodes=(closed,), running=runs)), 1) == (0.0, None)
    assert hours(make_plan(snapshot(job(1, **fields), nodes=(closed,))), 1) == (0.0, None)
    small = node("b", gpus=1, millicpus=1500)
    plan = make_plan(snapshot(job(1, **fields, millicpus=9000), nodes=(closed, small), running=runs))
    assert hours(plan, 1) == (0.0, None), "the open one is too small"


def test_what_ends_on_a_closed_host_makes_no_room_for_cpus() -> None:
    runs = [run(1, "a", [], hours=1, millicpus=32_000), run(2, "b", [], hours=3, millicpus=32_000)]
    plan = make_plan(snapshot(job(1, gpus=0), nodes=(node("a", closed=CLOSED), node("b")), running=runs))
    assert hours(plan, 1)[1] == 3.0


def test_what_starts_in_the_same_pass_counts_as_running() -> None:
    plan = make_plan(snapshot(job(1, **like(2, 4)), job(2), nodes=ONE))
    assert hours(plan, 2) == (2.0, 4.0)


def test_a_job_without_gpus_waits_for_cpus() -> None:
    runs = [run(1, cards=[], millicpus=31_500, hours=3)]
    assert hours(make_plan(snapshot(job(1, gpus=0), running=runs)), 1)[1] == 3.0


def test_what_can_never_start_has_no_latest() -> None:
    assert hours(make_plan(snapshot(job(1, gpus=9))), 1) == (0.0, None)


def test_only_those_asked_for_are_estimated() -> None:
    picture: Snapshot = snapshot(*(job(n) for n in range(1, 8)), nodes=ONE)
    assert set(make_plan(picture, expect=[3, 5]).expected) == {3, 5}
    assert make_plan(picture, expect=()).expected == {}
    assert make_plan(picture, expect=[3]).expected[3] == make_plan(picture).expected[3]


BUDGET = {1: Limits(scope="user", name="alice", gpu_seconds=10 * HOUR, window_days=7)}


def spent(*returns: tuple[float, int], promised: int = 0) -> dict[int, Usage]:
    """User 1 used these GPU-hours, which will have left the window in so many hours."""
    back = tuple((NOW + timedelta(hours=at), used * HOUR) for at, used in returns)
    return {1: Usage(gpu_seconds=sum(used for _at, used in back) + promised * HOUR, returns=back)}


def test_a_job_over_its_budget_starts_when_enough_has_left_the_window() -> None:
    usage = spent((30, 2), (54, 3), (78, 5))
    jobs = [job(1, limit_seconds=4 * HOUR), job(2, limit_seconds=HOUR), job(3, limit_seconds=9 * HOUR)]
    plan = make_plan(snapshot(*jobs, user_limits=BUDGET, user_usage=usage))
    assert plan.reasons[1][0]["back_at"] == (NOW + timedelta(hours=54)).isoformat()
    assert hours(plan, 1) == (30.0, 54.0)
    assert hours(plan, 2) == (30.0, 54.0)  # of what the first leaves
    assert hours(plan, 3)[1] == 54 + 4 + 7 * 24  # when what the first used has left the window as well


def test_what_a_run_does_not_use_of_its_promise_is_back_at_its_end() -> None:
    usage = spent((30, 4), promised=6)
    running = [known(1, [0], 1, 2, limit=6, user=1)]
    plan = make_plan(snapshot(job(1, limit_seconds=4 * HOUR), user_limits=BUDGET, user_usage=usage, running=running))
    assert hours(plan, 1) == (1.0, 2.0)


def test_what_this_pass_starts_is_promised_its_limit() -> None:
    usage = spent((30, 4))
    jobs = [job(1, limit_seconds=6 * HOUR, likely_seconds=(HOUR, 5 * HOUR)), job(2, limit_seconds=4 * HOUR)]
    plan = make_plan(snapshot(*jobs, user_limits=BUDGET, user_usage=usage))
    assert hours(plan, 2) == (1.0, 30.0)
