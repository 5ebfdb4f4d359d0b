"""Quotas as vectors: what is asked, what is used, what is allowed. Pure.

Refusals come all at once, with numbers, and tell "never" (more than the limit itself) from "not now"
(the limit is in use). Memory in MiB, CPUs in thousandths, times in seconds, budget in GPU-seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Scope = Literal["user", "team"]
BUDGET_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """One level's limits; None sets none."""

    scope: Scope
    name: str  # of the user or team
    gpus: int | None = None
    millicpus: int | None = None
    memory_mib: int | None = None
    running_jobs: int | None = None
    queued_jobs: int | None = None
    gpu_seconds: int | None = None
    job_gpus: int | None = None
    limit_seconds: int | None = None
    priority: int | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one level holds now: live allocations, waiting jobs, and GPU-seconds used in the window and promised."""

    gpus: int = 0
    millicpus: int = 0
    memory_mib: int = 0
    running_jobs: int = 0
    queued_jobs: int = 0
    gpu_seconds: int = 0  # used in the last 30 days, and what live runs may still use up to their limits

    def plus(self, ask: "Ask", *, runs: bool = True, waits: bool = False) -> "Usage":
        """The usage with all that `ask` takes, counted as a job that runs, or that waits, or as neither."""
        return Usage(
            gpus=self.gpus + ask.gpus, millicpus=self.millicpus + ask.millicpus,
            memory_mib=self.memory_mib + ask.memory_mib, running_jobs=self.running_jobs + runs,
            queued_jobs=self.queued_jobs + waits, gpu_seconds=self.gpu_seconds + ask.gpus * (ask.limit_seconds or 0),
        )  # fmt: skip


class Ask(Protocol):
    """The part of a request that quotas look at."""

    @property
    def gpus(self) -> int: ...
    @property
    def millicpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def limit_seconds(self) -> int | None: ...
    @property
    def priority(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request passes a quota: `nearest` is the largest value of `field` that would pass, None when none would."""

    code: str
    field: str
    scope: Scope
    name: str
    asked: int | None
    limit: int
    used: int = 0
    nearest: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


# (code, field of Limits and Usage, field of the form)
_CONCURRENT = (
    ("QUOTA_GPUS", "gpus"),
    ("QUOTA_CPUS", "millicpus"),
    ("QUOTA_MEMORY", "memory_mib"),
)


def never(ask: Ask, *levels: Limits) -> list[Refusal]:
    """Refusals that no waiting would lift: the form and the API show them, and submit refuses by them."""
    return [refusal for level in levels for refusal in _never(ask, level)]


def _never(ask: Ask, limits: Limits) -> Iterator[Refusal]:
    most_gpus = min((n for n in (limits.gpus, limits.job_gpus) if n is not None), default=None)
    if most_gpus is not None and ask.gpus > most_gpus:
        code = "LARGEST_JOB" if most_gpus == limits.job_gpus else "QUOTA_GPUS"
        yield _refusal(code, "gpus", limits, ask.gpus, most_gpus)
    for code, name in _CONCURRENT[1:]:
        limit = getattr(limits, name)
        if limit is not None and getattr(ask, name) > limit:
            yield _refusal(code, name, limits, getattr(ask, name), limit)
    if limits.limit_seconds is not None and (ask.limit_seconds is None or ask.limit_seconds > limits.limit_seconds):
        yield _refusal("LONGEST_LIMIT", "limit_seconds", limits, ask.limit_seconds, limits.limit_seconds)
    if limits.priority is not None and ask.priority > limits.priority:
        yield _refusal("HIGHEST_PRIORITY", "priority", limits, ask.priority, limits.priority)
    if limits.running_jobs == 0:
        yield Refusal(code="QUOTA_RUNNING", field="", scope=limits.scope, name=limits.name, asked=1, limit=0)
    yield from _budget_never(ask, limits)


def _budget_never(ask: Ask, limits: Limits) -> Iterator[Refusal]:
    if limits.gpu_seconds is None or ask.gpus == 0:
        return
    if ask.limit_seconds is None or ask.gpus * ask.limit_seconds > limits.gpu_seconds:
        asked = None if ask.limit_seconds is None else ask.gpus * ask.limit_seconds
        yield Refusal(
            code="BUDGET_SIZE", field="limit_seconds", scope=limits.scope, name=limits.name, asked=asked,
            limit=limits.gpu_seconds, nearest=limits.gpu_seconds // ask.gpus or None,
        )  # fmt: skip


def _refusal(code: str, field: str, limits: Limits, asked: int | None, limit: int) -> Refusal:
    return Refusal(
        code=code, field=field, scope=limits.scope, name=limits.name, asked=asked, limit=limit, nearest=limit
    )


def admit(*levels: tuple[Limits, Usage]) -> list[Refusal]:
    """Refusals of one more waiting job: the queue itself is full."""
    return [
        Refusal(
            code="QUOTA_QUEUED",
            field="",
            scope=limits.scope,
            name=limits.name,
            asked=1,
            limit=limits.queued_jobs,
            used=usage.queued_jobs,
        )
        for limits, usage in levels
        if limits.queued_jobs is not None and usage.queued_jobs >= limits.queued_jobs
    ]


def start(ask: Ask, *levels: tuple[Limits, Usage]) -> list[Refusal]:
    """Refusals of starting now: limits in use, to be waited for. `never` is not repeated here."""
    return [refusal for limits, usage in levels for refusal in _start(ask, limits, usage)]


def _start(ask: Ask, limits: Limits, usage: Usage) -> Iterator[Refusal]:
    for code, name in _CONCURRENT:
        limit, used, asked = getattr(limits, name), getattr(usage, name), getattr(ask, name)
        if limit is not None and asked and used + asked > limit:
            yield Refusal(
                code=code, field=name, scope=limits.scope, name=limits.name, asked=asked, limit=limit, used=used,
                nearest=max(limit - used, 0) or None,
            )  # fmt: skip
    if limits.running_jobs is not None and usage.running_jobs >= limits.running_jobs:
        yield Refusal(
            code="QUOTA_RUNNING", field="", scope=limits.scope, name=limits.name, asked=1,
            limit=limits.running_jobs, used=usage.running_jobs,
        )  # fmt: skip
    yield from _budget_now(ask, limits, usage)


def _budget_now(ask: Ask, limits: Limits, usage: Usage) -> Iterator[Refusal]:
    if limits.gpu_seconds is None or not ask.gpus or ask.limit_seconds is None:
        return
    asked, left = ask.gpus * ask.limit_seconds, limits.gpu_seconds - usage.gpu_seconds
    if asked > left:
        yield Refusal(
            code="BUDGET_USED", field="limit_seconds", scope=limits.scope, name=limits.name, asked=asked,
            limit=limits.gpu_seconds, used=usage.gpu_seconds, nearest=max(left // ask.gpus, 0) or None,
        )  # fmt: skip
