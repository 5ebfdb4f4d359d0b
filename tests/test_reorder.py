"""Pins, priorities and places: who may change them, what they change, and that nobody else waits longer for it."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import reorder, wording
from jobs.board import queue_order
from jobs.models import Cluster, Job, JobEvent, Quota
from jobs.states import JobState
from jobs.submit import Refused
from portal.models import User
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def line(owner: User, count: int, **fields: Any) -> list[Job]:
    """Jobs that wait, one a minute, the oldest first."""
    begin = timezone.now() - timedelta(hours=1)
    return [factories.make_job(owner, queued_at=begin + timedelta(minutes=n), **fields) for n in range(count)]


def event(job: Job) -> str:
    """The last line of the job's journal."""
    return wording.event_sentence(JobEvent.objects.filter(job=job).select_related("actor").latest("pk"))


def test_a_pin_puts_a_job_before_all_and_is_in_the_journal(alice: User, bob: User) -> None:
    admin = factories.make_admin()
    urgent, old, new = *line(alice, 1, priority=3), *line(bob, 2)
    assert reorder.pin(new, admin)
    assert not reorder.pin(new, admin), "a second press changes nothing"
    assert list(queue_order()) == [new.pk, urgent.pk, old.pk]
    assert event(new) == "Pinned: it goes before all others, by root_admin"
    assert reorder.unpin(new, admin)
    assert list(queue_order()) == [urgent.pk, old.pk, new.pk]
    assert event(new) == "No longer pinned, by root_admin"


def test_an_owner_changes_the_priority_up_to_the_ceiling_and_an_admin_beyond(alice: User) -> None:
    Quota.objects.create(user=alice, priority=2)
    (job,) = line(alice, 1)
    assert reorder.reprioritise(job, alice, 2)
    assert event(job) == "Priority changed from normal to high, by alice"
    with pytest.raises(Refused) as refused:
        reorder.reprioritise(job, alice, 3)
    (found,) = refused.value.refusals
    assert (found.code, found.asked, found.nearest) == ("HIGHEST_PRIORITY", 3, 2)
    assert job.priority == Job.objects.get().priority == 2
    assert reorder.reprioritise(job, factories.make_admin(), 3)
    assert Job.objects.get().priority == 3


def test_a_running_job_has_no_place_to_change(alice: User) -> None:
    job = factories.make_job(alice)
    factories.make_run(job, factories.make_node("alpha"))
    for verb in (reorder.pin, reorder.move_up, reorder.move_down):
        assert not verb(job, alice)
    assert not reorder.reprioritise(job, alice, 2)


def test_an_owner_moves_jobs_up_and_down_among_their_own_alone(alice: User, bob: User) -> None:
    begin = timezone.now() - timedelta(hours=1)
    a1, b, a2, a3 = (
        factories.make_job(owner, queued_at=begin + timedelta(minutes=n))
        for n, owner in enumerate((alice, bob, alice, alice))
    )
    assert reorder.move_up(a2, alice)
    assert list(queue_order()) == [a2.pk, b.pk, a1.pk, a3.pk], "bob's place is his"
    assert event(a2) == f"Moved before #{a1.pk}, by alice"
    assert not reorder.move_up(a2, alice)
    assert reorder.move_to(a3, alice, a2.pk)
    assert list(queue_order()) == [a3.pk, b.pk, a2.pk, a1.pk]
    assert reorder.move_down(a3, alice)
    assert event(a3) == f"Moved behind #{a2.pk}, by alice"
    assert list(queue_order()) == [a2.pk, b.pk, a3.pk, a1.pk]
    assert not reorder.move_to(a3, alice, b.pk), "nobody else's place"


def test_jobs_of_the_same_moment_can_change_places_too(alice: User) -> None:
    now = timezone.now()
    one, two, three = (factories.make_job(alice, queued_at=now) for _ in range(3))
    assert reorder.move_up(three, alice)
    assert list(queue_order()) == [one.pk, three.pk, two.pk]


def test_other_priorities_are_other_lines(alice: User) -> None:
    low, normal = *line(alice, 1, priority=0), *line(alice, 1)
    assert not reorder.move_to(low, alice, normal.pk)
    held = [factories.make_job(alice, state=JobState.HELD, held_by_user=True) for _ in range(2)]
    assert not reorder.move_to(held[0], alice, normal.pk)
    assert reorder.move_up(held[1], alice), "held jobs have their places too, for later"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_moves_never_change_the_set_of_places(alice: User, moves: list[tuple[int, int]]) -> None:
    Job.objects.all().delete()
    jobs = line(alice, 6)
    places = sorted(Job.objects.values_list("queued_at", flat=True))
    wanted = [job.pk for job in jobs]
    for moved, to in moves:
        target = wanted[to]
        changed = reorder.move_to(jobs[moved], alice, target)
        assert changed == (target != jobs[moved].pk)
        wanted.insert(to, wanted.pop(wanted.index(jobs[moved].pk)))
        assert list(Job.objects.order_by("queued_at").values_list("pk", flat=True)) == wanted
        assert sorted(Job.objects.values_list("queued_at", flat=True)) == places


@pytest.mark.django_db(transaction=True)
def test_two_presses_at_once_lose_no_place(alice: User) -> None:
    """The second waits for the first one's rows, which PostgreSQL has sorted by then."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer at a time")
    Cluster.get()  # else the second waits for its row
    first, second = line(alice, 2)
    places = {first.queued_at, second.queued_at}
    with ThreadPoolExecutor() as pool:
        with transaction.atomic():
            assert reorder.move_up(second, alice)
            again = pool.submit(_press, second, alice)
            _until_it_waits()
        assert not again.result(timeout=60), "it is the first already"
    assert set(Job.objects.values_list("queued_at", flat=True)) == places


def _press(job: Job, owner: User) -> bool:
    try:
        return reorder.move_up(job, owner)
    finally:
        connection.close()


def _until_it_waits() -> None:
    deadline = time.monotonic() + 60
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(waiting)
            if cursor.fetchone()[0]:
                return
            time.sleep(0.05)
    raise AssertionError("the second press does not wait")
