"""What holds for every test in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from jobs import control
from jobs.models import Job
from jobs.states import ENDED
from tests.rigs.stack import Stack

expect.set_options(timeout=120_000)  # milliseconds: a busy machine shows a page late


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_running(stack: Stack) -> Iterator[None]:
    """A failed test's job would fail every later test that counts containers."""
    yield
    stack.orm(_cancel_all)


def _cancel_all() -> None:
    for job in Job.objects.exclude(state__in=ENDED).select_related("owner"):
        control.cancel(job, job.owner)
