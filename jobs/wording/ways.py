"""What to try next: after an end, or when a waiting job can't start as it is."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from jobs.models import Job, Run
from jobs.policy.explain import is_final
from jobs.states import WAITING
from jobs.units import exact_duration, exact_memory, format_cpus
from jobs.wording import ends
from jobs.wording import quantities as q
from jobs.wording.asked import amount
from jobs.wording.ends import Suggestion
from jobs.wording.states import priority_label
from jobs.wording.waits import way_out

Reason = Mapping[str, Any]
# Code of a final reason: the form's field, and what of the reason is the nearest value that would do.
_NEAREST = {
    "TOO_LARGE_GPUS": ("gpus", "most"), "QUOTA_GPUS": ("gpus", "limit"), "LARGEST_JOB": ("gpus", "limit"),
    "TOO_LARGE_CPUS": ("cpus", "most"), "QUOTA_CPUS": ("cpus", "limit"),
    "TOO_LARGE_MEMORY": ("memory", "most"), "QUOTA_MEMORY": ("memory", "limit"),
    "NO_GPU_MEMORY": ("gpu_memory", "most_mib"), "LONGEST_LIMIT": ("limit", "limit"),
    "BUDGET_SIZE": ("limit", "nearest"), "HIGHEST_PRIORITY": ("priority", "limit"),
}  # fmt: skip


def suggestion(job: Job, run: Run | None) -> Suggestion | None:
    """What to try after the run, or in place of a job that waits for what can't come; None: nothing to advise."""
    if run is not None or job.state not in WAITING:
        return ends.suggestion(job, run)
    final = [reason for reason in job.wait_reasons if is_final(reason)]
    if not final:
        return None
    changes = {**_other_models(final), **{name: _typed(name, value) for name, value in _smallest(final).items()}}
    if not changes:
        return Suggestion(text=way_out(final[0]))
    said = ", ".join(_said(name, text, _smallest(final).get(name, 0)) for name, text in changes.items())
    return Suggestion(text=_("It could start with %(changes)s.") % {"changes": said}, changes=changes)


# Code of a hint: what of it is the value that would do, and the field of `jobs.amend`.
_LESS = {
    "FITS_WITH": ("gpus", "gpus"), "FITS_WITHIN": ("seconds", "limit_seconds"),
    "FITS_WITH_CPUS": ("millicpus", "millicpus"), "FITS_WITH_MEMORY": ("memory_mib", "memory_mib"),
    "FITS_ON": ("model", "gpu_model"), "FITS_WITHOUT": ("labels", "node_labels"),
}  # fmt: skip


def ways(job: Job) -> list[dict[str, Any]]:
    """What a waiting job could ask less of, or otherwise, so that it starts now.

    Of each way, `text` is for a button, `changes` for `jobs.amend`, and `question` to be asked first, since a job
    that has started can't be given back what it gave up.
    """
    return [
        {"text": _way(field, value), "changes": {field: _after(job, field, value)},
         "question": _question(field, value, getattr(job, field))}
        for field, value in map(_help, job.wait_reasons) if value
    ]  # fmt: skip


def ways_back(lowered: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How a waiting job that was amended can ask for as much again as it was submitted with: as `ways`."""
    return [
        {"text": _("Back to %(what)s") % {"what": amount(field, value)}, "changes": {field: value}, "question": ""}
        for field, value in lowered.items()
    ]


def is_way(reason: Reason) -> bool:
    """Whether the reason says what would help, so that there is a button for it."""
    return bool(_help(reason)[1])


def _help(reason: Reason) -> tuple[str, Any]:
    """The field of `jobs.amend`, and the value of the hint that would do; of labels, those to do without."""
    key, field = _LESS.get(reason["code"], ("", ""))
    return field, reason.get(key)


def _after(job: Job, field: str, value: Any) -> Any:
    return [label for label in job.node_labels if label not in value] if field == "node_labels" else value


def _way(field: str, value: Any) -> str:
    if field == "limit_seconds":
        return _("Shorten the limit to %(limit)s: starts now") % {"limit": q.duration(value)}
    if field == "node_labels":
        return _("Run now on a host without %(labels)s") % {"labels": q.names(value)}
    if field == "gpu_model":
        return _("Run now on %(model)s") % {"model": value}
    return _("Run now with %(gpus)s") % {"gpus": amount(field, value)}


def _question(field: str, value: Any, now: Any) -> str:
    """With what it is now, and would be."""
    if field == "node_labels":
        text = _("Start now on a host without %(labels)s? Once it runs, this cannot be taken back.")
        return text % {"labels": q.names(value)}
    before = _("no time limit") if now is None else amount(field, now)
    text = _("Start now with %(after)s in place of %(before)s? Once it runs, this cannot be taken back.")
    if field == "limit_seconds":
        text = _("Start now with %(after)s in place of %(before)s? The job is stopped once that is over.")
    if field == "gpu_model":
        text = _("Start now on %(after)s in place of %(before)s? Once it runs, this cannot be taken back.")
    return text % {"after": amount(field, value), "before": before}


def _smallest(final: list[Reason]) -> dict[str, int]:
    """Field of the form to the largest number that passes all of the reasons; none where that is 0."""
    found: dict[str, int] = {}
    for name, value in _numbers(final):
        found[name] = min(value, found.get(name, value))
    return {name: value for name, value in found.items() if value or name == "priority"}


def _numbers(final: list[Reason]) -> Iterator[tuple[str, int]]:
    for reason in final:
        name, key = _NEAREST.get(reason["code"], ("", ""))
        if isinstance(reason.get(key), int):
            yield name, reason[key]


def _other_models(final: list[Reason]) -> dict[str, str]:
    """The only GPU model there is, or any, where the one asked for isn't there."""
    found = next((reason for reason in final if reason["code"] == "NO_GPU_MODEL"), None)
    models = found.get("models", []) if found else []
    return {"gpu_model": models[0] if len(models) == 1 else ""} if models else {}


def _typed(name: str, value: int) -> str:
    """The value as the form's field reads it."""
    return {
        "cpus": format_cpus, "memory": exact_memory, "gpu_memory": exact_memory, "limit": exact_duration,
    }.get(name, str)(value)  # fmt: skip


def _said(name: str, text: str, value: int) -> str:
    return {
        "gpus": lambda: q.gpus(value),
        "cpus": lambda: q.cpus(value),
        "memory": lambda: _("%(size)s of memory") % {"size": q.memory(value)},
        "gpu_memory": lambda: _("GPUs of %(size)s") % {"size": q.memory(value)},
        "gpu_model": lambda: text or _("any GPU model"),
        "limit": lambda: _("a time limit of %(limit)s") % {"limit": q.duration(value)},
        "priority": lambda: _("priority %(priority)s") % {"priority": priority_label(value)},
    }[name]()
