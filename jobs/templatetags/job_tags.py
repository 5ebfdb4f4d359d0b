"""Template names of `jobs.looks`."""

from collections.abc import Mapping
from functools import lru_cache

from django import template
from django.template.loader import render_to_string
from django.utils.translation import get_language

from jobs.looks import Output, cannot_start, idle, output, state_look
from jobs.models import Job
from jobs.receipt import Used
from jobs.wording.receipts import busy
from jobs.wording.states import latest_run

register = template.Library()
register.filter("state_look", state_look)
register.filter("cannot_start", cannot_start)


@register.simple_tag
def state_chip(state: str) -> str:
    """`partials/state.html`, made once for each state and language: a page has as many as it has jobs."""
    return _chip(state, get_language())


@lru_cache(maxsize=64)
def _chip(state: str, _language: str) -> str:
    return render_to_string("partials/state.html", {"state": state})


@register.filter
def busy_of(used: Mapping[int, Used], job: Job) -> str:
    """How busy the job's GPUs were; empty where it had none, or nobody knows."""
    found = used.get(job.pk)
    return busy(found) if found is not None else ""


@register.filter
def output_of(job: Job) -> Output | None:
    """How far the job's program says that it is."""
    return output(job, latest_run(job))


@register.filter
def idle_of(job: Job) -> str:
    """That the job's GPUs do nothing, and since when."""
    return idle(job, latest_run(job))
