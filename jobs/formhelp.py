"""What stands beside the form: one's limits, sizes to start from, and the same job as a command."""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import fairshare, units, usage, wording
from jobs.models import Priority, Team
from jobs.quotas import WHOLE, Limits, Usage, in_gpus, milli
from jobs.request import JobRequest
from portal.models import User


def beside(user: User, limits: Limits) -> dict[str, str]:
    """Field name to a sentence on this person's limit there and how much of it is in use; none where there is none."""
    used = usage.usages("user", {user.pk: limits}, timezone.now())[user.pk]
    found = {
        "gpus": _gpus(limits, used), "cpus": _cpus(limits, used), "memory": _memory(limits, used),
        "limit": _limit(limits, user), "priority": _priority(limits),
    }  # fmt: skip
    return {name: text for name, text in found.items() if text}


def _gpus(limits: Limits, used: Usage) -> str:
    parts = []
    if limits.gpus is not None:
        text = _("You may use up to %(limit)s; %(used)s in use.")
        parts.append(text % {"limit": wording.gpus(limits.gpus), "used": used.gpus})
    if limits.job_gpus is not None and limits.job_gpus != limits.gpus:
        parts.append(_("At most %(limit)s in one job.") % {"limit": wording.gpus(limits.job_gpus)})
    return " ".join(parts)


def _cpus(limits: Limits, used: Usage) -> str:
    if limits.millicpus is None:
        return ""
    text = _("You may use up to %(limit)s at once; %(used)s in use.")
    return text % {"limit": wording.cpus(limits.millicpus), "used": units.format_cpus(used.millicpus)}


def _memory(limits: Limits, used: Usage) -> str:
    if limits.memory_mib is None:
        return ""
    text = _("You may use up to %(limit)s at once; %(used)s in use.")
    return text % {"limit": wording.memory(limits.memory_mib), "used": wording.memory(used.memory_mib)}


def _limit(limits: Limits, user: User) -> str:
    parts = []
    if limits.limit_seconds is not None:
        parts.append(_("You may ask for up to %(limit)s.") % {"limit": wording.duration(limits.limit_seconds)})
    if user.may_run_unlimited:
        parts.append(_("Write none for no limit."))
    return " ".join(parts)


def _priority(limits: Limits) -> str:
    if limits.priority is None:
        return ""
    return _("You may ask for up to %(limit)s.") % {"limit": wording.priority_label(limits.priority)}


def presets(limits: Limits) -> list[dict[str, Any]]:
    """Sizes to start from: no GPU, one, and on up to what this person and the largest host have, in proportion."""
    host = fairshare.largest_host()
    most = min(n for n in (host.gpus, limits.gpus, limits.job_gpus) if n is not None)
    return [
        {
            "label": wording.gpus(n) if n else _("CPU only"), "gpus": n,
            "cpus": units.format_cpus(share.millicpus), "memory": units.exact_memory(share.memory_mib),
        }
        for n in (0, 1, 2, 4, 8)
        if n <= most and (share := fairshare.share(host, n, limits))
    ]  # fmt: skip


def cost(request: JobRequest) -> str:
    """The GPU-hours that the job takes at most."""
    if not request.gpus:
        return _("no GPU-hours")
    if request.limit_seconds is None:
        return _("GPU-hours without limit")
    seconds = milli(request.gpus, request.gpu_milli) * request.limit_seconds / WHOLE
    return _("at most %(hours)s") % {"hours": wording.gpu_hours(seconds)}


def quota_bars(
    levels: list[tuple[Limits, Usage]], asked: JobRequest | None = None, verdict: str = "now"
) -> list[dict[str, Any]]:
    """The limits of these levels as bars: label, used and limit in words, percent used, and percent after `asked`.

    By the preview's `verdict`, the job counts as one more that runs ("now"), as one more that waits, or as neither.
    """
    runs, waits = verdict == "now", verdict == "waits"
    return [
        bar
        for limits, used in levels
        for bar in _bars(limits, used, used if asked is None else used.plus(asked, runs=runs, waits=waits))
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}".removesuffix(".0")


_BARS: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
    ("gpus", gettext_lazy("GPUs"), str),
    ("millicpus", gettext_lazy("CPUs"), units.format_cpus),
    ("memory_mib", gettext_lazy("Memory"), wording.memory),
    ("running_jobs", gettext_lazy("Running jobs"), str),
    ("interactive_jobs", gettext_lazy("Interactive jobs"), str),
    ("queued_jobs", gettext_lazy("Waiting jobs"), str),
)


def _bars(limits: Limits, used: Usage, after: Usage) -> Iterator[dict[str, Any]]:
    for name, label, said in _BARS:
        yield from _bar(label, getattr(used, name), getattr(after, name), getattr(limits, name), said)
    for model, most in limits.gpus_by_model.items():
        now, then = (in_gpus(level.milli_by_model.get(model, 0)) for level in (used, after))
        yield from _bar(model, now, then, most, str)
    days = {"days": limits.window_days}
    text = _("GPU-hours used and promised, in %(days)d days") % days
    yield from _bar(text, used.gpu_seconds, after.gpu_seconds, limits.gpu_seconds, _hours)
    text = _("GPU-hours used and promised, in %(days)d days, until later jobs wait for others") % days
    yield from _bar(text, used.gpu_seconds, after.gpu_seconds, limits.gpu_seconds_soft, _hours)


def _bar(
    label: Any, now: float, then: float, limit: float | None, said: Callable[[Any], str]
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One limit, if it is set."""
    if limit is not None:
        yield {
            "label": label, "used": said(now), "limit": said(limit), "after": said(then) if then != now else "",
            "percent": _percent(now, limit), "percent_after": max(_percent(then, limit) - _percent(now, limit), 0),
            "over": then > limit,
        }  # fmt: skip


def _percent(part: float, whole: float) -> int:
    return min(round(100 * part / whole), 100) if whole else 100


def levels_of(user: User, teams: list[Team]) -> dict[str, list[tuple[Limits, Usage]]]:
    """ "user" and each team's name to its limits and usage, budgets included."""
    now = timezone.now()
    mine, theirs = usage.user_limits([user]), usage.team_limits(teams)
    held = usage.holdings(Q(user=user) | Q(team__in=teams))
    mine_used, theirs_used = usage.usages("user", mine, now, held), usage.usages("team", theirs, now, held)
    return {
        "user": [(mine[user.pk], mine_used[user.pk])],
        **{team.name: [(theirs[team.pk], theirs_used[team.pk])] for team in teams},
    }


def as_command(request: JobRequest, team: Team) -> str:
    """The job as a `dockyard submit` command to copy. Secrets by name only: their values come from the shell."""
    words = ["dockyard", "submit", "--name", request.name, "--team", team.name, "--image", request.image]
    words += ["--gpus", str(request.gpus), *_optional(request)]
    for name, value in request.environment:
        words += ["--secret", name] if name in request.secret_names else ["--env", f"{name}={value}"]
    if request.command_kind == "script":
        return shlex.join([*words, "--", request.script])
    words += ["--entrypoint", shlex.join(request.entrypoint)] if request.entrypoint else ["--own-entrypoint"]
    return shlex.join([*words, "--", *request.arguments])


def _optional(request: JobRequest) -> Iterator[str]:
    limit = "none" if request.limit_seconds is None else units.exact_duration(request.limit_seconds).replace(" ", "")
    yield from ("--cpus", units.format_cpus(request.millicpus), "--memory", f"{request.memory_mib}MiB")
    yield from ("--shm", f"{request.shm_mib}MiB", "--limit", limit, "--grace", f"{request.grace_seconds}s")
    if request.gpu_model:
        yield from ("--gpu-model", request.gpu_model)
    if request.gpu_memory_mib:
        yield from ("--gpu-memory", f"{request.gpu_memory_mib}MiB")
    if request.gpu_milli < WHOLE:
        yield from ("--share", f"{request.gpu_milli / 10:g}")
    if request.gpu_profile:
        yield from ("--profile", request.gpu_profile)
    if request.least_gpus is not None:
        yield from ("--least-gpus", str(request.least_gpus))
    for label in request.node_labels:
        yield from ("--label", label)
    yield from (f"--{name}" for name in ("preemptible", "movable", "interactive", "offline") if getattr(request, name))
    if request.stop_signal != "SIGTERM":
        yield from ("--signal", request.stop_signal)
    if request.priority != Priority.NORMAL:
        yield from ("--priority", Priority(request.priority).name.lower())
    if request.start_after is not None:
        yield from ("--start-after", f"{request.start_after:%Y-%m-%d %H:%M%z}")
