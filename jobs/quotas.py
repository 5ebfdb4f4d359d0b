"""Quotas as vectors: what is asked, what is used, what is allowed. Pure.

Refusals come all at once, with numbers, and tell "never" (more than the limit itself) from "not now"
(the limit is in use). Memory in MiB, CPUs in thousandths, times in seconds, budget in GPU-seconds. What is used of
GPUs is counted in thousandths, since GPUs are shared; refusals tell GPUs, as people do.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

Scope = Literal["user", "team"]
BUDGET_DAYS = 30  # of a window that nobody has set
WHOLE = 1000  # a whole GPU, in thousandths


@dataclass(frozen=True, kw_only=True)
class Limits:
    """One level's limits; None sets none."""

    scope: Scope
    name: str  # of the user or team
    gpus: int | None = None
    gpus_by_model: Mapping[str, int] = field(default_factory=dict)
    guaranteed_gpus: int | None = None  # of a team: what it holds beyond is borrowed; None counts as 0
    millicpus: int | None = None
    memory_mib: int | None = None
    running_jobs: int | None = None
    queued_jobs: int | None = None
    interactive_jobs: int | None = None  # that run
    gpu_seconds: int | None = None
    gpu_seconds_soft: int | None = None  # beyond it, jobs start after all that are within theirs
    window_days: int = BUDGET_DAYS  # of both budgets: the last so many days
    job_gpus: int | None = None
    limit_seconds: int | None = None
    priority: int | None = None

    @property
    def counts(self) -> bool:
        """Whether any of them is on what is in use: else usage need not be known."""
        at_once = (self.gpus, self.millicpus, self.memory_mib, self.running_jobs, self.interactive_jobs)
        return self.has_budget or bool(self.gpus_by_model) or any(limit is not None for limit in at_once)

    @cached_property
    def of_gpus_alone(self) -> bool:
        """Whether no start is refused for anything but how many GPUs are in use or asked for."""
        others = self.millicpus, self.memory_mib, self.running_jobs, self.interactive_jobs, self.gpu_seconds
        return self.limit_seconds is None and others == (None, None, None, None, None)

    @property
    def has_budget(self) -> bool:
        return self.gpu_seconds is not None or self.gpu_seconds_soft is not None


class Ask(Protocol):
    """The part of a request that quotas look at."""

    @property
    def gpus(self) -> int: ...
    @property
    def least_gpus(self) -> int | None: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def gpu_model(self) -> str: ...
    @property
    def millicpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def limit_seconds(self) -> int | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def interactive(self) -> bool: ...


def milli(gpus: int, gpu_milli: int) -> int:
    """What so many GPUs are in thousandths: `gpu_milli` is the share of a lone one."""
    return gpu_milli if gpus == 1 else gpus * WHOLE


def slots_needed(gpu_milli: int, slots: int) -> int:
    """How many of a GPU's slots a share of so many thousandths takes: rounded up."""
    return -(-gpu_milli * slots // WHOLE)


def milli_of_slots(taken: int, slots: int) -> int:
    """What so many of a GPU's slots are in thousandths of it: what a share is charged."""
    return taken * WHOLE // slots


def least_milli(ask: Ask) -> int:
    """The fewest GPUs that the job can start with, in thousandths."""
    gpus = ask.gpus if ask.least_gpus is None else ask.least_gpus
    return ask.gpu_milli if gpus == 1 else gpus * WHOLE


def models_of(ask: Ask) -> tuple[str, ...]:
    """The GPU models that would do; none for any."""
    return tuple(ask.gpu_model.split("|")) if ask.gpu_model else ()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one level holds now: live allocations, waiting jobs, and GPU-seconds used in the window and promised."""

    gpu_milli: int = 0
    milli_by_model: Mapping[str, int] = field(default_factory=dict)
    millicpus: int = 0
    memory_mib: int = 0
    running_jobs: int = 0
    queued_jobs: int = 0
    interactive_jobs: int = 0  # that run
    gpu_seconds: int = 0  # used in the window, and what live runs may still use up to their limits
    returns: tuple[tuple[datetime, int], ...] = ()  # of those used, when how many have left the window, oldest first

    @property
    def gpus(self) -> float:
        return in_gpus(self.gpu_milli)

    def plus(
        self, ask: Ask, *, runs: bool = True, waits: bool = False, gpus: int | None = None, model: str = ""
    ) -> "Usage":
        """The usage with all that `ask` takes, counted as a job that runs, or that waits, or as neither.

        `gpus` is what an elastic job takes, `model` that of the GPUs where the job leaves a choice.
        """
        taken = milli(ask.gpus if gpus is None else gpus, ask.gpu_milli)
        models = models_of(ask)
        model = model or (models[0] if len(models) == 1 else "")
        by_model = self.milli_by_model
        if taken and model:
            by_model = {**by_model, model: by_model.get(model, 0) + taken}
        found = object.__new__(Usage)  # in a fraction of the time that the constructor takes
        vars(found).update(
            gpu_milli=self.gpu_milli + taken, milli_by_model=by_model, millicpus=self.millicpus + ask.millicpus,
            memory_mib=self.memory_mib + ask.memory_mib, running_jobs=self.running_jobs + runs,
            queued_jobs=self.queued_jobs + waits, interactive_jobs=self.interactive_jobs + (runs and ask.interactive),
            gpu_seconds=self.gpu_seconds + taken * (ask.limit_seconds or 0) // WHOLE, returns=self.returns,
        )  # fmt: skip
        return found

    def back_at(self, seconds: int) -> datetime | None:
        """When so many GPU-seconds have left the window, if nothing more is used; None: not all of them were used."""
        for at, back in self.returns:
            seconds -= back
            if seconds <= 0:
                return at
        return None


def in_gpus(thousandths: int) -> float:
    """Thousandths as GPUs: a whole number where it is one."""
    return thousandths // WHOLE if thousandths % WHOLE == 0 else thousandths / WHOLE


class Refusal(NamedTuple):
    """Why a request passes a quota: `nearest` is the largest value of `field` that would pass, None when none would.

    The field `gpu_milli` is a share of one GPU, and its nearest in thousandths; GPUs otherwise are in GPUs.
    """

    code: str
    field: str
    scope: Scope
    name: str
    asked: float | None
    limit: int
    used: float = 0
    nearest: int | None = None
    model: str = ""  # of which GPUs; empty: of any
    days: int = 0  # of the window, of a budget
    back_at: datetime | None = None  # when enough of a budget has left the window

    def as_dict(self) -> dict[str, Any]:
        found = self._asdict()
        if not self.model:
            del found["model"]
        if not self.days:
            del found["days"]
        del found["back_at"]
        if self.back_at is not None:
            found["back_at"] = self.back_at.isoformat()
        return found


# (code, field of Limits, of Usage and of the form)
_CONCURRENT = (("QUOTA_CPUS", "millicpus"), ("QUOTA_MEMORY", "memory_mib"))


def never(ask: Ask, *levels: Limits, models: Collection[str] = ()) -> list[Refusal]:
    """Refusals that no waiting would lift: the form and the API show them, and submit refuses by them.

    `models` are those that the hosts have.
    """
    refusals = [refusal for level in levels for refusal in _never(ask, level)]
    closed = closed_models(ask, *((limits, Usage()) for limits in levels), models=models)
    if closed and closed.keys() >= set(_would_do(ask, models)):
        refusals.append(max(closed.values(), key=lambda refusal: refusal.limit))
    return refusals


def _would_do(ask: Ask, models: Collection[str]) -> Collection[str]:
    """The models among which the job takes its GPUs: of those that it names the ones that the hosts have."""
    named = models_of(ask)
    return [model for model in models if model in named] or named or models


def above_ceiling(ask: Ask, *levels: Limits) -> list[Refusal]:
    """Refusals of the priority asked for. Not of a job in the queue: an admin may have raised it."""
    return [
        _above("HIGHEST_PRIORITY", "priority", limits, ask.priority, limits.priority)
        for limits in levels if limits.priority is not None and ask.priority > limits.priority
    ]  # fmt: skip


def _never(ask: Ask, limits: Limits) -> Iterator[Refusal]:
    yield from _gpus_never(ask, limits)
    for code, name in _CONCURRENT:
        limit = getattr(limits, name)
        if limit is not None and getattr(ask, name) > limit:
            yield _above(code, name, limits, getattr(ask, name), limit)
    if limits.limit_seconds is not None and (ask.limit_seconds is None or ask.limit_seconds > limits.limit_seconds):
        yield _above("LONGEST_LIMIT", "limit_seconds", limits, ask.limit_seconds, limits.limit_seconds)
    if limits.running_jobs == 0:
        yield _count("QUOTA_RUNNING", limits, 0, 0)
    if ask.interactive and limits.interactive_jobs == 0:
        yield _count("QUOTA_INTERACTIVE", limits, 0, 0)
    yield from _budget_never(ask, limits)


def _gpus_never(ask: Ask, limits: Limits) -> Iterator[Refusal]:
    asked = least_milli(ask)
    most = min((n for n in (limits.gpus, limits.job_gpus) if n is not None), default=None)
    if most is not None and asked > most * WHOLE:
        code = "LARGEST_JOB" if most == limits.job_gpus else "QUOTA_GPUS"
        yield _gpus(code, ask, limits, most, 0)


def _budget_never(ask: Ask, limits: Limits) -> Iterator[Refusal]:
    taken = least_milli(ask)
    if limits.gpu_seconds is None or not taken:
        return
    if ask.limit_seconds is None or taken * ask.limit_seconds > limits.gpu_seconds * WHOLE:
        asked = None if ask.limit_seconds is None else taken * ask.limit_seconds // WHOLE
        yield Refusal(
            code="BUDGET_SIZE", field="limit_seconds", scope=limits.scope, name=limits.name, asked=asked,
            limit=limits.gpu_seconds, nearest=limits.gpu_seconds * WHOLE // taken or None, days=limits.window_days,
        )  # fmt: skip


def _above(code: str, field: str, limits: Limits, asked: int | None, limit: int) -> Refusal:
    return Refusal(
        code=code, field=field, scope=limits.scope, name=limits.name, asked=asked, limit=limit, nearest=limit or None
    )


def _count(code: str, limits: Limits, limit: int, used: int) -> Refusal:
    """One more job than may be."""
    return Refusal(code=code, field="", scope=limits.scope, name=limits.name, asked=1, limit=limit, used=used)


def _gpus(code: str, ask: Ask, limits: Limits, limit: int, used: int, model: str = "") -> Refusal:
    """GPUs above `limit` when `used` thousandths are in use."""
    asked, left = least_milli(ask), max(limit * WHOLE - used, 0)
    shared = 0 < asked < WHOLE
    return Refusal(
        code=code, field="gpu_milli" if shared else "gpus", scope=limits.scope, name=limits.name, model=model,
        asked=in_gpus(asked), limit=limit, used=in_gpus(used), nearest=(left if shared else left // WHOLE) or None,
    )  # fmt: skip


def admit(*levels: tuple[Limits, Usage]) -> list[Refusal]:
    """Refusals of one more waiting job: the queue itself is full."""
    return [
        _count("QUOTA_QUEUED", limits, limits.queued_jobs, usage.queued_jobs)
        for limits, usage in levels
        if limits.queued_jobs is not None and usage.queued_jobs >= limits.queued_jobs
    ]


def start(ask: Ask, *levels: tuple[Limits, Usage], models: Collection[str] = ()) -> list[Refusal]:
    """Refusals of starting now: limits in use, to be waited for. `never` is not repeated here.

    `models` are those that the hosts have.
    """
    refusals = [refusal for limits, usage in levels for refusal in _start(ask, limits, usage)]
    closed = closed_models(ask, *levels, models=models)
    if closed and closed.keys() >= set(_would_do(ask, models)):
        refusals.insert(0, next(iter(closed.values())))
    return refusals


def closed_models(
    ask: Ask, *levels: tuple[Limits, Usage], models: Collection[str] = ()
) -> dict[str, Refusal]:  # fmt: skip
    """The models among those that would do (all of `models` where any would) that a level has no more of now."""
    found: dict[str, Refusal] = {}
    asked = least_milli(ask)
    for limits, usage in levels:
        for model in _would_do(ask, models) if limits.gpus_by_model and asked else ():
            most, used = limits.gpus_by_model.get(model), usage.milli_by_model.get(model, 0)
            if most is not None and used + asked > most * WHOLE:
                found.setdefault(model, _gpus("QUOTA_MODEL", ask, limits, most, used, model))
    return found


def above_models(given: Mapping[str, int], *levels: tuple[Limits, Usage]) -> list[Refusal]:
    """Refusals of these GPUs, thousandths by model, which were chosen for a job."""
    return [
        Refusal(
            code="QUOTA_MODEL", field="gpus", scope=limits.scope, name=limits.name, model=model, asked=in_gpus(asked),
            limit=limits.gpus_by_model[model], used=in_gpus(usage.milli_by_model.get(model, 0)),
        )
        for limits, usage in levels
        for model, asked in given.items()
        if model in limits.gpus_by_model
        and usage.milli_by_model.get(model, 0) + asked > limits.gpus_by_model[model] * WHOLE
    ]  # fmt: skip


def still_asked(refusals: list[Refusal], *, begun: bool, moved: bool) -> list[Refusal]:
    """Those that hold back a job also if it has `begun`, that is, has run before: how long it may run was decided then.

    `moved`: it goes on elsewhere with the rest of its time, which budgets have promised it when it began.
    """
    if not begun:
        return refusals
    granted = ("LONGEST_LIMIT", "BUDGET_SIZE", "BUDGET_USED") if moved else ("LONGEST_LIMIT",)
    return [refusal for refusal in refusals if refusal.code not in granted]


def most_gpus(ask: Ask, *levels: tuple[Limits, Usage]) -> int:
    """How many GPUs an elastic job may have now by all levels, of whatever model: see `left_by_model`."""
    most = ask.gpus
    for limits, usage in levels:
        if limits.job_gpus is not None:
            most = min(most, limits.job_gpus)
        if limits.gpus is not None:
            most = min(most, (limits.gpus * WHOLE - usage.gpu_milli) // WHOLE)
        if limits.gpu_seconds is not None and ask.limit_seconds:
            most = min(most, (limits.gpu_seconds - usage.gpu_seconds) // ask.limit_seconds)
    return max(most, 0)


def left_by_model(ask: Ask, *levels: tuple[Limits, Usage], models: Collection[str]) -> dict[str, int]:
    """How many GPUs of each model that would do all levels leave to the job, if it had no others; it takes no more.

    `models` are those that the hosts have.
    """
    found = dict.fromkeys(_would_do(ask, models), ask.gpus)
    for limits, usage in levels:
        for model in found.keys() & limits.gpus_by_model.keys():
            left = limits.gpus_by_model[model] * WHOLE - usage.milli_by_model.get(model, 0)
            found[model] = min(found[model], max(left, 0) // WHOLE)
    return found


def _start(ask: Ask, limits: Limits, usage: Usage) -> Iterator[Refusal]:
    asked = least_milli(ask)
    if limits.gpus is not None and asked and usage.gpu_milli + asked > limits.gpus * WHOLE:
        yield _gpus("QUOTA_GPUS", ask, limits, limits.gpus, usage.gpu_milli)
    for code, name in _CONCURRENT:
        limit, used, wanted = getattr(limits, name), getattr(usage, name), getattr(ask, name)
        if limit is not None and wanted and used + wanted > limit:
            yield Refusal(
                code=code, field=name, scope=limits.scope, name=limits.name, asked=wanted, limit=limit, used=used,
                nearest=max(limit - used, 0) or None,
            )  # fmt: skip
    if limits.running_jobs is not None and usage.running_jobs >= limits.running_jobs:
        yield _count("QUOTA_RUNNING", limits, limits.running_jobs, usage.running_jobs)
    most = limits.interactive_jobs
    if ask.interactive and most is not None and usage.interactive_jobs >= most:
        yield _count("QUOTA_INTERACTIVE", limits, most, usage.interactive_jobs)
    yield from _budget_now(ask, limits, usage)


def _budget_now(ask: Ask, limits: Limits, usage: Usage) -> Iterator[Refusal]:
    taken = least_milli(ask)
    if limits.gpu_seconds is None or not taken or ask.limit_seconds is None:
        return
    asked, left = taken * ask.limit_seconds // WHOLE, limits.gpu_seconds - usage.gpu_seconds
    if asked > left:
        yield Refusal(
            code="BUDGET_USED", field="limit_seconds", scope=limits.scope, name=limits.name, asked=asked,
            limit=limits.gpu_seconds, used=usage.gpu_seconds, nearest=max(left * WHOLE // taken, 0) or None,
            days=limits.window_days, back_at=usage.back_at(asked - left),
        )  # fmt: skip
