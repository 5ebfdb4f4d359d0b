"""Reservations: who is dated, who may start before it, and the bound on a large job's wait."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobs.policy import Plan, Reservation, Rules, make_plan
from tests.rigs.pictures import A100, HOUR, L4, NOW, Cluster, codes, gpu, job, node, placed, run, snapshot

LONG_AGO = NOW - timedelta(hours=1)


def reserved(plan: Plan) -> dict[int, tuple[str, float | None]]:
    """By job: the node, and in how many hours it starts there."""
    return {r.job: (r.node, r.at and (r.at - NOW) / timedelta(hours=1)) for r in plan.reservations}


def test_the_first_blocked_job_is_dated_by_the_limits_of_what_runs() -> None:
    runs = [run(1, cards=[0], hours=1), run(2, cards=[1], hours=3), run(3, cards=[2], hours=2)]
    plan = make_plan(snapshot(job(1, gpus=3), running=runs))
    assert reserved(plan) == {1: ("a", 2.0)}


def test_the_node_that_is_ready_first_is_kept() -> None:
    runs = [run(1, "a", range(4), hours=5), run(2, "b", range(4), hours=2)]
    plan = make_plan(snapshot(job(1, gpus=4), nodes=(node("a"), node("b"), node("c", gpus=2)), running=runs))
    assert reserved(plan) == {1: ("b", 2.0)}


def test_cpus_and_memory_count_for_the_date_too() -> None:
    runs = [run(1, cards=[0], hours=1), run(2, cards=[], hours=4, millicpus=30_000)]
    plan = make_plan(snapshot(job(1, gpus=4, millicpus=4000), running=runs))
    assert reserved(plan) == {1: ("a", 4.0)}


@pytest.mark.parametrize(
    ("fields", "starts", "why"),
    [
        ({"limit_seconds": 2 * HOUR}, True, "it ends just in time"),
        (
            {"limit_seconds": 2 * HOUR + 1, "gpu_model": A100},
            False,
            "it would end too late, and takes what the other needs",
        ),
        ({"limit_seconds": None, "gpu_model": A100}, False, "nobody knows when it ends"),
        ({"limit_seconds": None, "gpu_model": L4}, True, "it fits beside the other"),
        ({"limit_seconds": None, "gpus": 0}, True, "it needs no GPU"),
        ({"limit_seconds": None, "gpus": 0, "millicpus": 29_000}, False, "the other's CPUs would be gone"),
    ],
)
def test_a_job_behind_starts_if_it_ends_in_time_or_fits_beside(fields: dict[str, Any], starts: bool, why: str) -> None:
    host = node(cards=(*(gpu("a", i) for i in range(4)), gpu("a", 9, model=L4)))
    large = job(1, gpus=4, gpu_model=A100, millicpus=4000)
    plan = make_plan(snapshot(large, job(2, **fields), nodes=(host,), running=[run(1, cards=[0], hours=2)]))
    assert (2 in placed(plan)) == starts, why
    if not starts:
        at = (NOW + timedelta(hours=2)).isoformat()
        assert {"code": "RESERVED_FOR", "job": 1, "node": "a", "at": at} in plan.reasons[2]


def test_until_when_a_node_is_kept_stays_the_same_while_nothing_changes() -> None:
    picture = snapshot(job(1, gpus=4), job(2, limit_seconds=None), running=[run(1, cards=[0], hours=1.99)])
    later = [replace(picture, now=NOW + timedelta(seconds=7.3 * n)) for n in range(60)]
    plans = [make_plan(moment) for moment in (picture, *later)]
    said = {str(r) for plan in plans for r in plan.reasons[2] if r["code"] == "RESERVED_FOR"}
    assert len(said) == 1
    assert "14:00:00" in said.pop(), "the full minute after the run's limit"


def test_of_what_is_ending_right_now_no_time_is_told() -> None:
    picture = snapshot(job(1, gpus=4), job(2, limit_seconds=None), running=[run(1, cards=[0], hours=1, stopping=True)])
    assert {"code": "RESERVED_FOR", "job": 1, "node": "a"} in make_plan(picture).reasons[2]


def test_gpus_that_stay_free_at_the_date_may_go_now() -> None:
    runs = [run(1, cards=[0, 1], hours=2)]
    jobs = [job(n, gpus=1, limit_seconds=None) for n in (2, 3)]
    plan = make_plan(snapshot(job(1, gpus=3), *jobs, running=runs))
    assert placed(plan) == {2: "a"}, "of the two free GPUs one is needed at the date"


def test_who_starts_beside_takes_its_part_of_what_is_left() -> None:
    jobs = [job(n, gpus=0, millicpus=8000, limit_seconds=None) for n in (2, 3)]
    plan = make_plan(snapshot(job(1, gpus=4, millicpus=20_000), *jobs, running=[run(1, cards=[0], hours=2)]))
    assert placed(plan) == {2: "a"}


def test_a_run_that_is_being_stopped_is_as_good_as_ended() -> None:
    runs = [run(1, cards=range(4), hours=100, stopping=True)]
    plan = make_plan(snapshot(job(1, gpus=4), running=runs))
    assert reserved(plan) == {1: ("a", 0.0)}


def test_a_second_blocked_job_is_served_once_it_waited_for_long_on_another_node() -> None:
    runs = [run(1, "a", range(4), hours=2), run(2, "b", range(4), hours=3)]
    nodes = (node("a"), node("b"))
    fresh = job(2, gpus=4, blocked_since=NOW - timedelta(seconds=599))
    assert reserved(make_plan(snapshot(job(1, gpus=4), fresh, nodes=nodes, running=runs))) == {1: ("a", 2.0)}
    old = replace(fresh, blocked_since=NOW - timedelta(seconds=600))
    plan = make_plan(snapshot(job(1, gpus=4), old, nodes=nodes, running=runs))
    assert reserved(plan) == {1: ("a", 2.0), 2: ("b", 3.0)}


def test_no_more_nodes_are_kept_than_the_rules_allow() -> None:
    names = [f"n{number}" for number in range(6)]
    runs = [run(n, name, range(4)) for n, name in enumerate(names)]
    jobs = [job(n, gpus=4, blocked_since=LONG_AGO) for n in range(1, 7)]
    nodes = tuple(node(name) for name in names)
    plan = make_plan(snapshot(*jobs, nodes=nodes, running=runs, rules=Rules(most_kept=3)))
    assert set(reserved(plan)) == {1, 2, 3}


def test_a_job_that_can_never_start_is_not_the_first() -> None:
    plan = make_plan(snapshot(job(1, gpus=9), job(2, gpus=4), running=[run(1, cards=[0], hours=1)]))
    assert reserved(plan) == {2: ("a", 1.0)}


def test_without_a_limit_nobody_can_say_when_and_what_is_freed_is_kept_after_a_while() -> None:
    runs = [run(1, cards=[0], hours=None)]
    fresh, small = job(1, gpus=4, blocked_since=NOW - timedelta(seconds=599)), job(2)
    plan = make_plan(snapshot(fresh, small, running=runs))
    assert placed(plan) == {2: "a"}
    assert plan.reservations == ()
    plan = make_plan(snapshot(replace(fresh, blocked_since=LONG_AGO), small, running=runs))
    assert placed(plan) == {}
    assert plan.reservations == (Reservation(job=1, node="a", at=None),)
    assert {"code": "KEPT_FOR", "job": 1, "node": "a"} in plan.reasons[2]


def test_a_node_that_can_be_dated_goes_before_one_that_cannot() -> None:
    runs = [run(1, "a", [0], hours=None), run(2, "b", range(4), hours=90)]
    plan = make_plan(snapshot(job(1, gpus=4), nodes=(node("a"), node("b")), running=runs))
    assert reserved(plan) == {1: ("b", 90.0)}


def test_what_a_kept_node_has_left_over_may_go() -> None:
    cards = (*(gpu("a", i, used_slots=int(i == 0)) for i in range(4)), gpu("a", 9, model=L4))
    old = job(1, gpus=4, gpu_model=A100, blocked_since=LONG_AGO)
    plan = make_plan(snapshot(old, job(2), job(3, gpus=0), nodes=(node(cards=cards),)))
    assert placed(plan) == {2: "a", 3: "a"}
    assert plan.placements[0].gpu_uuids == ("GPU-a-9",)


def test_keeping_one_node_leaves_the_others_open() -> None:
    full = node("full", cards=tuple(gpu("full", i, used_slots=1) for i in range(4)))
    half = node("half", cards=tuple(gpu("half", i, used_slots=int(i < 2)) for i in range(4)))
    old = job(1, gpus=4, blocked_since=LONG_AGO)
    plan = make_plan(snapshot(old, job(2), job(3), nodes=(full, half, node("tiny", gpus=1))))
    assert plan.reservations == (Reservation(job=1, node="half", at=None),)
    assert placed(plan) == {2: "tiny"}
    assert "KEPT_FOR" in codes(plan, 3)


def test_an_elastic_job_starts_with_what_is_there_and_waits_for_no_more_than_its_least() -> None:
    elastic = job(1, gpus=4, least_gpus=2)
    plan = make_plan(snapshot(elastic, running=[run(1, cards=[0])]))
    assert len(plan.placements[0].gpu_uuids) == 3
    plan = make_plan(snapshot(elastic, running=[run(1, cards=[0, 1, 2], hours=1), run(2, cards=[3], hours=2)]))
    assert reserved(plan) == {1: ("a", 1.0)}
    assert plan.reasons[1][0]["asked"] == 2


@pytest.mark.parametrize("limit", [600, 1800, 3600])
def test_a_large_job_waits_no_longer_than_the_longest_run_when_it_came(limit: int) -> None:
    """cBio/cbio-cluster#21, played out: small jobs without end, of any length; the date never moves back."""
    cluster = Cluster(nodes=(node("a"), node("b")))
    for number in range(2, 10):
        cluster.submit(job(number, limit_seconds=limit + number * 60))
    cluster.step()
    cluster.submit(job(1, gpus=4, limit_seconds=HOUR))
    dates = []
    for minute in range(100):
        cluster.submit(job(100 + 2 * minute, limit_seconds=300 + minute % 7 * 600))
        cluster.submit(job(101 + 2 * minute, limit_seconds=None if minute % 2 else 60))
        dates += [r.at for r in cluster.step().reservations if r.job == 1]
        if 1 in cluster.started:
            break
        cluster.pass_time(60)
    assert dates == sorted(dates, reverse=True), "earlier, or the same"
    assert cluster.started[1] - NOW <= timedelta(seconds=limit + 9 * 60 + 60)
    assert len(cluster.started) > 9, "others started before it, where they did not delay it"


def test_a_large_job_starts_beside_runs_without_limits_once_what_is_freed_was_kept() -> None:
    """cBio/cbio-cluster#21 where nobody gives a limit: one run ends a minute, and a small job always waits."""
    cluster = Cluster(nodes=(node("a"),), rules=Rules(reserve_after=600))
    for number in range(2, 6):
        cluster.submit(job(number, limit_seconds=None))
    cluster.step()
    cluster.submit(job(1, gpus=4, limit_seconds=None))
    for minute in range(60):
        cluster.submit(job(100 + minute, limit_seconds=None))
        cluster.step()
        if 1 in cluster.started:
            break
        cluster.pass_time(60)
        if cluster.runs:
            cluster.end(min(cluster.runs))
    assert 1 in cluster.started
    assert cluster.started[1] - NOW <= timedelta(minutes=10 + 4 + 1)
