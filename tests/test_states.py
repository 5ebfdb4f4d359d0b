"""The tables of states: complete, closed, and the only way to move."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.states import (
    ENDED,
    JOB_MOVES,
    JOB_STATE_AFTER,
    JOB_STATE_OF_RUN,
    RUN_MOVES,
    WISH_STRENGTH,
    EndReason,
    IllegalMove,
    JobState,
    RunState,
    Wish,
    check_job_move,
    check_run_move,
    job_state_after,
    reason_for_wish,
)


def test_every_state_has_its_moves() -> None:
    assert set(JOB_MOVES) == set(JobState)
    assert set(RUN_MOVES) == set(RunState)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_nothing_moves_out_of_an_end(state: JobState) -> None:
    assert JOB_MOVES[state] == frozenset()
    for new in JobState:
        with pytest.raises(IllegalMove, match=f"from {state} to {new}"):
            check_job_move(state, new)


@pytest.mark.parametrize("reason", EndReason)
def test_every_reason_decides_the_next_state_by_a_legal_move(reason: EndReason) -> None:
    for old in JOB_STATE_OF_RUN.values():
        check_job_move(old, JOB_STATE_AFTER[reason])


@pytest.mark.parametrize("wish", Wish)
def test_every_wish_has_a_strength_and_a_reason(wish: Wish) -> None:
    assert WISH_STRENGTH[wish] > 0
    assert isinstance(reason_for_wish(wish, by_owner=True), EndReason)


def test_a_cancel_names_who_asked() -> None:
    assert reason_for_wish(Wish.CANCEL, by_owner=True) is EndReason.STOPPED_BY_USER
    assert reason_for_wish(Wish.CANCEL, by_owner=False) is EndReason.STOPPED_BY_ADMIN


@pytest.mark.parametrize(
    ("requeues", "held", "state"),
    [(0, False, JobState.QUEUED), (2, True, JobState.HELD), (3, False, JobState.FAILED), (9, True, JobState.FAILED)],
)
def test_requeues_are_capped_and_heed_a_hold(requeues: int, held: bool, state: JobState) -> None:
    assert job_state_after(EndReason.GPU_START_FAILED, requeues=requeues, max_requeues=3, held=held) is state


@pytest.mark.parametrize(
    ("reason", "again", "retries", "state"),
    [
        (EndReason.GPU_START_FAILED, False, 0, JobState.QUEUED),
        (EndReason.GPU_START_FAILED, True, 1, JobState.FAILED),
        (EndReason.DISK_FULL, False, 0, JobState.QUEUED),
        (EndReason.DISK_FULL, False, 1, JobState.FAILED),
        (EndReason.HOST_REBOOT, False, 0, JobState.FAILED),
        (EndReason.HOST_REBOOT, True, 0, JobState.QUEUED),
        (EndReason.HOST_REBOOT, True, 1, JobState.FAILED),
        (EndReason.HOST_DAEMON_RESTART, False, 0, JobState.FAILED),
        (EndReason.HOST_DAEMON_RESTART, True, 0, JobState.QUEUED),
        (EndReason.GPU_LOST, False, 0, JobState.FAILED),
        (EndReason.GPU_LOST, True, 0, JobState.QUEUED),
        (EndReason.GPU_FAULT, False, 0, JobState.FAILED),
        (EndReason.GPU_FAULT, True, 0, JobState.QUEUED),
        (EndReason.GPU_ACCESS_LOST, True, 0, JobState.QUEUED),
        (EndReason.HOST_LOST, False, 0, JobState.LOST),
        (EndReason.HOST_LOST, True, 2, JobState.QUEUED),
        (EndReason.START_TIMEOUT, False, 2, JobState.QUEUED),
        (EndReason.EXIT_CODE, True, 0, JobState.FAILED),
    ],
)
def test_what_hardware_ended_is_tried_once_more_where_nothing_is_done_twice(
    reason: EndReason, again: bool, retries: int, state: JobState
) -> None:
    found = job_state_after(reason, requeues=retries, max_requeues=3, held=False, again=again, retries=retries)
    assert found is state


@given(st.lists(st.sampled_from(RunState), min_size=1, max_size=8))
def test_no_walk_of_legal_moves_comes_back(path: list[RunState]) -> None:
    """A run's states only go forward, so no run can live twice."""
    order = list(RunState)
    for old, new in pairwise(path):
        try:
            check_run_move(old, new)
        except IllegalMove:
            return
        assert order.index(new) > order.index(old)
