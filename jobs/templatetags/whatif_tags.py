"""Numbers of a what-if, in templates."""

from django import template

from jobs.whatifwords import percent, seconds

register = template.Library()
register.filter("seconds_words", seconds)
register.filter("percent_words", percent)
