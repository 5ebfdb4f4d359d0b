"""Placing: which node and which of its GPUs, all or nothing, and how little of what stays free is lost to others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import openb
from jobs.policy import Gpu, Node, Waiting, place, plan
from jobs.policy.alike import could_ever_fit
from jobs.policy.demand import Demand
from jobs.policy.fleet import Fleet
from jobs.policy.ledger import Ledger, charge, least, slots_of, suits
from jobs.policy.neighbours import closest
from jobs.policy.outlook import Outlook
from jobs.policy.rooms import room_of
from jobs.policy.view import WHOLE, Running
from tests.rigs.pictures import A100, L4, gpu, job, node, run

MIG = "1g.10gb"


def cards(name: str, *rows: dict[str, Any]) -> tuple[Gpu, ...]:
    return tuple(gpu(name, index, **row) for index, row in enumerate(rows))


def start(fleet: Fleet, item: Waiting) -> tuple[str, list[int]] | None:
    """Where the job is placed: the node and the places of its GPUs."""
    ledger = place.choose(item, fleet)
    return None if ledger is None else (ledger.node.name, sorted(g.index for g in fleet.take(ledger, item)))


def test_the_benchmark_places_by_the_function_that_plans_are_made_with() -> None:
    assert vars(openb)["place"] is vars(plan)["place"] is place


@pytest.mark.parametrize(
    ("milli", "slots", "taken"),
    [(500, 4, 2), (501, 4, 3), (1, 4, 1), (250, 4, 1), (1000, 4, 4), (300, 1, 1), (810, 1000, 810)],
)
def test_a_share_is_rounded_up_to_slots_and_takes_a_whole_gpu_that_has_but_one(
    milli: int, slots: int, taken: int
) -> None:
    assert slots_of(job(1, gpu_milli=milli), gpu("a", 0, slots=slots)) == taken


@pytest.mark.parametrize(
    ("milli", "slots", "charged"),
    [(250, 4, 250), (300, 4, 500), (1, 4, 250), (600, 2, 1000), (300, 3, 333), (460, 1000, 460), (1000, 4, 1000)],
)
def test_a_share_is_charged_for_the_slots_that_it_takes(milli: int, slots: int, charged: int) -> None:
    assert charge(job(1, gpu_milli=milli), gpu("a", 0, slots=slots)) == charged


def test_a_share_goes_to_no_gpu_that_is_not_cut() -> None:
    fleet = Fleet([node(cards=cards("a", {}, {"slots": 4}))])
    assert [start(fleet, job(n, gpu_milli=500)) for n in (1, 2, 3)] == [("a", [1]), ("a", [1]), None]
    assert not could_ever_fit(job(1, gpu_milli=10), Ledger(node(cards=cards("a", {}))))


@pytest.mark.parametrize("apart", [False, True])
def test_shares_fill_the_gpu_that_is_cut_for_them_and_whole_jobs_leave_it(apart: bool) -> None:
    """On one host, or each GPU on its own."""
    rows: list[dict[str, Any]] = [{"slots": 4}, {}, {}]
    if apart:
        fleet = Fleet([node(f"n{n}", cards=(gpu(f"n{n}", n, **row),)) for n, row in enumerate(rows)])
    else:
        fleet = Fleet([node(cards=cards("a", *rows))])
    places = [start(fleet, job(n, gpu_milli=milli)) for n, milli in enumerate((1000, 500, 250, 250, 1000))]
    assert [found and found[1] for found in places] == [[1], [0], [0], [0], [2]]


def test_a_share_goes_to_the_fullest_gpu_by_its_part_that_is_free() -> None:
    fleet = Fleet([node(cards=cards("a", {"slots": 10, "used_slots": 5}, {"slots": 4, "used_slots": 1}))])
    assert start(fleet, job(1, gpu_milli=250)) == ("a", [0]), "of ten slots five are less than three of four"


def test_whole_jobs_take_a_cut_gpu_last() -> None:
    fleet = Fleet([node("a", cards=cards("a", {"slots": 2}, {})), node("b", cards=cards("b", {}, {}))])
    assert start(fleet, job(1, gpus=2)) == ("b", [0, 1])
    assert start(fleet, job(2)) == ("a", [1])
    assert start(fleet, job(3)) == ("a", [0])
    fleet = Fleet([node(cards=cards("a", {"slots": 2}, {}, {"slots": 2}))])
    assert start(fleet, job(1, gpus=2)) == ("a", [0, 1])


def test_several_gpus_are_whole_ones_whatever_the_share_says() -> None:
    fleet = Fleet([node(cards=cards("a", {"slots": 4, "used_slots": 1}, {"slots": 4}, {"slots": 4}))])
    assert start(fleet, job(1, gpus=2, gpu_milli=250)) == ("a", [1, 2])


def test_a_share_goes_to_the_fullest_gpu_that_has_room() -> None:
    fleet = Fleet([node(cards=cards("a", {"slots": 4}, {"slots": 4, "used_slots": 3}, {"slots": 4, "used_slots": 1}))])
    assert [start(fleet, job(n, gpu_milli=500)) for n in (1, 2, 3)] == [("a", [2]), ("a", [0]), ("a", [0])]
    assert start(fleet, job(4, gpu_milli=500)) is None
    assert start(fleet, job(5, gpu_milli=250)) == ("a", [1])


def test_mig_instances_go_to_those_who_name_their_profile_and_whole_gpus_to_the_others() -> None:
    host = node(cards=cards("a", {"profile": MIG}, {}, {"profile": "3g.40gb"}))
    fleet = Fleet([host])
    assert start(fleet, job(1, gpu_profile=MIG)) == ("a", [0])
    assert start(fleet, job(2, gpu_profile=MIG)) is None
    assert start(fleet, job(3)) == ("a", [1])
    assert start(fleet, job(4)) is None


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"gpu_model": L4}, ("b", [0])),
        ({"gpu_model": f"{L4}|{A100}", "gpus": 2}, ("a", [0, 1])),
        ({"gpu_model": "NVIDIA H100"}, None),
        ({"gpu_memory_mib": 30_000}, ("a", [0])),
        ({"labels": frozenset({"disk=nvme"})}, ("b", [0])),
        ({"labels": frozenset({"disk=nvme", "zone=1"})}, None),
        ({"avoid": frozenset({"GPU-b-0"})}, ("a", [0])),
        ({"avoid": frozenset({"GPU-a-0"}), "gpu_model": A100}, ("a", [1])),
        ({"avoid": frozenset({"GPU-a-0"}), "gpu_model": A100, "gpus": 2}, None),
        ({"millicpus": 33_000}, None),
        ({"memory_mib": 131_073}, None),
        ({"gpus": 0, "millicpus": 32_000}, ("b", [])),
    ],
)
def test_what_is_asked_for_is_what_is_given(asked: dict[str, Any], where: tuple[str, list[int]] | None) -> None:
    small = node("b", cards=cards("b", {"model": L4, "memory_mib": 24_576}), labels=frozenset({"disk=nvme"}))
    assert start(Fleet([node("a", gpus=2), small]), job(1, **asked)) == where


def test_unknown_memory_suits_only_who_asks_for_none() -> None:
    fleet = Fleet([node(cards=cards("a", {"memory_mib": None}))])
    assert start(fleet, job(1, gpu_memory_mib=1)) is None
    assert start(fleet, job(2)) == ("a", [0])


def test_an_elastic_job_takes_what_is_there_between_its_bounds() -> None:
    hosts = [node("a", gpus=3), node("b", gpus=5), node("c", gpus=1)]
    fleet = Fleet(hosts)
    assert start(fleet, job(1, gpus=8, least_gpus=2)) == ("b", [0, 1, 2, 3, 4])
    assert start(fleet, job(2, gpus=2, least_gpus=1)) == ("a", [0, 1])
    assert start(fleet, job(3, gpus=4, least_gpus=2)) is None
    assert start(fleet, job(4, gpus=4, least_gpus=1)) is not None


@pytest.mark.parametrize(
    ("islands", "numa", "count", "chosen"),
    [
        ([0, 1, 0, 1], None, 2, [0, 2]),  # joined by NVLink
        ([0, 0, 0, 1], None, 1, [3]),  # the large island stays whole
        ([0, 0, 0, 1, 1], None, 2, [3, 4]),  # the smallest island that has enough
        ([0, 0, 1, 1, 2], None, 3, [0, 1, 4]),  # as few islands as can be, and none broken into without need
        ([0, 0, 0, 0], [0, 1, 0, 1], 2, [0, 2]),  # within an island, one NUMA node
        (None, [1, 0, 1, 0], 2, [0, 2]),
        (None, None, 2, [0, 1]),  # nothing known: the first on the bus
    ],
)
def test_neighbours_are_taken_together(
    islands: list[int] | None, numa: list[int] | None, count: int, chosen: list[int]
) -> None:
    places = range(len(islands or numa or [0, 1, 2]))
    found = [gpu("a", n, island=islands and islands[n], numa=numa and numa[n]) for n in places]
    assert sorted(g.index for g in closest(found, count)) == chosen


def test_a_node_where_neighbours_are_free_goes_before_a_fuller_one() -> None:
    torn = node("torn", cards=cards("torn", {"island": 0}, {"island": 1}))
    whole = node("whole", cards=cards("whole", *({"island": n // 2} for n in range(4))))
    assert start(Fleet([torn, whole]), job(1, gpus=2)) == ("whole", [0, 1])
    assert start(Fleet([torn, whole]), job(1)) == ("torn", [0])


def test_teams_are_packed_or_spread() -> None:
    half = node("half", cards=cards("half", {"used_slots": 1}, {}, {}))
    hosts = [node("idle", gpus=3), half]
    fleet = Fleet(hosts, spread=frozenset({2}))
    assert start(fleet, job(1, team=1)) == ("half", [1])
    assert start(fleet, job(2, team=2)) == ("idle", [0])


def test_cpus_beside_gpus_are_left_to_jobs_that_need_the_gpus() -> None:
    """CPUs taken from beside free GPUs strand these as surely as a taken slot does."""
    usual = job(1, gpus=1, millicpus=8000)
    tight, ample = node("tight", gpus=4, millicpus=32_000), node("ample", gpus=4, millicpus=64_000)
    fleet = Fleet([tight, ample], demand=Demand([usual] * 20))
    assert start(fleet, job(2, gpus=0, millicpus=16_000)) == ("ample", [])


def test_a_whole_node_is_kept_whole_where_whole_nodes_are_asked_for() -> None:
    hosts = [node("idle", gpus=8, millicpus=96_000), node("part", gpus=8, millicpus=96_000, cards=cards(
        "part", *({"used_slots": int(n < 4)} for n in range(8))))]  # fmt: skip
    asked = [job(1, gpus=8), *(job(n) for n in range(2, 10))]
    fleet = Fleet(hosts, demand=Demand(asked))
    for number in range(10, 14):
        assert start(fleet, job(number)) == ("part", [number - 6])
    assert start(fleet, job(14, gpus=8)) == ("idle", [*range(8)])


def test_scarce_models_are_left_to_those_who_can_use_no_other() -> None:
    hosts = [node(f"rare{n}", gpus=2, cards=cards(f"rare{n}", {"model": L4}, {"model": L4})) for n in range(2)]
    hosts += [node(f"usual{n}", gpus=8) for n in range(4)]
    asked = [job(1)] * 20 + [job(2, gpu_model=L4)] * 8
    fleet = Fleet(hosts, demand=Demand(asked))
    assert all(str(start(fleet, job(n))).startswith("('usual") for n in range(3, 20))


def test_slots_are_paired_that_fill_a_gpu() -> None:
    hosts = [node("a", cards=cards("a", {"slots": 10, "used_slots": 6}, {"slots": 10, "used_slots": 5}))]
    fleet = Fleet(hosts, demand=Demand([job(1, gpu_milli=400), job(2, gpu_milli=500)]))
    assert start(fleet, job(3, gpu_milli=400)) == ("a", [0])
    assert start(fleet, job(4, gpu_milli=500)) == ("a", [1])


def test_what_nobody_can_use_is_worth_nothing() -> None:
    def worth(host: Node, *asked: Waiting) -> float:
        room = room_of(Ledger(host))
        return Outlook(Demand(asked), [(room, 1)]).worth(room)

    assert worth(node(gpus=4), job(1)) > 3
    assert worth(node(gpus=4), job(1, gpu_model=L4)) == 0
    assert worth(node(gpus=4, millicpus=2000), job(1, millicpus=4000)) == 0
    assert worth(node(gpus=1), job(1, gpus=2)) == 0
    assert worth(node(gpus=4)) == 0


def test_what_a_run_held_can_be_had_once_it_was_released() -> None:
    fleet = Fleet([node(gpus=2)])
    before = job(1, gpus=2)
    assert start(fleet, before) == ("a", [0, 1])
    assert not fleet.fits_anywhere(before)
    fleet.release(fleet.ledgers[0], run(1, "a", (0, 1)))
    assert start(fleet, job(2, gpus=2)) == ("a", [0, 1])


asks = st.builds(
    job, st.just(0), team=st.sampled_from([1, 2]), gpus=st.integers(0, 5),
    least_gpus=st.sampled_from([None, None, 1, 2]), gpu_milli=st.sampled_from([WHOLE, WHOLE, 100, 250, 470, 810]),
    gpu_model=st.sampled_from(["", "", A100, f"{A100}|{L4}"]), gpu_profile=st.sampled_from(["", "", "", MIG]),
    gpu_memory_mib=st.sampled_from([0, 0, 24_000, 50_000]),
    millicpus=st.integers(0, 20_000), memory_mib=st.integers(0, 70_000),
    labels=st.sampled_from([frozenset(), frozenset(), frozenset({"x=1"})]),
    avoid=st.sampled_from([frozenset(), frozenset(), frozenset({"GPU-n0-0", "GPU-n1-1"})]),
).map(lambda item: replace(item, least_gpus=None if item.gpus < 2 else item.least_gpus))  # fmt: skip
rows = st.fixed_dictionaries({
    "model": st.sampled_from([A100, L4]), "memory_mib": st.sampled_from([None, 24_576, 81_920]),
    "slots": st.sampled_from([1, 1, 4, 10]), "used_slots": st.sampled_from([0, 0, 0, 1, 4]),
    "profile": st.sampled_from(["", "", "", MIG]), "island": st.sampled_from([None, 0, 1]),
    "numa": st.sampled_from([None, 0, 1]),
    "unavailable": st.sampled_from([None, None, None, {"code": "GPU_UNSAMPLED"}]),
})  # fmt: skip
hosts = st.lists(
    st.tuples(
        st.lists(rows, max_size=6), st.integers(0, 32_000), st.booleans(),
        st.sampled_from([None, None, None, {"code": "NODES_SILENT", "nodes": []}]),
    ),
    max_size=5,
)  # fmt: skip


def build(found: list[Any]) -> list[Node]:
    return [
        node(f"n{number}", cards=cards(f"n{number}", *gpus) or (), used_millicpus=used, used_memory_mib=2 * used,
             labels=frozenset({"x=1", "y=2"} if labelled else ()), closed=closed)
        for number, (gpus, used, labelled, closed) in enumerate(found)
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(hosts, st.lists(asks, max_size=14), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_is_asked_placing_keeps_its_promises(
    found: list[Any], items: list[Waiting], told: bool, dice: Any
) -> None:
    """All or nothing, within bounds, of what was asked for, wherever it fits, and the same each time."""
    nodes = build(found)
    first, second = (Fleet(nodes, demand=Demand(items if told else ()), spread=frozenset({2})) for _ in range(2))
    held: list[tuple[Ledger, Running]] = []
    for number, item in enumerate(items, 1):
        item = replace(item, id=number)
        able = [ledger for ledger in first.ledgers if ledger.fits(item)]
        assert first.fits_anywhere(item) == bool(able)
        assert {ledger.node.name for ledger in first.fitting(item)} == {ledger.node.name for ledger in able}
        ledger, other = place.choose(item, first), place.choose(item, second)
        assert (ledger is None) == (not able)
        if ledger is None or other is None:
            assert ledger is other
            continue
        free = {g.uuid: left for g, left in zip(ledger.node.gpus, ledger.free, strict=True)}
        gpus = first.take(ledger, item)
        check(item, ledger, gpus, free)
        assert [g.uuid for g in gpus] == [g.uuid for g in second.take(other, item)]
        ended = run(number, ledger.node.name, (), millicpus=item.millicpus, memory_mib=item.memory_mib)
        held.append((ledger, replace(ended, gpus=len(gpus), slots={g.uuid: slots_of(item, g) for g in gpus})))
        if dice.random() < 0.3:
            where, ended = held.pop(dice.randrange(len(held)))
            first.release(where, ended)
            second.release(next(same for same in second.ledgers if same.node is where.node), ended)


def check(item: Waiting, ledger: Ledger, gpus: Sequence[Gpu], free: dict[str, int]) -> None:
    assert len({g.uuid for g in gpus}) == len(gpus)
    assert least(item) <= len(gpus) <= item.gpus
    assert all(suits(g, item) and free[g.uuid] >= slots_of(item, g) for g in gpus)
    assert all(left >= 0 for left in ledger.free)
    assert ledger.millicpus >= 0
    assert ledger.memory_mib >= 0
    assert item.labels <= ledger.node.labels
    assert ledger.node.closed is None


def test_the_longer_the_trace_the_fuller_the_nodes_than_by_chance() -> None:
    """Shares of 0.81 and 0.19 and whole GPUs, more than there is room for: nearly all of it is used."""
    hosts = [node(f"n{n}", cards=cards(f"n{n}", *[{"slots": 100}] * 4), millicpus=64_000) for n in range(10)]
    fleet = Fleet(hosts, demand=Demand())
    given = 0
    for number in range(150):
        item = job(number, gpu_milli=(810, 190, 1000)[number % 3])
        fleet.demand.add(item)
        given += item.gpu_milli if start(fleet, item) else 0
    assert given / 40_000 > 0.97
