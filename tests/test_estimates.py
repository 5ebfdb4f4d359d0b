"""Expected starts: how long like jobs ran, ranges corrected by past ones, what is stored, recorded and scored."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from gpus.models import Node
from jobs import control, dispatch, estimates, likely, wording
from jobs.extend import extend
from jobs.models import Estimate, Job, Run
from jobs.policy import Expected
from jobs.policy.calibrate import FEWEST, Calibration, Outcome, densest, shortest
from jobs.policy.past import Like, Past, extended
from jobs.states import OF_ITSELF, EndReason, JobState, RunState
from jobs.status import status
from portal.models import User
from tests import factories
from tests.rigs.api import Api

HOUR = timedelta(hours=1)

# --- how long like jobs ran ---


def past(*runs: tuple[Like, float]) -> Past:
    found = Past()
    for like, seconds in runs:
        found.add(like, seconds)
    return found


def test_the_nearest_circle_that_knows_enough_decides() -> None:
    train, other = Like(1, "torch", "train", 3600), Like(1, "torch", "eval", 3600)
    stranger = Like(2, "torch", "train", 3600)
    found = past(*[(train, 1000.0)] * 4, *[(other, 100.0)] * 20)
    assert found.seconds(train) == pytest.approx((1000.0, 1000.0))
    assert found.seconds(Like(1, "torch", "new", 3600)) == pytest.approx((100.0, 100.0))
    assert found.seconds(Like(1, "jax", "new", 3600)) == pytest.approx((100.0, 100.0))
    assert found.seconds(stranger) == pytest.approx((100.0, 100.0))  # everybody's
    assert Past().seconds(train) is None


def test_who_over_asks_by_a_factor_is_known_by_the_part_of_the_limit() -> None:
    runs = [(Like(1, "a", "b", hours * 3600), hours * 900.0) for hours in (1, 2, 4, 8)]
    low, high = past(*runs).seconds(Like(1, "a", "b", 40 * 3600)) or (0, 0)
    assert (low, high) == pytest.approx((36_000.0, 36_000.0))


def test_a_run_that_goes_on_is_compared_with_those_that_went_on_as_long() -> None:
    like = Like(1, "a", "b", None)
    found = past(*[(like, 60.0)] * 10, *[(like, 600.0)] * 6)
    began = timezone.now()
    assert found.ends(like, since=began, now=began + timedelta(seconds=120)) == (
        began + timedelta(seconds=600), began + timedelta(seconds=600),
    )  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=80), st.floats(0, 1e6), st.integers(1, 10**6))
def test_a_length_never_passes_the_limit_and_low_is_below_high(values: list[float], ran: float, limit: int) -> None:
    like = Like(1, "a", "b", limit)
    found = past(*((like, min(value, limit)) for value in values)).seconds(like, ran=ran)
    assert found is None or 0 <= found[0] <= found[1] <= limit


@pytest.mark.django_db
def test_lengths_are_read_in_one_query_however_many_jobs(alice: User, django_assert_num_queries: Any) -> None:
    now = timezone.now()
    for _ in range(5):
        ended(alice, now, seconds=120)
    with django_assert_num_queries(1):
        found = likely.past()
    assert found.seconds(Like(alice.pk, "img", "train", 3600)) == pytest.approx((120.0, 120.0))


def ended(
    owner: User, at: datetime, *, seconds: float, reason: EndReason = EndReason.COMPLETED, job: Job | None = None
) -> Run:
    """A run of that length, the job's next one."""
    job = job or factories.make_job(owner, image="img", name="train", state=JobState.SUCCEEDED)
    node = Node.objects.first() or factories.make_node(gpus=0)
    return Run.objects.create(
        job=job, node=node, number=job.runs.count() + 1, state=RunState.ENDED, end_reason=reason,
        placed_at=at - timedelta(seconds=seconds), started_at=at - timedelta(seconds=seconds), ended_at=at,
    )  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("reason", sorted(set(EndReason) - OF_ITSELF))
def test_a_run_that_was_cut_off_says_only_that_it_lasts_at_least_so_long(alice: User, reason: EndReason) -> None:
    now = timezone.now()
    for _ in range(20):
        ended(alice, now, seconds=30, reason=reason)
    assert likely.past().seconds(Like(alice.pk, "img", "train", 3600)) is None, "none is known to have ended so soon"
    for _ in range(4):
        ended(alice, now, seconds=600)
    assert likely.past().seconds(Like(alice.pk, "img", "train", 3600)) == pytest.approx((600.0, 600.0))


@pytest.mark.django_db
def test_a_preempted_job_does_not_look_as_short_as_its_last_run(alice: User) -> None:
    now = timezone.now()
    for _ in range(4):
        job = ended(alice, now - HOUR, seconds=1800, reason=EndReason.PREEMPTED).job
        ended(alice, now, seconds=10, job=job)
    assert likely.past().seconds(Like(alice.pk, "img", "train", 3600)) is None
    for _ in range(4):
        ended(alice, now, seconds=2400)
    assert likely.past().seconds(Like(alice.pk, "img", "train", 3600)) == pytest.approx((2400.0, 2400.0))


@pytest.mark.django_db
def test_after_an_extension_the_run_is_expected_near_its_new_limit(alice: User, bob: User) -> None:
    now = timezone.now()
    for _ in range(10):
        ended(bob, now, seconds=300)
    mine = factories.make_job(bob, image="img", name="train", limit_seconds=600)
    run = factories.make_run(mine, factories.make_node("beta", gpus=1))
    waiting = factories.make_job(alice)
    dispatch.run_pass()
    waiting.refresh_from_db()
    assert waiting.expected_latest == pytest.approx(now + timedelta(seconds=300), abs=timedelta(seconds=60))
    assert extend(mine, factories.make_admin(), 3600).granted
    run.refresh_from_db()
    dispatch.run_pass()
    waiting.refresh_from_db()
    assert run.deadline is not None
    assert waiting.expected_earliest is not None
    assert run.deadline - HOUR / 2 <= waiting.expected_earliest < waiting.expected_latest <= run.deadline  # type: ignore[operator]


def test_stopped_runs_are_at_risk_until_then_and_no_ends() -> None:
    like = Like(1, "a", "b", 7200)
    found = past(*[(like, 600.0)] * 5)
    for _ in range(20):
        found.add(like, 300.0, stopped=True)
    assert found.seconds(like) == pytest.approx((600.0, 600.0)), "all that were let run ended then"
    for _ in range(5):
        found.add(like, 3600.0, stopped=True)
    assert found.seconds(like) == (600.0, 7200.0), "half of them went on, nobody knows how long"
    assert found.seconds(Like(1, "a", "b", None)) is None


def test_the_end_of_a_run_that_outlived_its_likes_does_not_move_with_the_clock() -> None:
    like, began = Like(1, "a", "b", 4200), timezone.now()
    found = past(*[(like, 60.0 + n) for n in range(20)], *[(Like(2, "c", "d", 9000), 100.0 * n) for n in range(90)])
    said = {found.ends(like, since=began, now=began + timedelta(seconds=ran)) for ran in range(90, 4200, 60)}
    assert said == {None}, "only its limit is known"


@given(st.floats(60, 1e6), st.floats(-1e6, 1e6))
def test_an_extended_run_ends_in_the_later_part_of_what_was_added(more: float, ago: float) -> None:
    now = timezone.now()
    until = now - timedelta(seconds=ago)
    early, late = extended(until, more, now)
    assert now <= early <= late == max(until, now)


# --- the correction ---


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60).map(sorted), st.floats(0.1, 1.0))
def test_the_shortest_span_holds_what_it_should(values: list[float], part: float) -> None:
    low, high = shortest(values, part)
    assert sum(low <= value <= high for value in values) >= part * len(values)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60).map(sorted), st.floats(0, 1e5))
def test_the_densest_span_holds_the_part_it_says(values: list[float], width: float) -> None:
    begin, part = densest(values, width)
    assert sum(begin <= value <= begin + width for value in values) / len(values) >= part > 0


def outcomes(*waits: float, low: float = 600.0, high: float = 1200.0, **fields: Any) -> list[Outcome]:
    return [Outcome(low, high, 1, wait, **fields) for wait in waits]


def test_few_past_estimates_change_nothing() -> None:
    assert Calibration(outcomes(*[5000.0] * (FEWEST - 1))).correct(600, 1200, 1) == (600, 1200)


def test_what_always_came_late_is_told_later() -> None:
    waits = [3000.0 + n for n in range(100)]
    low, high = Calibration(outcomes(*waits)).correct(600, 1200, 1)
    assert 3000 <= low < high <= 3100


def test_a_far_start_is_corrected_in_proportion_where_none_so_far_is_known() -> None:
    low, high = Calibration(outcomes(*[1800.0] * 100)).correct(60_000, 120_000, 1)
    assert 150_000 < low <= high < 210_000


def test_a_correction_beyond_any_calendar_tells_no_latest() -> None:
    now = timezone.now()
    by = Calibration(outcomes(*[30 * 86400.0] * 100, low=0.0, high=0.0))
    far = Expected(earliest=now, latest=now + timedelta(days=365 * 90))
    assert estimates._corrected(far, 1, by, now) == (now, None)


def test_waits_that_go_on_count_as_long_ones() -> None:
    short = outcomes(*[float(n) for n in range(60, 160)])
    still = outcomes(*[5000.0] * 100, open=True)
    assert Calibration(short + still).correct(600, 1200, 1)[1] > Calibration(short).correct(600, 1200, 1)[1]


def test_ranges_get_wider_once_they_were_missed_too_often() -> None:
    waits = [float(n * n) for n in range(1, 101)]
    missed, held = (Calibration(outcomes(*waits, hit=hit)).correct(600, 1200, 1) for hit in (False, True))
    assert missed[1] - missed[0] >= held[1] - held[0]


def test_where_most_ranges_were_too_wide_to_be_of_use_a_usual_one_needs_to_hold_less() -> None:
    waits = [60.0 * n for n in range(100)]
    wide, narrow = (Calibration(outcomes(*waits, width=width)).correct(600, 1200, 1) for width in (1e5, 1.0))
    assert wide[1] - wide[0] < 50 * 60 < narrow[1] - narrow[0]


@given(st.lists(st.floats(0, 1e5), min_size=FEWEST, max_size=60), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_range_is_a_range_and_the_same_past_tells_the_same(waits: list[float], low: float, more: float) -> None:
    past = outcomes(*waits)
    first, again = (Calibration(past).correct(low, low + more, 2) for _ in range(2))
    assert first == again
    assert 0 <= first[0] <= first[1]


# --- what is stored ---


@pytest.fixture
def full(alice: User, bob: User) -> Job:
    """A host that bob's job fills for an hour, and a job of alice that waits for it; one pass was made."""
    node = factories.make_node(gpus=1)
    factories.make_run(factories.make_job(bob), node)
    job = factories.make_job(alice)
    dispatch.run_pass()
    job.refresh_from_db()
    return job


@pytest.mark.django_db
def test_a_waiting_job_is_told_when_to_expect_its_start_and_that_is_recorded(full: Job, alice: User) -> None:
    deadline = Run.objects.get().deadline
    assert timezone.now() < full.expected_earliest < full.expected_latest <= deadline  # type: ignore[operator]
    row = Estimate.objects.get(job=full)
    assert (row.earliest, row.latest, row.started_at) == (full.expected_earliest, full.expected_latest, None)
    assert (row.raw_earliest, row.raw_latest) == (row.earliest, row.latest)
    said = status(full, alice)["expected"]
    assert said["text"] == wording.expected_start(full.expected_earliest, full.expected_latest)


@pytest.mark.django_db
def test_a_range_that_moved_by_a_little_is_not_written_again(full: Job) -> None:
    before = (full.expected_earliest, full.expected_latest)
    for _ in range(3):
        dispatch.run_pass()
    full.refresh_from_db()
    assert (full.expected_earliest, full.expected_latest) == before
    assert Estimate.objects.count() == 1


@pytest.mark.django_db
def test_a_range_that_moved_by_much_is_recorded_again_but_not_for_ever(full: Job) -> None:
    for hours in range(2, 20):
        Run.objects.update(deadline=timezone.now() + hours * hours * HOUR)
        dispatch.run_pass()
    assert 2 <= Estimate.objects.filter(job=full).count() <= estimates.MOST_PER_JOB


@pytest.mark.django_db
def test_a_start_fills_the_estimates_and_takes_the_range_away(full: Job) -> None:
    run = Run.objects.get()
    run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())
    dispatch.run_pass()
    full.refresh_from_db()
    assert (full.state, full.expected_earliest) == (JobState.PLACED, None)
    assert Estimate.objects.get().started_at == full.current_run.placed_at  # type: ignore[union-attr]


@pytest.mark.django_db
def test_a_job_that_somebody_holds_is_told_nothing_and_its_estimates_do_not_count(full: Job, alice: User) -> None:
    control.hold(full, alice)
    dispatch.run_pass()
    full.refresh_from_db()
    assert full.expected_earliest is None
    assert not Estimate.objects.exists()


@pytest.mark.django_db
def test_a_pass_over_many_equal_jobs_makes_no_query_for_each(
    full: Job, alice: User, django_assert_max_num_queries: Any
) -> None:
    for _ in range(20):
        factories.make_job(alice)
    dispatch.run_pass()
    expected = {pk: Expected(earliest=timezone.now(), latest=timezone.now() + HOUR) for pk in jobs()}
    with django_assert_max_num_queries(8):
        estimates.write(expected, dict.fromkeys(expected, (None, None)), waiting(expected), timezone.now())


def jobs() -> list[int]:
    return list(Job.objects.filter(state=JobState.QUEUED).values_list("pk", flat=True))


def waiting(expected: Mapping[int, Any]) -> list[Any]:
    from jobs import snapshot

    return [snapshot.waiting(job) for job in Job.objects.filter(pk__in=expected)]


# --- the score ---


def test_hits_misses_and_widths_are_counted() -> None:
    at = timezone.now()
    minutes = lambda *values: tuple(at + timedelta(minutes=value) for value in values)  # noqa: E731
    rows = [(at, *minutes(10, 20, start)) for start in (15, 20, 5, 25)]
    score = estimates.score_of(rows)
    assert (score.estimates, score.hits, score.early, score.late, score.percent) == (4, 2, 1, 1, 50)
    assert (score.mean_width, score.median_width, score.median_wait) == (600.0, 600.0, 1050.0)
    assert estimates.score_of([]).percent is None


@pytest.mark.django_db
def test_the_hit_rate_of_as_far_ahead_stands_beside_the_estimate_once_there_are_enough(full: Job, alice: User) -> None:
    assert status(full, alice)["expected"]["trust"] == ""
    told(full, 40, hit=True)
    assert status(full, alice)["expected"]["trust"] == "", "of starts so far ahead nothing is known"
    told(full, 21, hit=True, ahead=30)
    told(full, 9, hit=False, ahead=30)
    assert status(full, alice)["expected"]["trust"] == (
        "Such estimates were right 70% of the time; on average 10 min wide."
    )


def told(job: Job, count: int, *, hit: bool, ahead: int = 0) -> None:
    """Estimates of starts in so many minutes, ten wide."""
    made = timezone.now() - 2 * HOUR
    early = made + timedelta(minutes=ahead)
    Estimate.objects.bulk_create(
        Estimate(job=job, made_at=made, earliest=early, latest=early + timedelta(minutes=10),
                 started_at=early + timedelta(minutes=5 if hit else 50))
        for _ in range(count)
    )  # fmt: skip


@pytest.mark.django_db
def test_staff_see_hits_and_widths_by_how_far_ahead_they_were_told(full: Job) -> None:
    told(full, 3, hit=True)
    client = Client()
    client.force_login(factories.make_admin())
    page = client.get("/estimates/").content.decode()
    assert "100 %" in page
    assert "below 10 min" in page


@pytest.mark.django_db
def test_the_form_s_panel_says_when_it_would_start_and_who_is_ahead(full: Job, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    fields = {"name": "x", "image": "i", "script": "true", "gpus": "1", "cpus": "1", "memory": "1", "limit": "1h",
              "shm": "1", "team": str(full.team_id), "priority": "1", "command_kind": "script"}  # fmt: skip
    page = client.post("/jobs/preview/", fields).content.decode()
    assert "It would start" in page
    assert "1 job ahead" in page


@pytest.mark.django_db
def test_page_and_api_say_who_is_ahead_for_the_same_gpus(full: Job, alice: User) -> None:
    other = factories.make_job(alice, gpus=0, millicpus=64_000)
    last = factories.make_job(alice)
    found = status(last, alice)["place"]
    assert (found["position"], found["ahead"]["count"], found["ahead"]["jobs"]) == (3, 1, [full.pk])
    assert found["ahead"]["text"] == f"1 job ahead waits for the same: #{full.pk}."
    assert status(full, alice)["place"]["ahead"] is status(other, alice)["place"]["ahead"] is None
    client = Client()
    client.force_login(alice)
    assert found["ahead"]["text"] in client.get(last.get_absolute_url()).content.decode()
    assert Api(alice).get(f"/jobs/{last.pk}/why").json()["ahead"] == found["ahead"]


def test_ranges_are_said_as_people_do() -> None:
    with timezone.override("UTC"):
        now = timezone.now()
        near = wording.expected_start(now, now + HOUR)
        assert near.startswith("before about ")
        assert "–" in wording.expected_start(now + HOUR, now + 2 * HOUR)
        assert wording.expected_start(now + HOUR, now + HOUR).startswith("about ")
        assert wording.expected_start(now, None) == ""
    assert [wording.ahead(n) for n in (1, 2, 4)] == ["first in line", "1 job ahead", "3 jobs ahead"]
