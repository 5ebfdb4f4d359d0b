"""GPU time is a sum of allocations, however it is read: rolled-up days, windows, half-lives."""

from datetime import UTC, date, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from hypothesis import given
from hypothesis import strategies as st

from gpus.models import Node
from jobs import gputime, usage
from jobs.models import Allocation, Cluster, Membership, Run, Team, UsageDay
from jobs.policy.weights import Weights
from jobs.states import RunState
from portal.models import User
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def node() -> Node:
    return factories.make_node("alpha", gpus=8)


def held(owner: User, node: Node, start: datetime, end: datetime | None, *, gpus: int = 1, milli: int = 1000) -> Run:
    """A run that held GPUs between these times; None: it holds them still."""
    job = factories.make_job(owner, gpus=gpus, gpu_milli=milli)
    run = factories.make_run(job, node)
    if end is not None:
        Run.objects.filter(pk=run.pk).update(state=RunState.ENDED)
        run.allocation.slots.update(released_at=end)
    Allocation.objects.filter(run=run).update(created_at=start, released_at=end)
    return run


def rows() -> dict[tuple[date, str], float]:
    return {(row.day, row.user.username): row.gpu_seconds for row in UsageDay.objects.select_related("user")}


def test_closed_days_are_rolled_up_and_open_ones_are_not(alice: User, bob: User, node: Node) -> None:
    held(alice, node, NOW - 2 * DAY, NOW - DAY, gpus=2)
    held(bob, node, NOW - DAY, None, milli=460)
    assert gputime.roll_up(NOW) == 3
    assert rows() == {
        (date(2026, 11, 28), "alice"): 2 * 12 * 3600,
        (date(2026, 11, 29), "alice"): 2 * 12 * 3600,
        (date(2026, 11, 29), "bob"): pytest.approx(0.46 * 12 * 3600),
    }
    assert gputime.roll_up(NOW) == 0
    assert gputime.roll_up(NOW + DAY) == 1, "bob's run went on"


def test_a_day_is_not_closed_right_after_midnight(alice: User, node: Node) -> None:
    midnight = datetime(2026, 11, 30, tzinfo=UTC)
    held(alice, node, midnight - HOUR, midnight)
    assert gputime.roll_up(midnight + timedelta(minutes=5)) == 0
    assert gputime.roll_up(midnight + gputime.SETTLED) == 1


def test_the_command_rebuilds_what_was_lost_or_damaged(alice: User, node: Node) -> None:
    held(alice, node, NOW - 9 * DAY, NOW - 3 * DAY)
    call_command("rollup", stdout=StringIO())
    before = rows()
    UsageDay.objects.filter(day=date(2026, 11, 24)).update(gpu_seconds=1)
    UsageDay.objects.filter(day=date(2026, 11, 23)).delete()
    said = StringIO()
    call_command("rollup", "--rebuild", stdout=said)
    assert rows() == before
    assert said.getvalue() == "7 sums written\n"


WINDOWS = (1, 7, 30)


def test_the_roll_up_agrees_with_the_allocations(alice: User, bob: User, node: Node) -> None:
    """Every sum is the same before and after, for every window and for the half-life."""
    for days, hours, gpus, milli in ((40, 700, 1, 1000), (9, 30, 2, 1000), (3, 7, 1, 250), (1, 20, 1, 460)):
        held(alice, node, NOW - days * DAY - HOUR / 7, NOW - days * DAY + hours * HOUR, gpus=gpus, milli=milli)
        held(bob, node, NOW - days * DAY, NOW - days * DAY + HOUR * hours / 3, gpus=gpus, milli=milli)

    def sums() -> list[object]:
        windows = [gputime.in_window("user", {alice.pk: days, bob.pk: 30}, NOW) for days in WINDOWS]
        leaving = [gputime.leaving("user", {alice.pk: days, bob.pk: 30}, NOW) for days in WINDOWS]
        for window, found in zip(windows, leaving, strict=True):
            assert {pk: sum(back for _at, back in found[pk]) for pk in window} == pytest.approx(window, abs=30)
        return [windows, leaving, gputime.in_window("team", {alice.teams.get().pk: 7}, NOW)]

    before, decayed = sums(), gputime.decayed(NOW, 7)
    assert gputime.roll_up(NOW) > 30
    assert sums() == before
    after = gputime.decayed(NOW, 7)
    assert after.keys() == decayed.keys()
    for who, seconds in decayed.items():
        assert after[who] == pytest.approx(seconds, rel=0.02), "a day counts as if it had been used evenly"


def test_a_window_begins_to_the_second_and_counts_what_is_promised(alice: User, node: Node) -> None:
    held(alice, node, NOW - 8 * DAY, NOW - 7 * DAY + HOUR)
    run = held(alice, node, NOW - HOUR, None, gpus=2)
    Run.objects.filter(pk=run.pk).update(deadline=NOW + 3 * HOUR)
    for roll in (False, True):
        if roll:
            gputime.roll_up(NOW)
        assert gputime.in_window("user", {alice.pk: 7}, NOW) == {alice.pk: 3600 + 2 * 4 * 3600}
        tomorrow = gputime.midnight((NOW + DAY).date())
        assert gputime.leaving("user", {alice.pk: 7}, NOW) == {
            alice.pk: ((tomorrow, 3600), (tomorrow + 7 * DAY, 2 * 3600))
        }


def test_old_use_counts_half_after_a_half_life(alice: User, node: Node) -> None:
    team = alice.teams.get().pk
    held(alice, node, NOW - 7 * DAY - HOUR, NOW - 7 * DAY + HOUR)
    assert gputime.decayed(NOW, 7) == {(team, alice.pk): pytest.approx(3600, rel=0.001)}
    assert gputime.decayed(NOW + 7 * DAY, 7) == {(team, alice.pk): pytest.approx(1800, rel=0.001)}
    assert gputime.decayed(NOW + 700 * DAY, 7) == {}


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0.1, 100))
def test_a_mean_weight_lies_between_those_of_its_ends(young: float, longer: float, half_life: float) -> None:
    weight = gputime.mean_weight(NOW - (young + longer) * HOUR, NOW - young * HOUR, NOW, half_life * DAY)
    newest, oldest = (0.5 ** (hours / 24 / half_life) for hours in (young, young + longer))
    assert oldest * 0.999 <= weight <= newest * 1.001


def test_who_left_the_team_has_no_share_but_the_team_has_the_use(alice: User, bob: User, node: Node) -> None:
    team = alice.teams.get()
    Membership.objects.filter(user=bob).update(shares=3)
    held(alice, node, NOW - HOUR, NOW)
    Membership.objects.filter(user=alice).delete()
    teams, members = usage.shares(Team.objects.all(), NOW, 7)
    assert teams[team.pk].used == members[team.pk, alice.pk].used == pytest.approx(3600, rel=0.01)
    assert (members[team.pk, alice.pk].shares, members[team.pk, bob.pk].shares) == (0, 3)


def test_weights_of_models_and_cpus_count_in_shares_and_nowhere_else(alice: User, bob: User, node: Node) -> None:
    """Of GPUs, CPUs and memory what counts most; closed days keep what they counted when they were rolled up."""
    node.gpus.filter(index=0).update(model="NVIDIA L4")
    held(alice, node, NOW - 2 * DAY, NOW)
    team = Team.objects.get(name="vision").pk
    idle = factories.make_run(factories.make_job(bob, gpus=0, millicpus=16_000), node)
    Allocation.objects.filter(run=idle).update(created_at=NOW - 2 * DAY, released_at=NOW)
    weights = Weights(models={"NVIDIA L4": 0.5}, cpu=0.0625)
    plain, weighed = gputime.decayed(NOW, 700), gputime.decayed(NOW, 700, weights)
    assert (set(plain), weighed[team, alice.pk]) == ({(team, alice.pk)}, pytest.approx(plain[team, alice.pk] / 2))
    assert weighed[team, bob.pk] == pytest.approx(plain[team, alice.pk]), "its 16 CPUs count as one GPU"
    Cluster.get()
    Cluster.objects.update(gpu_weights=dict(weights.models), cpu_weight=weights.cpu)
    gputime.roll_up(NOW)
    assert gputime.decayed(NOW, 700, weights) == pytest.approx(weighed, rel=0.001)
    assert gputime.in_window("user", {alice.pk: 30, bob.pk: 30}, NOW) == {alice.pk: 48 * 3600, bob.pk: 0}
