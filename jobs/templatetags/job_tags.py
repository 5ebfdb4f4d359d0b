"""Template names of `jobs.looks`."""

from django import template

from jobs.looks import cannot_start, state_look

register = template.Library()
register.filter("state_look", state_look)
register.filter("cannot_start", cannot_start)
