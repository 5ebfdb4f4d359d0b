"""Expected starts by playing the next days some times over."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobs.policy import Running, Share, Snapshot, Waiting, make_plan
from jobs.policy.rehearse import HORIZON, rehearse, starts
from jobs.policy.stage import DAY, PLAYS
from jobs.quotas import Limits
from tests.rigs.pictures import HOUR, NOW, job, node, run, snapshot

ONE = (node(gpus=1),)
AN_HOUR = timedelta(hours=1)


def known(number: int, cards: list[int], early: float, late: float, **fields: Any) -> Running:
    """A run of which is known, in hours, when such runs end."""
    likely = NOW + timedelta(hours=early), NOW + timedelta(hours=late)
    return run(number, cards=cards, hours=9, likely=likely, **fields)


def sure(number: int, cards: list[int], hours: float, **fields: Any) -> Running:
    return known(number, cards, hours, hours, **fields)


def takes(pk: int, hours: float, **fields: Any) -> Waiting:
    return job(pk, **{"likely_seconds": (hours * HOUR, hours * HOUR), "limit_seconds": 9 * HOUR, **fields})


def played(picture: Snapshot, pk: int, recent: Sequence[Waiting] = ()) -> list[float]:
    """In how many hours it starts in the plays; empty where that is not told."""
    plan = make_plan(picture)
    return [round(at / HOUR, 2) for at in starts(picture, plan, [pk], recent).get(pk, [])]


def test_where_all_is_known_every_play_is_the_same() -> None:
    picture = snapshot(takes(1, 2), takes(2, 1), takes(3, 1), nodes=ONE, running=[sure(1, [0], 1)])
    assert [played(picture, pk) for pk in (1, 2, 3)] == [[1.0] * PLAYS, [3.0] * PLAYS, [4.0] * PLAYS]


def test_a_run_ends_around_when_its_likes_did_and_never_after_its_limit() -> None:
    picture = snapshot(takes(1, 1), nodes=ONE, running=[known(1, [0], 1, 6)])
    found = played(picture, 1)
    assert found[0] < 1 < found[PLAYS // 2] < 6 < found[-1] <= 9
    told = rehearse(picture, make_plan(picture), [1])[1]
    assert told.latest is not None
    assert 1 <= (told.earliest - NOW) / timedelta(hours=1) < (told.latest - NOW) / timedelta(hours=1) <= 6


def test_the_same_picture_tells_the_same_and_a_job_s_luck_is_its_own() -> None:
    picture = snapshot(takes(1, 1), nodes=ONE, running=[known(1, [0], 1, 6)])
    beside = snapshot(takes(1, 1), takes(2, 1), nodes=ONE, running=[known(1, [0], 1, 6)])
    assert played(picture, 1) == played(picture, 1) == played(beside, 1)


def test_a_short_job_slips_in_before_the_one_that_gpus_are_kept_for() -> None:
    runs = [sure(1, [0], 1), sure(2, [1], 8)]
    picture = snapshot(takes(1, 1, gpus=2), takes(2, 1, limit_seconds=2 * HOUR), takes(3, 1), nodes=(node(gpus=2),),
                       running=runs)  # fmt: skip
    assert played(picture, 2) == [1.0] * PLAYS
    assert played(picture, 1) == [8.0] * PLAYS
    assert played(picture, 3) == [9.0] * PLAYS, "its limit is too long, however short it will be"


def test_jobs_like_those_of_yesterday_come_and_go_first_where_their_users_use_less() -> None:
    heavy = {1: Share(used=10.0**9), 2: Share()}
    picture = snapshot(takes(1, 1), nodes=ONE, running=[sure(1, [0], 2)], team_shares=heavy)
    begin = NOW - timedelta(seconds=DAY + HOUR)
    earlier = [
        takes(50, 3, team=2, user=2, queued_at=begin),
        takes(51, 3, team=2, user=2, queued_at=begin + 2 * AN_HOUR),
    ]
    assert played(picture, 1) == [2.0] * PLAYS
    assert played(picture, 1, earlier) == [5.0] * PLAYS
    lighter = [takes(51, 3, team=1, user=1, queued_at=begin), takes(52, 3, queued_at=begin + 2 * AN_HOUR)]
    assert played(picture, 1, lighter) == [2.0] * PLAYS


def test_less_than_a_day_of_arrivals_tells_nothing() -> None:
    picture = snapshot(takes(1, 1), nodes=ONE, running=[sure(1, [0], 2)])
    assert played(picture, 1, [takes(50, 3, priority=3, queued_at=NOW - 23 * AN_HOUR)]) == [2.0] * PLAYS


def test_quotas_of_gpus_and_running_jobs_hold_in_the_plays() -> None:
    for limit in (Limits(scope="user", name="alice", gpus=1), Limits(scope="user", name="alice", running_jobs=1)):
        limits = {1: limit}
        picture = snapshot(takes(1, 2), takes(2, 2), running=[sure(1, [0], 3, user=1)], user_limits=limits)
        assert [played(picture, pk) for pk in (1, 2)] == [[3.0] * PLAYS, [5.0] * PLAYS]


def test_labels_cpus_and_memory_count_for_jobs_without_gpus_too() -> None:
    hosts = (node("a", labels=frozenset({"disk=big"})), node("b"))
    runs = [run(1, "a", [], hours=4, millicpus=31_500, likely=(NOW + 4 * AN_HOUR,) * 2)]
    picture = snapshot(takes(1, 1, gpus=0, labels=frozenset({"disk=big"})), nodes=hosts, running=runs)
    assert played(picture, 1) == [4.0] * PLAYS


def test_a_start_time_is_waited_for() -> None:
    picture = snapshot(takes(1, 1, start_after=NOW + 5 * AN_HOUR), nodes=ONE, running=[sure(1, [0], 1)])
    assert played(picture, 1) == [5.0] * PLAYS


def test_what_is_held_undated_or_could_not_start_keeps_the_plan_s_range() -> None:
    jobs = [takes(1, 1, held_by=("user",)), takes(2, 1, gpus=9), takes(3, 1)]
    picture = snapshot(*jobs, nodes=ONE, running=[run(1, cards=[0], hours=None)])
    plan = make_plan(picture)
    assert rehearse(picture, plan, [1, 2, 3]) == plan.expected
    assert starts(picture, plan, [3]) == {}, "its GPU's run never ends"


def test_a_job_that_another_quota_holds_back_keeps_the_plan_s_range() -> None:
    limits = {1: Limits(scope="user", name="alice", millicpus=1000)}
    picture = snapshot(takes(1, 1), running=[sure(1, [0], 3, user=1)], user_limits=limits)
    plan = make_plan(picture)
    assert plan.reasons[1][0]["code"] == "QUOTA_CPUS"
    assert rehearse(picture, plan, [1]) == plan.expected, "plays know nothing of CPUs, and would start it at once"


def test_plays_leave_a_moved_job_its_place() -> None:
    moving = run(1, "a", [0], job=9, stopping=True, goes_on=True, likely=(NOW + 5 * AN_HOUR,) * 2, hours=9,
                 ask=job(9, avoid=frozenset({"GPU-a-0"})))  # fmt: skip
    hosts = (node("a", gpus=1), node("b", gpus=1, labels=frozenset({"disk=big"})))
    picture = snapshot(takes(1, 1, labels=frozenset({"disk=big"})), nodes=hosts, running=[moving])
    assert played(picture, 1) == [5.0] * PLAYS


def test_a_play_that_sees_no_start_counts_as_the_horizon() -> None:
    runs = [known(1, [0], 24, 24 * 30, ends_by=None)]
    found = starts(picture := snapshot(takes(1, 1), nodes=ONE, running=runs), make_plan(picture), [1]).get(1)
    assert found is None or found[-1] == HORIZON
