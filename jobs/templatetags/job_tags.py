"""Template names of `jobs.looks`."""

from django import template

from jobs.looks import state_look

register = template.Library()
register.filter("state_look", state_look)
