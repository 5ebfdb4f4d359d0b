"""Durations and sizes as typed behind an option; what is none is said in the pages' words."""

from collections.abc import Callable

from jobs import units
from portal.cli.failure import Failure
from portal.cli.text import _


def read(option: str, parse: Callable[[str], int], text: str) -> int:
    """What `jobs.units` makes of it. Raises Failure."""
    try:
        return parse(text)
    except units.BadQuantity as error:
        raise Failure(f"{option}: {_(units.WORDS[error.code]) % {'text': error.text}}") from error
