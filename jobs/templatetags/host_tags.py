"""`jobs.wording` of hosts, in templates."""

from typing import Any

from django import template

from jobs import wording

register = template.Library()
register.filter("host_state", wording.host_state)
register.filter("host_event", wording.host_event)
register.filter("size", wording.memory)


@register.filter
def skew(seconds: float | str | None) -> str:
    """How far a host's clock is off; a template has an empty text for what is not there."""
    return wording.clock_skew(seconds if isinstance(seconds, (int, float)) else None)


@register.filter
def host_problem(found: tuple[str, dict[str, Any]]) -> str:
    return wording.host_problem(*found)
