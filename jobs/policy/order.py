"""The order of the queue: priority, then age, then the older submission. Pure."""

from collections.abc import Iterable
from datetime import datetime

from jobs.policy.view import Waiting


def key(job: Waiting) -> tuple[int, datetime, int]:
    """The sort key: smallest goes first."""
    return -job.priority, job.queued_at, job.id


def in_order(jobs: Iterable[Waiting]) -> list[Waiting]:
    return sorted(jobs, key=key)
