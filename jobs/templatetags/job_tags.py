"""Template names of `jobs.looks` and of the quantities of `jobs.wording`."""

from django import template

from jobs import wording
from jobs.looks import state_look

register = template.Library()
register.filter("state_look", state_look)


@register.filter
def say_gpus(count: int) -> str:
    """As "1 GPU", "2 GPUs"."""
    return wording.gpus(count)


@register.filter
def say_cpus(millicpus: float | None) -> str:
    """Thousandths as "1 CPU", "1.5 CPUs"; a dash for None."""
    return "–" if millicpus is None else wording.cpus(millicpus)
