"""Whatever the picture and whatever happens, the plan keeps its promises."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jobs.policy import Node, Rules, Running, Waiting, make_plan
from jobs.quotas import Limits
from tests.rigs.pictures import A100, HOUR, L4, NOW, Cluster, check, gpu, job, node, run, snapshot

shapes = st.builds(
    job,
    st.just(0),
    user=st.integers(1, 3),
    team=st.integers(1, 2),
    priority=st.integers(0, 3),
    gpus=st.integers(0, 5),
    gpu_model=st.sampled_from(["", "", A100, L4, f"{A100}|{L4}"]),
    gpu_memory_mib=st.sampled_from([0, 0, 24_000, 50_000]),
    millicpus=st.one_of(st.integers(100, 4000), st.integers(100, 40_000)),
    memory_mib=st.one_of(st.integers(16, 8192), st.integers(16, 140_000)),
    limit_seconds=st.sampled_from([None, 600, HOUR, 4 * HOUR]),
    labels=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset({"disk=nvme"})]),
    blocked_since=st.sampled_from([None, NOW - timedelta(hours=1)]),
    held_by=st.sampled_from([(), (), (), ("user",)]),
    pinned=st.sampled_from([False, False, False, True]),
)
cards = st.tuples(
    st.sampled_from([A100, L4]),
    st.sampled_from([1, 1, 4]),
    st.sampled_from([None, None, None, {"code": "GPU_UNSAMPLED"}]),
)
holders = st.tuples(
    st.integers(0, 3), st.integers(1, 3), st.sampled_from([None, 0.2, 1.0, 5.0]), st.booleans(), st.booleans(),
    st.sampled_from([1, 300, 7200]), st.integers(0, 2),
)  # fmt: skip
limits = st.builds(
    dict, gpus=st.sampled_from([None, None, 4, 9]), running_jobs=st.sampled_from([None, None, 2]),
    gpus_by_model=st.sampled_from([{}, {}, {A100: 2}, {A100: 1, L4: 3}]),
)  # fmt: skip


def share(item: Waiting) -> Waiting:
    """Most one-GPU jobs take shares, also such that are charged a whole GPU; some others are elastic."""
    if item.gpus == 1:
        return replace(item, gpu_milli=(1000, 250, 800)[item.millicpus % 3])
    return replace(item, least_gpus=1) if item.gpus > 1 and item.millicpus % 3 == 0 else item


def build(number: int, rows: list[tuple[str, int, Any]], labelled: bool) -> Node:
    name = f"n{number}"
    found = tuple(gpu(name, i, model=m, slots=s, unavailable=u) for i, (m, s, u) in enumerate(rows))
    labels = frozenset({"disk=nvme"}) if labelled else frozenset()
    return node(name, gpus=0, cards=found or None, labels=labels)


def runs_on(hosts: tuple[Node, ...], rows: list[tuple[int, int, float | None, bool, bool, int, int]]) -> list[Running]:
    """Runs on whole GPUs that no other run holds."""
    free = {card.uuid: (host.name, card) for host in hosts for card in host.gpus}
    found: list[Running] = []
    for number, (place, team, hours, preemptible, stopping, age, priority) in enumerate(rows, 1):
        mine = [card for host, card in free.values() if host == f"n{place}"][: 1 + number % 2]
        if not mine:
            continue
        for card in mine:
            del free[card.uuid]
        found.append(replace(
            run(number, f"n{place}", hours=hours, team=team, user=team, priority=priority, preemptible=preemptible,
                stopping=stopping, since=NOW - timedelta(seconds=age)),
            gpus=len(mine), slots={card.uuid: card.slots for card in mine},
        ))  # fmt: skip
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(shapes, min_size=1, max_size=12),
    st.lists(st.tuples(st.lists(cards, min_size=1, max_size=6), st.booleans()), min_size=1, max_size=4),
    st.lists(holders, min_size=2, max_size=12),
    st.tuples(limits, limits, st.sampled_from([None, 2, 4])),
    st.booleans(),
)
def test_whatever_the_picture_the_plan_keeps_its_promises(
    jobs: list[Waiting], hosts: list[tuple[list[tuple[str, int, Any]], bool]], rows: list[Any],
    quotas: tuple[dict[str, Any], dict[str, Any], int | None], lower: bool,
) -> None:  # fmt: skip
    """No GPU twice, none that is taken or unavailable, no host overfull, no quota passed, a reason for all the rest."""
    waiting = [replace(share(item), id=number) for number, item in enumerate(jobs, 1)]
    nodes = tuple(build(number, *host) for number, host in enumerate(hosts))
    of_user, of_team, guaranteed = quotas
    picture = snapshot(
        *waiting, nodes=nodes or (node(gpus=0),), running=runs_on(nodes, rows),
        user_limits={user: Limits(scope="user", name=str(user), **of_user) for user in (1, 2, 3)},
        team_limits={1: Limits(scope="team", name="1", guaranteed_gpus=guaranteed, **of_team)},
        rules=Rules(preempt_lower=lower),
    )  # fmt: skip
    plan = make_plan(picture)
    assert plan == make_plan(picture), "the same picture gives the same plan"
    check(picture, plan)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=2, max_size=10),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([None, 1, 5, 30, 500]), st.booleans()), min_size=1, max_size=30
    ),
    st.integers(2, 4),
)
def test_the_first_blocked_job_starts_by_the_date_it_was_first_told(
    there: list[tuple[int, int]], stream: list[tuple[int, int | None, bool]], gpus: int
) -> None:
    """cBio/cbio-cluster#21: whatever runs, whatever comes behind it minute by minute, and whatever ends early."""
    cluster = Cluster(nodes=(node("a"), node("b")))
    for number, (count, minutes) in enumerate(there, 2):
        cluster.submit(job(number, gpus=count, limit_seconds=minutes * 60))
    cluster.step()
    for pk in list(cluster.waiting):
        del cluster.waiting[pk]
    cluster.submit(job(1, gpus=gpus, limit_seconds=HOUR))
    told, minute = None, 0
    while 1 not in cluster.started:
        count, minutes, ends = stream[minute % len(stream)]
        cluster.submit(job(100 + minute, gpus=count, limit_seconds=minutes and minutes * 60))
        dates = [r.at for r in cluster.step().reservations if r.job == 1]
        told = told or next(iter(dates), None)
        assert 1 in cluster.started or told is not None
        assert 1 in cluster.started or (told is not None and cluster.now < told)
        if ends and cluster.runs:
            cluster.end(min(cluster.runs))
        cluster.pass_time(60)
        minute += 1


class Days(RuleBasedStateMachine):
    """Jobs come, run, end, are stopped and moved for others; `Cluster.step` checks each plan."""

    @initialize(lower=st.booleans(), guaranteed=st.sampled_from([None, 3]), quota=st.sampled_from([None, 4]))
    def begin(self, lower: bool, guaranteed: int | None, quota: int | None) -> None:
        self.cluster = Cluster(
            nodes=(node("a"), node("b", cards=tuple(gpu("b", i, slots=2) for i in range(2)))),
            rules=Rules(preempt_lower=lower, defragment=True, protected_for=60),
            user_limits={1: Limits(scope="user", name="alice", gpus=quota)},
            team_limits={2: Limits(scope="team", name="speech", guaranteed_gpus=guaranteed)},
        )
        self.last = 0

    @rule(
        gpus=st.lists(st.integers(0, 4), min_size=1, max_size=5), team=st.integers(1, 2), user=st.integers(1, 3),
        priority=st.integers(0, 3), limit=st.sampled_from([None, 120, 900, 90_000]),
        milli=st.sampled_from([1000, 1000, 500, 600]), elastic=st.booleans(),
    )  # fmt: skip
    def submit(self, gpus: list[int], milli: int, limit: int | None, elastic: bool, **who: int) -> None:
        for count in gpus:
            self.last += 1
            self.cluster.submit(job(
                self.last, gpus=count, gpu_milli=milli if count == 1 else 1000, limit_seconds=limit,
                least_gpus=1 if elastic and count > 1 else None, **who,
            ))  # fmt: skip
        self.cluster.step()

    @rule(seconds=st.sampled_from([1, 30, 120, 700]))
    def wait(self, seconds: int) -> None:
        self.cluster.pass_time(seconds)
        self.cluster.step()

    @precondition(lambda self: self.cluster.runs)
    @rule(which=st.integers(0, 10))
    def end(self, which: int) -> None:
        self.cluster.end(sorted(self.cluster.runs)[which % len(self.cluster.runs)])

    @precondition(lambda self: self.cluster.waiting)
    @rule(which=st.integers(0, 10))
    def hold_or_release(self, which: int) -> None:
        pk = sorted(self.cluster.waiting)[which % len(self.cluster.waiting)]
        item = self.cluster.waiting[pk]
        self.cluster.waiting[pk] = replace(item, held_by=() if item.held_by else ("user",), blocked_since=None)

    @invariant()
    def no_slot_is_held_twice(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for host in self.cluster.snapshot().nodes:
            assert all(card.used_slots <= card.slots for card in host.gpus)
            assert host.used_millicpus <= host.millicpus


TestDays = Days.TestCase
TestDays.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
