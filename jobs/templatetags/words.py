"""`jobs.wording` and what rows of jobs need, in templates."""

from datetime import datetime
from html import escape
from typing import Any

from django import template
from django.forms import BoundField
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from jobs import history, wording
from jobs.gpustrip import Cell
from jobs.models import Job
from jobs.quotas import WHOLE
from jobs.states import ENDED, LIVE
from jobs.wording.states import latest_run
from jobs.wording.ways import is_way

register = template.Library()
register.filter("cpus_words", wording.cpus)
register.filter("gpus_words", wording.gpus)
register.filter("priority_label", wording.priority_label)
register.filter("run_of", latest_run)


def _reader(context: Context) -> str | None:
    user = context.get("user")
    return user.get_username() if user is not None and user.is_authenticated else None


@register.simple_tag(takes_context=True)
def headline(context: Context, job: Job) -> str:
    """The one sentence on the job, for who reads the page."""
    return wording.headline(job, reader=_reader(context))


@register.simple_tag(takes_context=True)
def wait_reason(context: Context, reason: dict[str, Any]) -> str:
    """A reason to wait, for who reads the page."""
    return wording.wait_reason(reason, reader=_reader(context))


@register.simple_tag(takes_context=True)
def why_it_waits(context: Context, job: Job, mine: bool) -> SafeString | str:
    """All reasons of a waiting job as a list; what would help only for its owner. In Python, for a page has many."""
    if not job.wait_reasons:
        return headline(context, job)
    reader = _reader(context)
    told = (wording.wait_reason(reason, reader=reader) for reason in job.wait_reasons if mine or not is_way(reason))
    items = "".join(f"<li>{escape(text)}</li>" for text in told)
    return mark_safe(f'<ul class="reasons">{items}</ul>')  # noqa: S308 - each text is escaped


@register.simple_tag(takes_context=True)
def gpu_cell(context: Context, cell: Cell) -> SafeString:
    """A GPU of the dashboard's strip. Here and not in a template: there are hundreds on a page."""
    who = ", ".join(f"{holder.username} #{holder.job}" for holder in cell.holders)
    busy = f" · {cell.busy:.0f} %" if who and cell.busy is not None else ""
    said = escape(who or (wait_reason(context, cell.closed) if cell.closed else _cell_word(cell))) + busy
    bar = _BAR.format(round(cell.busy or 0)) if busy else "" if who else _MARKS.get(cell.kind, _MARKS["free"])
    href = f"/jobs/{cell.job:d}/" if cell.job else "/gpus/"
    return mark_safe(  # noqa: S308 - what people or hosts have named is escaped; the rest is numbers and our own
        f'<a class="cell cell-{cell.kind}" href="{href}" title="GPU {cell.index:d} · {escape(cell.model)} · {said}">'
        f'<span class="visually-hidden">GPU {cell.index:d}: {said}</span>{bar}</a>'
    )


def _cell_word(cell: Cell) -> str:
    return _("no reading") if cell.kind == "unknown" else _("free")


_BAR = '<svg viewBox="0 0 10 100" preserveAspectRatio="none" aria-hidden="true"><rect width="10" height="{}"/></svg>'
_MARKS = {
    kind: format_html('<i class="bi {}" aria-hidden="true"></i>', icon)
    for kind, icon in (("closed", "bi-x-lg"), ("unknown", "bi-question-lg"), ("free", "bi-check-lg"))
}


@register.simple_tag
def put_back(job: Job) -> str:
    """Why a job that ran already waits again."""
    return wording.put_back(job, latest_run(job))


@register.simple_tag
def warning_words(found: dict[str, Any]) -> str:
    return wording.warning(found)


@register.simple_tag
def advice(job: Job) -> wording.Suggestion | None:
    """What to try after a bad end."""
    return wording.suggestion(job, latest_run(job)) if job.state in ENDED else None


@register.filter
def place_words(job: Job, standing: dict[int, int]) -> int | None:
    return standing.get(job.pk)


@register.filter
def spark_of(job: Job, sparks: dict[int, str]) -> str:
    return sparks.get(job.pk, "")


@register.simple_tag
def place(position: int | None, total: int) -> str:
    return wording.place(position, total) if position else ""


@register.simple_tag
def expected(job: Job) -> str:
    """When a waiting job should start, as a range; "" when nobody can say."""
    return wording.expected_start(job.expected_earliest, job.expected_latest)


@register.filter
def gpus_asked(job: Job) -> str:
    """How many GPUs a job asks for: a share of one in words, a range where it is elastic."""
    if job.gpu_milli < WHOLE:
        return wording.gpu_share(job.gpu_milli)
    return f"{job.least_gpus}–{job.gpus}" if job.least_gpus else str(job.gpus)


@register.filter
def percent(part: float) -> str:
    """0.254 as "25 %"."""
    return f"{100 * part:.0f} %"


@register.filter
def waited(job: Job) -> float:
    return history.waited_seconds(job, timezone.now())


@register.filter
def ran(job: Job) -> float | None:
    return history.ran_seconds(job, timezone.now())


@register.filter
def gpu_hours(job: Job) -> str:
    """The GPU-hours that the job has taken; its runs and allocations are prefetched."""
    return f"{history.gpu_seconds(job, timezone.now()) / 3600:.2f}"


@register.filter
def is_live(job: Job) -> bool:
    return job.state in LIVE


@register.filter
def is_ended(job: Job) -> bool:
    return job.state in ENDED


@register.filter
def percent_of_limit(job: Job) -> int | None:
    """How much of its time limit a running job has used, in percent; None without a limit or a start."""
    run = latest_run(job)
    if run is None or run.started_at is None or not job.limit_seconds:
        return None
    return min(round(100 * (timezone.now() - run.started_at).total_seconds() / job.limit_seconds), 100)


@register.filter
def deadline(job: Job) -> datetime | None:
    run = latest_run(job)
    return run.deadline if run is not None and run.started_at is not None else None


@register.filter
def described_by(field: BoundField, has_limit: bool) -> str:
    """The ids of what explains a field, for `aria-describedby`."""
    ids = [(bool(field.help_text), "help"), (has_limit, "limit"), (bool(field.errors), "errors")]
    return " ".join(f"{field.auto_id}-{kind}" for there, kind in ids if there)


@register.simple_tag
def field_input(field: BoundField, has_limit: bool = False) -> str:
    """The field's input with its explanation and its errors tied to it."""
    explained = described_by(field, has_limit)
    attrs: dict[str, Any] = {"aria-describedby": explained} if explained else {}
    if field.errors:
        attrs |= {"aria-invalid": "true", "class": f"{field.field.widget.attrs.get('class', '')} is-invalid".strip()}
    return field.as_widget(attrs=attrs)
