"""Every waiting job has its reasons, with numbers, and what would help is true."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.policy import Node, Plan, Reason, Rules, Snapshot, Waiting, make_plan
from jobs.policy.ahead import Ahead, ahead
from jobs.policy.explain import impossible, is_final
from jobs.policy.helps import HELPS
from jobs.policy.ledger import Ledger
from jobs.policy.turns import whole
from jobs.quotas import Limits
from tests.rigs.pictures import A100, HOUR, L4, NOW, codes, gpu, job, node, placed, run, snapshot, team


def helps(plan: Plan, pk: int) -> list[Reason]:
    return [reason for reason in plan.reasons[pk] if reason["code"] in HELPS]


def changed(item: Waiting, reason: Reason) -> Waiting:
    """The job as the help says."""
    return {
        "FITS_WITH": lambda: replace(item, gpus=reason["gpus"], least_gpus=None),
        "FITS_WITHIN": lambda: replace(item, limit_seconds=reason["seconds"]),
        "FITS_ON": lambda: replace(item, gpu_model=reason["model"]),
        "FITS_WITHOUT": lambda: replace(item, labels=item.labels - set(reason["labels"])),
        "FITS_WITH_CPUS": lambda: replace(item, millicpus=reason["millicpus"]),
        "FITS_WITH_MEMORY": lambda: replace(item, memory_mib=reason["memory_mib"]),
    }[reason["code"]]()


def starts_when_changed(picture: Snapshot, pk: int, reason: Reason) -> bool:
    """Whether the job starts in the same picture, changed as the help says."""
    waiting = tuple(changed(item, reason) if item.id == pk else item for item in picture.waiting)
    return pk in placed(make_plan(replace(picture, waiting=waiting)))


BUSY = [run(n, cards=[n], hours=n + 1) for n in (0, 1, 2)]  # one of four GPUs is free
IN_THREE_HOURS = {"code": "FITS_WITHIN", "seconds": 3 * HOUR}
BEHIND = job(1, gpus=4, priority=3)  # for which the host is kept until 15 o'clock


@pytest.mark.parametrize(
    ("picture", "pk", "said"),
    [
        (snapshot(job(1, gpus=3), running=BUSY), 1, {"code": "FITS_WITH", "gpus": 1}),
        (snapshot(job(1, gpus=4, least_gpus=2), running=BUSY), 1, {"code": "FITS_WITH", "gpus": 1}),
        (snapshot(BEHIND, job(2, limit_seconds=9 * HOUR), running=BUSY), 2, IN_THREE_HOURS),
        (snapshot(BEHIND, job(2, limit_seconds=None), running=BUSY), 2, IN_THREE_HOURS),
        (snapshot(job(1, gpu_model=L4), nodes=(node(), node("b", cards=(gpu("b", 0, model=L4, used_slots=1),)))), 1,
         {"code": "FITS_ON", "model": A100}),
        (snapshot(job(1, labels=frozenset({"disk=nvme"})), nodes=(node(), node("b", labels=frozenset({"disk=nvme"}),
         cards=(gpu("b", 0, used_slots=1),)))), 1, {"code": "FITS_WITHOUT", "labels": ["disk=nvme"]}),
        (snapshot(job(1, millicpus=20_000), running=[run(1, cards=[], millicpus=20_000)]), 1,
         {"code": "FITS_WITH_CPUS", "millicpus": 12_000}),
        (snapshot(job(1, memory_mib=100_000), running=[run(1, cards=[], memory_mib=60_000)]), 1,
         {"code": "FITS_WITH_MEMORY", "memory_mib": 71_040}),
        (snapshot(job(1, gpus=2), user_limits={1: Limits(scope="user", name="alice", gpus=1)}), 1, None),
        (snapshot(job(1, gpus=3), running=BUSY, user_limits={1: Limits(scope="user", name="alice", gpus=3)}), 1,
         {"code": "FITS_WITH", "gpus": 1}),
    ],
)  # fmt: skip
def test_what_would_help_is_said_and_true(picture: Snapshot, pk: int, said: Reason | None) -> None:
    found = helps(make_plan(picture), pk)
    assert said is None or said in found
    for reason in found:
        assert starts_when_changed(picture, pk, reason), reason


@pytest.mark.parametrize(("hours", "offered"), [(9, True), (10, False), (None, True)])
def test_no_limit_is_offered_that_leaves_less_than_a_third_of_the_time(hours: int | None, offered: bool) -> None:
    late = job(2, limit_seconds=hours and hours * HOUR)
    assert (IN_THREE_HOURS in helps(make_plan(snapshot(BEHIND, late, running=BUSY)), 2)) is offered


def test_each_job_is_offered_the_limit_by_its_own_whatever_its_likes_are_offered() -> None:
    plan = make_plan(
        snapshot(BEHIND, *(job(n, limit_seconds=h * HOUR) for n, h in ((2, 10), (3, 9), (4, 10))), running=BUSY)
    )
    assert [IN_THREE_HOURS in helps(plan, pk) for pk in (2, 3, 4)] == [False, True, False]


def test_what_would_help_does_not_stand_alone() -> None:
    """The cause comes first, also where it is that nothing is free together."""
    plan = make_plan(snapshot(BEHIND, job(2, limit_seconds=9 * HOUR), running=BUSY))
    assert codes(plan, 2)[0] not in HELPS


def test_fewer_gpus_help_also_where_a_quota_is_in_the_way() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus=3)}
    picture = snapshot(job(1, gpus=2), running=[run(1, cards=[0, 1], user=1)], user_limits=limits)
    plan = make_plan(picture)
    assert codes(plan, 1) == ["QUOTA_GPUS", "FITS_WITH"]
    assert plan.reasons[1][1]["gpus"] == 1


def test_nothing_helps_a_job_on_hold_or_in_a_pause() -> None:
    held = make_plan(snapshot(job(1, gpus=3, held_by=("user",)), running=BUSY))
    assert codes(held, 1) == ["HELD_BY_USER", "BUSY_GPUS"]
    paused = make_plan(snapshot(job(1, gpus=3), running=BUSY, paused={"code": "PAUSED", "reason": ""}))
    assert codes(paused, 1) == ["PAUSED", "BUSY_GPUS"]


def test_what_helps_the_job_that_a_node_is_kept_for_is_not_said_of_its_like() -> None:
    first, like = job(1, gpus=3), job(2, gpus=3)
    plan = make_plan(snapshot(first, like, running=BUSY, rules=Rules(reserve_after=1e9)))
    assert helps(plan, 1) == [{"code": "FITS_WITH", "gpus": 1}]
    for reason in helps(plan, 2):
        assert starts_when_changed(snapshot(first, like, running=BUSY, rules=Rules(reserve_after=1e9)), 2, reason)


def test_reasons_tell_the_state_that_the_pass_ends_in() -> None:
    plan = make_plan(snapshot(job(1, gpus=3, priority=3), job(2, gpus=2), job(3)))
    assert placed(plan) == {1: "a", 3: "a"}
    assert plan.reasons[2][0] == {
        "code": "BUSY_GPUS", "asked": 2, "free": 0, "free_in_all": 0, "total": 4, "node": "a"
    }  # fmt: skip


def test_busy_names_the_node_nearest_to_fitting_and_what_is_free_in_all() -> None:
    nodes = (node("a", gpus=4), node("b", gpus=4), node("c", gpus=4, closed={"code": "NODES_SILENT", "nodes": ["c"]}))
    runs = [run(1, "a", [0, 1]), run(2, "b", [0])]
    plan = make_plan(snapshot(job(1, gpus=4), nodes=nodes, running=runs))
    busy, silent = (r for r in plan.reasons[1] if r["code"] in ("BUSY_GPUS", "NODES_SILENT"))
    assert busy == {"code": "BUSY_GPUS", "asked": 4, "free": 3, "free_in_all": 5, "total": 8, "node": "b"}
    assert silent == {"code": "NODES_SILENT", "nodes": ["c"]}


def test_a_quota_that_closes_some_models_is_told_beside_what_the_others_lack() -> None:
    cards = (gpu("a", 0), gpu("a", 1, model=L4))
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 0})}
    plan = make_plan(snapshot(job(1), nodes=(node(cards=cards),), running=[run(1, cards=[1])], user_limits=limits))
    assert codes(plan, 1) == ["QUOTA_MODEL", "BUSY_GPUS"]
    assert plan.reasons[1][1]["total"] == 1
    limits = {1: Limits(scope="user", name="alice", gpus_by_model={A100: 1})}
    host = node(cards=(*(gpu("a", n) for n in range(2)), gpu("a", 2, model=L4)))
    plan = make_plan(snapshot(job(1, gpus=2), nodes=(host,), user_limits=limits))
    assert codes(plan, 1)[0] == "QUOTA_MODEL", "that one L4 is too few is no matter of the hosts"


def test_a_share_is_told_from_whole_gpus() -> None:
    host = node(cards=(gpu("a", 0, slots=4, used_slots=3), gpu("a", 1, slots=4, used_slots=4)))
    plan = make_plan(snapshot(job(1, gpu_milli=500), job(2, gpu_milli=250), nodes=(host,)))
    assert placed(plan) == {2: "a"}
    assert plan.reasons[1][0]["code"] == "BUSY_GPUS"
    assert plan.reasons[1][0]["milli"] == 500


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (job(1, labels=frozenset({"disk=tape"})), "NO_LABELS"),
        (job(1, gpu_profile="1g.10gb"), "NO_GPU_PROFILE"),
        (job(1, gpu_model="NVIDIA H100|NVIDIA H200"), "NO_GPU_MODEL"),
        (job(1, gpus=8, least_gpus=6), "TOO_LARGE_GPUS"),
    ],
)
def test_what_no_host_has_is_final(item: Waiting, code: str) -> None:
    picture = snapshot(item)
    plan = make_plan(picture)
    assert [reason for reason in codes(plan, 1) if reason not in HELPS] == [code]
    assert is_final(plan.reasons[1][0])
    assert all(starts_when_changed(picture, 1, reason) for reason in helps(plan, 1))
    assert [r["code"] for r in impossible(item, [Ledger(node())])] == [code]


def test_an_elastic_job_that_could_start_smaller_is_not_too_large() -> None:
    assert impossible(job(1, gpus=8, least_gpus=2), [Ledger(node())]) == []


def test_many_sick_hosts_are_named_by_the_first_few() -> None:
    sick = {"code": "GPU_UNHEALTHY"}
    nodes = tuple(node(f"n{i:02}", cards=(gpu(f"n{i:02}", 0, unavailable=sick),)) for i in range(30))
    assert codes(make_plan(snapshot(job(1), nodes=nodes)), 1).count("GPU_UNHEALTHY") == 5


def test_reasons_stay_while_nothing_but_time_and_others_free_numbers_change() -> None:
    """They are stored, and written only when they differ: a start elsewhere must not touch thousands of rows."""
    jobs = [job(n) for n in range(1, 30)]
    before = snapshot(*jobs, running=[run(n, cards=[n], hours=n + 1) for n in range(4)])
    later = replace(before, now=NOW + timedelta(minutes=9), waiting=before.waiting[1:])
    first, second = make_plan(before), make_plan(later)
    assert all(first.reasons[pk] == second.reasons[pk] for pk in second.reasons)


def line(picture: Snapshot) -> tuple[list[Waiting], tuple[Node, ...]]:
    return whole(picture), picture.nodes


def test_ahead_are_those_who_could_take_the_same_gpus() -> None:
    nodes = (node(), node("b", cards=(gpu("b", 0, model=L4),)))
    jobs = [job(1), job(2, gpu_model=A100), job(3, gpu_model=L4), job(4, gpus=0), job(5, held_by=("user",)), job(6),
            job(7, gpus=0), job(8, gpu_model=L4)]  # fmt: skip
    picture = snapshot(*jobs, nodes=nodes)
    assert ahead(6, *line(picture)) == Ahead(count=3, jobs=(1, 2, 3))
    assert ahead(8, *line(picture)) == Ahead(count=3, jobs=(1, 3, 6))
    assert ahead(7, *line(picture)) == Ahead(count=1, jobs=(4,))
    assert ahead(1, *line(picture)) == Ahead(count=0, jobs=())


def test_the_order_shown_is_the_order_of_the_pass() -> None:
    """Guaranteed work before what borrows, pinned before both, and first of all who others make way for."""
    jobs = [job(1, priority=3, team=9), job(2, team=1), job(3, team=9, pinned=True), job(4, team=9),
            job(5, team=9, yields_to=4)]  # fmt: skip
    picture = snapshot(*jobs, nodes=(node(gpus=1),), team_limits=team(1, guaranteed_gpus=1))
    assert [item.id for item in whole(picture)] == [4, 3, 2, 1, 5]
    assert make_plan(replace(picture, nodes=(node(gpus=0),))).order == (4, 3, 2, 1, 5)
