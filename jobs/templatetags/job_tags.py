"""Template names of `jobs.looks`."""

from django import template

from jobs.looks import Output, cannot_start, output, state_look
from jobs.models import Job
from jobs.wording.states import latest_run

register = template.Library()
register.filter("state_look", state_look)
register.filter("cannot_start", cannot_start)


@register.filter
def output_of(job: Job) -> Output | None:
    """How far the job's program says that it is."""
    return output(job, latest_run(job))
