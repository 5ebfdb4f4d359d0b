"""The order of the queue as a function: classes, soft marks, the fair tree, turns, age; and what bounds a wait."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policy import Rules, Running, Share, Snapshot, Waiting
from jobs.policy.fairtree import Tree, tree_of
from jobs.policy.order import Queue, effective_class, in_order
from jobs.policy.weights import Weights
from jobs.quotas import Limits, Usage

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = 3600.0
ALICE, BOB, CHARLIE = 1, 2, 3
VISION, SPEECH = 10, 20


def job(pk: int, user: int = ALICE, team: int = VISION, **fields: Any) -> Waiting:
    defaults: dict[str, Any] = {
        "priority": 1, "queued_at": NOW - timedelta(minutes=60 - pk), "gpus": 1, "millicpus": 1000, "memory_mib": 1024,
        "limit_seconds": 3600,
    }  # fmt: skip
    return Waiting(id=pk, user=user, team=team, **{**defaults, **fields})


def snapshot(jobs: Iterable[Waiting], **fields: Any) -> Snapshot:
    defaults: dict[str, Any] = {"user_limits": {}, "team_limits": {}, "user_usage": {}, "team_usage": {}}
    return Snapshot(now=NOW, nodes=(), waiting=tuple(jobs), **{**defaults, **fields})


def ids(jobs: Iterable[Waiting]) -> list[int]:
    return [job.id for job in jobs]


def used(**hours: float) -> dict[str, Any]:
    """Usage in GPU-hours by "user", e.g. alice=5; alice and bob are in vision, charlie is in speech."""
    of = {"alice": (VISION, ALICE), "bob": (VISION, BOB), "charlie": (SPEECH, CHARLIE)}
    members = {who: Share(used=hours.get(name, 0) * HOUR) for name, who in of.items()}
    teams = {
        team: Share(used=sum(share.used for (t, _u), share in members.items() if t == team))
        for team in (VISION, SPEECH)
    }
    return {"team_shares": teams, "member_shares": members}


def test_the_light_user_goes_first_within_a_team() -> None:
    picture = snapshot([job(1, ALICE), job(2, BOB)], **used(alice=5, bob=1))
    assert ids(in_order(picture)) == [2, 1]


@pytest.mark.parametrize(
    ("weights", "order"),
    [(Weights(), [1, 2]), (Weights(models={"NVIDIA L4": 0.2}), [2, 1]), (Weights(cpu=0.5), [2, 1]),
     (Weights(models={"NVIDIA L4": 0.2}, memory=1.0), [1, 2])],
)  # fmt: skip
def test_what_runs_counts_by_its_weights(weights: Weights, order: list[int]) -> None:
    """Alice runs a job of 4 CPUs on an A100 for an hour, and bob one on an L4 with 64 GiB for an hour and a half."""
    runs = [
        running(ALICE, millicpus=4000, model="NVIDIA A100"),
        running(BOB, ends_by=NOW + timedelta(hours=1.5), memory_mib=65_536, model="NVIDIA L4"),
    ]
    picture = snapshot([job(1, ALICE), job(2, BOB)], running=tuple(runs), rules=Rules(weights=weights), **used())
    assert ids(in_order(picture)) == order


def test_the_light_team_goes_first_whatever_its_members_used() -> None:
    """Bob has used least of all, but his team has used more than its part."""
    jobs = [job(1, ALICE), job(2, BOB), job(3, CHARLIE, SPEECH)]
    assert ids(in_order(snapshot(jobs, **used(alice=9, bob=0, charlie=5)))) == [3, 2, 1]


def test_more_shares_bear_more_use() -> None:
    shares = used(alice=5, bob=1)
    shares["member_shares"][VISION, ALICE] = Share(shares=10, used=5 * HOUR)
    assert ids(in_order(snapshot([job(1, BOB), job(2, ALICE)], **shares))) == [2, 1]


def test_without_shares_a_member_goes_last_even_without_use() -> None:
    shares = used(alice=5, bob=0)
    shares["member_shares"][VISION, BOB] = Share(shares=0)
    assert ids(in_order(snapshot([job(1, BOB), job(2, ALICE)], **shares))) == [2, 1]


def test_equals_go_strictly_by_age_over_teams_too() -> None:
    """skypilot-org/skypilot#5493: jobs of the same priority started in random order."""
    jobs = [job(4, CHARLIE, SPEECH), job(3, BOB), job(1, ALICE), job(2, CHARLIE, SPEECH)]
    assert ids(in_order(snapshot(jobs, **used()))) == [1, 2, 3, 4]


def test_the_class_comes_before_fair_share_and_a_pin_before_all() -> None:
    jobs = [job(1, BOB), job(2, ALICE, priority=2), job(3, ALICE, priority=0, pinned=True)]
    assert ids(in_order(snapshot(jobs, **used(alice=100)))) == [3, 2, 1]


def test_who_is_beyond_a_soft_mark_waits_for_those_within_theirs() -> None:
    limits = {ALICE: Limits(scope="user", name="alice", gpu_seconds_soft=3600)}
    jobs = [job(1, ALICE), job(2, BOB), job(3, ALICE, priority=2)]
    for seconds, expected in ((3599, [3, 1, 2]), (3600, [3, 2, 1])):
        picture = snapshot(jobs, user_limits=limits, user_usage={ALICE: Usage(gpu_seconds=seconds)}, **used())
        assert ids(in_order(picture)) == expected


@pytest.mark.parametrize(
    ("waited", "rules", "expected", "why"),
    [
        (10, Rules(lift_after=24 * HOUR), 1, "not long enough"),
        (24, Rules(lift_after=24 * HOUR), 2, "once"),
        (25 * 24, Rules(lift_after=24 * HOUR), 26, "without a cap"),
        (99, Rules(lift_after=None), 1, "never"),
    ],
)
def test_waiting_lifts_a_class(waited: float, rules: Rules, expected: int, why: str) -> None:
    assert effective_class(job(1, queued_at=NOW - timedelta(hours=waited)), NOW, rules) == expected, why


def test_a_job_is_not_lifted_for_the_time_that_its_owner_held_it() -> None:
    held = job(1, queued_at=NOW - timedelta(days=9), released_at=NOW - timedelta(hours=25))
    assert effective_class(held, NOW, Rules(lift_after=24 * HOUR)) == 2


def test_a_job_that_may_not_start_yet_is_not_lifted_meanwhile() -> None:
    old = job(1, queued_at=NOW - timedelta(days=9), start_after=NOW - timedelta(hours=1))
    assert effective_class(old, NOW, Rules(lift_after=24 * HOUR)) == 1
    assert effective_class(replace(old, start_after=NOW + timedelta(days=9)), NOW, Rules(lift_after=24 * HOUR)) == 1


def test_each_start_is_charged_before_the_next_is_chosen() -> None:
    """What is free at once is shared out, though alice has used a little less."""
    jobs = [*(job(n, ALICE) for n in range(1, 5)), *(job(n, BOB) for n in range(5, 9))]
    picture = snapshot(jobs, **used(alice=1, bob=1.5))
    queue, seen = Queue(picture), []
    for found in queue:
        seen.append(found.id)
        queue.charge(found)
    assert seen == [1, 5, 2, 6, 3, 7, 4, 8]
    assert ids(in_order(picture)) == [1, 2, 3, 4, 5, 6, 7, 8], "nothing given away, nothing changed"


def running(user: int, **fields: Any) -> Running:
    defaults: dict[str, Any] = {
        "run": user, "job": 100 + user, "team": VISION, "priority": 1, "node": "a", "gpus": 1, "slots": {},
        "since": NOW, "millicpus": 0, "memory_mib": 0, "ends_by": NOW + timedelta(hours=1),
    }  # fmt: skip
    return Running(user=user, **{**defaults, **fields})


def test_the_order_does_not_jump_when_a_job_has_started() -> None:
    """A start is charged with what its run is charged with in the next picture."""
    jobs = [job(1, ALICE), job(2, ALICE), job(3, BOB)]
    queue = Queue(snapshot(jobs, **used()))
    queue.charge(next(queue))
    after = snapshot(jobs[1:], running=(running(ALICE),), **used())
    assert ids(queue) == ids(in_order(after)) == [3, 2]


def test_a_share_of_a_gpu_weighs_as_much_as_it_is() -> None:
    tree = tree_of(snapshot([], running=(running(ALICE, gpu_milli=460), running(BOB, gpus=2)), **used()))
    assert tree.load(VISION, ALICE)[1] == pytest.approx(0.46 * HOUR)
    assert tree.load(VISION, BOB)[1] == pytest.approx(2 * HOUR)


def test_standings_tell_due_and_part_and_equals_share_a_rank() -> None:
    tree = Tree({VISION: Share(shares=3, used=100.0), SPEECH: Share(used=300.0), 30: Share(), 40: Share()}, {})
    found = tree.teams()
    assert [found[team].rank for team in (30, 40, VISION, SPEECH)] == [1, 1, 3, 4]
    assert (found[VISION].due, found[VISION].part) == (0.5, 0.25)


# --- properties ---

jobs_drawn = st.lists(
    st.builds(
        dict, user=st.integers(1, 4), team=st.integers(1, 2), priority=st.integers(0, 3),
        age=st.integers(0, 200), gpus=st.integers(0, 4), pinned=st.booleans(),
    ),
    max_size=30,
)  # fmt: skip
usage_drawn = st.dictionaries(st.tuples(st.integers(1, 2), st.integers(1, 4)), st.floats(0, 1e6), max_size=8)


def drawn(rows: list[dict[str, Any]], usage: dict[tuple[int, int], float], **fields: Any) -> Snapshot:
    jobs = [
        job(pk, queued_at=NOW - timedelta(hours=row.pop("age")), **row)
        for pk, row in enumerate([dict(row) for row in rows], 1)
    ]
    teams = {team: Share(used=sum(s for (t, _u), s in usage.items() if t == team)) for team in (1, 2)}
    members = {who: Share(used=seconds) for who, seconds in usage.items()}
    return snapshot(jobs, team_shares=teams, member_shares=members, rules=Rules(lift_after=24 * HOUR), **fields)


@given(jobs_drawn, usage_drawn)
def test_every_job_comes_once_and_the_same_picture_gives_the_same_order(
    rows: list[dict[str, Any]], usage: dict[tuple[int, int], float]
) -> None:
    picture = drawn(rows, usage)
    order = ids(in_order(picture))
    assert sorted(order) == sorted(ids(picture.waiting))
    assert order == ids(in_order(replace(picture, waiting=picture.waiting[::-1])))


@given(jobs_drawn, usage_drawn, st.sets(st.integers(0, 29)))
def test_the_next_is_always_the_best_of_those_left(
    rows: list[dict[str, Any]], usage: dict[tuple[int, int], float], starts: set[int]
) -> None:
    """The lazy queue gives what sorting anew after each start would give."""
    picture = drawn(rows, usage)
    queue, run = Queue(picture), picture
    for step, found in enumerate(queue):
        assert found.id == in_order(run)[0].id
        left = tuple(job for job in run.waiting if job.id != found.id)
        live = run.running
        if step in starts:
            queue.charge(found)
            live = (*live, running(found.user, team=found.team, gpus=found.gpus, run=found.id))
        run = replace(run, waiting=left, running=live)


@given(st.integers(0, 3), st.integers(0, 3))
def test_no_stream_of_new_jobs_keeps_an_old_one_waiting_for_ever(low: int, high: int) -> None:
    """After a day for each class between them, the old job goes before whatever is new."""
    old = job(1, priority=low, queued_at=NOW - timedelta(days=max(high - low, 0) + 1))
    new = [job(n, BOB, priority=high, queued_at=NOW) for n in range(2, 20)]
    assert in_order(snapshot([*new, old], rules=Rules(lift_after=24 * HOUR), **used(alice=1e6)))[0].id == 1
