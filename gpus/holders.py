"""Who holds each GPU. The jobs side knows, and says at the start how to ask it: this app knows nothing of jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The job that a GPU is given to, in the database: true with and without readings."""

    job: int
    owner: str
    job_name: str | None  # None: not for this reader


Finder = Callable[[Any], dict[int, Holder]]
_finders: list[Finder] = []


def register(finder: Finder) -> None:
    """Ask `finder(reader)` from now on: GPU primary key to its holder, for every GPU that has one."""
    _finders.append(finder)


def holders(reader: Any) -> dict[int, Holder]:
    """GPU primary key to its holder as this reader may see it."""
    return {gpu: holder for finder in _finders for gpu, holder in finder(reader).items()}
