"""Durations and sizes as typed behind an option; what is none is said in the pages' words."""

from collections.abc import Callable

from jobs import units
from portal.cli.failure import Failure
from portal.cli.text import _

_WORDS: dict[str, Callable[[dict[str, str]], str]] = {
    "BAD_DURATION": lambda p: _('"%(text)s" is no duration; write it as 30m, 2h or 1d 4h.') % p,
    "BAD_SIZE": lambda p: _('"%(text)s" is no size of memory; write it as 512 MiB or 16 GiB.') % p,
    "BAD_CPUS": lambda p: _('"%(text)s" is no number of CPUs; write it as 4 or 0.5.') % p,
    "QUANTITY_LARGE": lambda p: _('"%(text)s" is larger than can be stored.') % p,
}


def read(option: str, parse: Callable[[str], int], text: str) -> int:
    """What `jobs.units` makes of it. Raises Failure."""
    try:
        return parse(text)
    except units.BadQuantity as error:
        raise Failure(f"{option}: {_WORDS[error.code]({'text': error.text})}") from error
