"""Who holds each GPU. The jobs side knows, and says at the start how to ask it: this app knows nothing of jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A job that a GPU, or a share of it, is given to, in the database: true with and without readings."""

    job: int
    owner: str
    job_name: str | None  # None: not for this reader


Finder = Callable[[Any], dict[int, list[Holder]]]
_finders: list[Finder] = []


def register(finder: Finder) -> None:
    """Ask `finder(reader)` from now on: GPU primary key to its holders, for every GPU that has some."""
    _finders.append(finder)


def holders(reader: Any) -> dict[int, list[Holder]]:
    """GPU primary key to its holders as this reader may see them: several where the GPU is shared."""
    return {gpu: held for finder in _finders for gpu, held in finder(reader).items()}
