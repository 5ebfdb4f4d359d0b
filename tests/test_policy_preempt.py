"""Who is stopped, or moved, for whom: guarantees, classes, protection, the fewest and the youngest."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobs.policy import Move, Plan, Preemption, Reason, Rules, Running, make_plan
from jobs.quotas import Limits
from tests.rigs.pictures import (
    HOUR,
    L4,
    NOW,
    Cluster,
    codes,
    gpu,
    job,
    node,
    placed,
    run,
    snapshot,
    stopped,
    team,
)

VISION, SPEECH, GUESTS = 1, 2, 9
LOWER = Rules(preempt_lower=True)


def aged(hours: float) -> dict[str, object]:
    return {"since": NOW - timedelta(hours=hours)}


def test_a_team_below_its_guarantee_takes_borrowed_gpus_back_youngest_first() -> None:
    runs = [run(n, cards=[n], team=GUESTS, since=NOW - timedelta(hours=9 - n)) for n in range(4)]
    plan = make_plan(snapshot(job(1, gpus=2, team=VISION), running=runs, team_limits=team(VISION, guaranteed_gpus=2)))
    assert stopped(plan) == {3: 1, 2: 1}
    assert {p.why for p in plan.preemptions} == {"GUARANTEE"}
    assert plan.reasons[1] == ({"code": "MAKING_WAY", "node": "a", "count": 2},)


def test_a_borrowed_run_is_stopped_whether_it_is_preemptible_or_not_and_without_the_rule_for_classes() -> None:
    runs = [run(1, cards=range(4), team=GUESTS, priority=3, preemptible=False)]
    limits = team(VISION, guaranteed_gpus=1)
    assert stopped(make_plan(snapshot(job(1, priority=0), running=runs, team_limits=limits))) == {1: 1}


def test_what_a_team_holds_within_its_own_guarantee_is_not_taken() -> None:
    runs = [run(n, cards=[n], team=SPEECH, **aged(9 - n)) for n in range(4)]
    limits = {**team(VISION, guaranteed_gpus=2), **team(SPEECH, guaranteed_gpus=3)}
    asks = job(1, team=VISION)
    assert stopped(make_plan(snapshot(asks, running=runs, team_limits=limits))) == {3: 1}
    plan = make_plan(snapshot(replace(asks, gpus=2), running=runs, team_limits=limits))
    assert stopped(plan) == {}, "only one of the two is borrowed"


def test_a_job_beyond_the_guarantee_takes_nothing_back() -> None:
    runs = [run(1, cards=[0, 1], team=VISION), run(2, cards=[2, 3], team=GUESTS)]
    limits = team(VISION, guaranteed_gpus=3)
    assert stopped(make_plan(snapshot(job(1, gpus=2), running=runs, team_limits=limits))) == {}
    assert stopped(make_plan(snapshot(job(1, gpus=1), running=runs, team_limits=limits))) == {2: 1}


def test_two_jobs_of_a_team_do_not_take_back_more_than_is_guaranteed() -> None:
    runs = [run(n, cards=[n], team=GUESTS) for n in range(4)]
    plan = make_plan(snapshot(*(job(n) for n in (1, 2, 3)), running=runs, team_limits=team(VISION, guaranteed_gpus=2)))
    assert sorted(stopped(plan).values()) == [1, 2]
    assert codes(plan, 3) == ["BUSY_GPUS"]


def test_guaranteed_work_goes_before_what_would_borrow() -> None:
    """Else the borrower would start, only to be stopped."""
    limits = team(VISION, guaranteed_gpus=4)
    plan = make_plan(snapshot(job(1, gpus=4, team=GUESTS, priority=3), job(2, gpus=4), team_limits=limits))
    assert placed(plan) == {2: "a"}


def test_no_run_is_stopped_before_it_ran_for_the_protected_time() -> None:
    young = [run(1, cards=range(4), team=GUESTS, since=NOW - timedelta(seconds=599))]
    limits = team(VISION, guaranteed_gpus=4)
    assert stopped(make_plan(snapshot(job(1), running=young, team_limits=limits))) == {}
    old = [replace(young[0], since=NOW - timedelta(seconds=600))]
    assert stopped(make_plan(snapshot(job(1), running=old, team_limits=limits))) == {1: 1}


def test_a_higher_class_stops_preemptible_lower_runs_only_where_the_rules_say_so() -> None:
    runs = [run(1, cards=[0, 1], priority=1, preemptible=True), run(2, cards=[2, 3], priority=1)]
    urgent = job(1, priority=3)
    assert stopped(make_plan(snapshot(urgent, running=runs))) == {}
    assert make_plan(snapshot(urgent, running=runs, rules=LOWER)).preemptions == (
        Preemption(run=1, job=1, why="PRIORITY"),
    )
    equals = make_plan(snapshot(replace(urgent, priority=1), running=runs, rules=LOWER))
    assert stopped(equals) == {}, "only a lower class gives way"


def test_the_fewest_are_stopped_then_the_youngest() -> None:
    small = [run(n, "a", [n], priority=0, preemptible=True, **aged(1)) for n in range(4)]
    large = [run(10, "b", range(4), priority=0, preemptible=True, **aged(30))]
    nodes = (node("a"), node("b"))
    plan = make_plan(snapshot(job(1, gpus=2), nodes=nodes, running=[*small, *large], rules=LOWER))
    assert stopped(plan) == {10: 1}, "one old run rather than two young ones"
    plan = make_plan(snapshot(job(1, gpus=1), nodes=nodes, running=[*small, *large], rules=LOWER))
    assert stopped(plan) == {3: 1}, "of equal ones the last to start"


def test_nobody_is_stopped_where_the_job_would_not_fit_afterwards() -> None:
    """Never a victim for nothing: GPUs of another model, too little memory, a quota in the way."""
    runs = [run(1, cards=range(4), priority=0, preemptible=True)]
    asks = job(1, priority=2)
    shut = {1: Limits(scope="user", name="alice", gpus=0)}
    for winner in (replace(asks, gpu_model=L4), replace(asks, memory_mib=131_072 + 1), replace(asks, gpus=5)):
        assert stopped(make_plan(snapshot(winner, running=runs, rules=LOWER))) == {}
    assert stopped(make_plan(snapshot(asks, running=runs, rules=LOWER, user_limits=shut))) == {}
    assert stopped(make_plan(snapshot(asks, running=runs, rules=LOWER))) == {1: 1}


def test_cpus_alone_may_be_what_is_taken_back() -> None:
    runs = [run(1, cards=[], priority=0, preemptible=True, millicpus=31_000), run(2, cards=[0], priority=0)]
    plan = make_plan(snapshot(job(1, priority=2, millicpus=8000), running=runs, rules=LOWER))
    assert stopped(plan) == {1: 1}


def test_all_victims_are_on_one_node() -> None:
    runs = [run(n, host, [i], priority=0, preemptible=True) for n, (host, i) in enumerate(
        (host, i) for host in "ab" for i in range(2))]  # fmt: skip
    nodes = (node("a", gpus=2), node("b", gpus=2))
    plan = make_plan(snapshot(job(1, gpus=2), nodes=nodes, running=runs, rules=LOWER))
    assert len({runs[number].node for number in stopped(plan)}) == 1
    assert len(stopped(plan)) == 2
    assert stopped(make_plan(snapshot(job(1, gpus=3), nodes=nodes, running=runs, rules=LOWER))) == {}


def stopping(winner: int) -> list[Running]:
    return [run(1, cards=[0, 1], priority=0, preemptible=True, stopping=True, makes_way_for=winner),
            run(2, cards=[3], priority=0, preemptible=True)]  # fmt: skip


def test_while_victims_are_stopping_nobody_else_is_stopped_and_nobody_takes_the_gpus() -> None:
    winner, other = job(5, gpus=2, priority=2), job(6, gpus=1, priority=3)
    plan = make_plan(snapshot(winner, other, running=stopping(5), rules=LOWER))
    assert stopped(plan) == {}, "what is free goes to the other, and the winner has its victims"
    assert placed(plan) == {6: "a"}
    assert plan.reasons[5] == ({"code": "MAKING_WAY", "node": "a", "count": 1},)
    freed = [replace(item, slots={}, gpus=0) if item.run == 1 else item for item in stopping(5)]
    plan = make_plan(snapshot(replace(winner, gpus=3), replace(other, gpus=2), running=freed, rules=LOWER))
    assert placed(plan) == {5: "a"}, "the winner is looked at first, though the other is of a higher class"


def test_the_winner_starts_before_its_victim_which_waits_at_its_old_place() -> None:
    victim = job(1, gpus=4, team=GUESTS, priority=3, queued_at=NOW - timedelta(days=2), yields_to=2)
    plan = make_plan(snapshot(victim, job(2, gpus=4)))
    assert placed(plan) == {2: "a"}
    assert plan.order == (2, 1)


def test_a_winner_on_hold_keeps_nothing() -> None:
    winner = job(5, gpus=2, priority=2, held_by=("user",))
    plan = make_plan(snapshot(winner, job(6), running=stopping(5)))
    assert placed(plan) == {6: "a"}
    assert plan.reservations == ()


def test_a_winners_quota_is_taken_while_it_waits_for_its_victims() -> None:
    """Its owner's other jobs must not use up what it needs: its victims would have gone for nothing."""
    limits = {1: Limits(scope="user", name="alice", gpus=2)}
    winner, other = job(5, gpus=2, priority=2), job(6)
    plan = make_plan(snapshot(winner, other, running=stopping(5), user_limits=limits))
    assert placed(plan) == {}
    assert codes(plan, 6)[0] == "QUOTA_GPUS"


def test_a_movable_run_goes_elsewhere_so_that_a_large_job_can_start() -> None:
    mover = run(1, "a", [0], movable=True, ask=job(900))
    nodes = (node("a"), node("b", gpus=2))
    plan = make_plan(snapshot(job(1, gpus=4), nodes=nodes, running=[mover], rules=Rules(defragment=True)))
    assert plan.moves == (Move(run=1, job=1),)
    assert plan.reasons[1][0]["code"] == "MAKING_WAY"
    assert make_plan(snapshot(job(1, gpus=4), nodes=nodes, running=[mover])).moves == ()


def test_nothing_is_moved_that_fits_nowhere_else_or_while_something_is_on_its_way() -> None:
    nodes = (node("a"), node("b", gpus=1, cards=(gpu("b", 0, model=L4),)))
    rules = Rules(defragment=True)
    picky = run(1, "a", [0], movable=True, ask=job(900, gpu_model="NVIDIA A100"))
    assert make_plan(snapshot(job(1, gpus=4), nodes=nodes, running=[picky], rules=rules)).moves == ()
    easy = replace(picky, ask=job(900))
    assert make_plan(snapshot(job(1, gpus=4), nodes=nodes, running=[easy], rules=rules)).moves != ()
    leaving = run(2, "b", [0], stopping=True, makes_way_for=7)
    plan = make_plan(snapshot(job(1, gpus=4), job(7), nodes=nodes, running=[easy, leaving], rules=rules))
    assert plan.moves == ()


def test_played_out_a_guarantee_is_met_within_the_protected_time_and_without_a_second_set_of_victims() -> None:
    cluster = Cluster(nodes=(node("a"),), team_limits=team(VISION, guaranteed_gpus=2), rules=Rules(protected_for=300))
    for number in range(10, 20):
        cluster.submit(job(number, team=GUESTS, limit_seconds=90 * HOUR))
    cluster.step()
    cluster.submit(job(1, gpus=2, team=VISION))
    victims: list[int] = []
    for _ in range(20):
        victims += stopped(cluster.step())
        cluster.pass_time(60)
    assert cluster.started[1] - NOW <= timedelta(seconds=300 + 60)
    assert len(victims) == 2
    assert len(cluster.runs) == 3


# --- what is protected still ---

YOUNG, OLDER = NOW - timedelta(minutes=3, seconds=20), NOW - timedelta(minutes=7, seconds=20)


def protecting(plan: Plan, pk: int) -> list[Reason]:
    return [reason for reason in plan.reasons[pk] if reason["code"] == "PROTECTED"]


def test_the_first_run_to_lose_its_protection_is_named_with_the_time_that_it_has_until() -> None:
    runs = [run(1, cards=[0, 1], preemptible=True, since=YOUNG), run(2, cards=[2, 3], preemptible=True, since=OLDER)]
    picture = snapshot(job(1, priority=3), running=runs, rules=Rules(preempt_lower=True, protected_for=600))
    said = {str(protecting(make_plan(replace(picture, now=NOW + timedelta(seconds=s))), 1)) for s in range(0, 150, 13)}
    assert said == {str([{"code": "PROTECTED", "job": 1002, "until": (NOW + timedelta(minutes=3)).isoformat()}])}
    later = make_plan(replace(picture, now=NOW + timedelta(minutes=3)))
    assert stopped(later) == {2: 1}
    assert not protecting(later, 1)


def test_where_several_have_to_go_the_last_protection_counts() -> None:
    runs = [run(1, cards=[0, 1], preemptible=True, since=YOUNG), run(2, cards=[2, 3], preemptible=True, since=OLDER)]
    picture = snapshot(job(1, gpus=4, priority=3), running=runs, rules=Rules(preempt_lower=True))
    (reason,) = protecting(make_plan(picture), 1)
    assert (reason["job"], reason["until"]) == (1001, (NOW + timedelta(minutes=7)).isoformat())


def test_a_guarantee_names_borrowed_runs_that_are_protected_still() -> None:
    runs = [run(1, cards=[0, 1, 2, 3], since=OLDER)]
    plan = make_plan(snapshot(job(1), running=runs, team_limits=team(1, guaranteed_gpus=1)))
    assert [reason["job"] for reason in protecting(plan, 1)] == [1001]


@pytest.mark.parametrize(
    ("rules", "fields", "priority"),
    [
        (Rules(), {"preemptible": True}, 3),
        (Rules(preempt_lower=True), {"preemptible": False}, 3),
        (Rules(preempt_lower=True), {"preemptible": True}, 1),
        (Rules(preempt_lower=True), {"preemptible": True, "stopping": True}, 3),
    ],
)
def test_no_protection_is_named_where_nothing_would_be_stopped(
    rules: Rules, fields: dict[str, Any], priority: int
) -> None:
    runs = [run(1, cards=[0, 1, 2, 3], since=YOUNG, **fields)]
    assert not protecting(make_plan(snapshot(job(1, priority=priority), running=runs, rules=rules)), 1)
