"""Who holds each GPU. The jobs side knows, and says at the start how to ask it: this app knows nothing of jobs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A job that a GPU, or a share of it, is given to, in the database: true with and without readings."""

    job: int
    owner: str
    job_name: str | None  # None: not for this reader


Finder = Callable[[], dict[int, list[Holder]]]
Seer = Callable[[Any, Collection[int]], set[int]]
_sources: list[tuple[Finder, Seer]] = []


def register(finder: Finder, seer: Seer) -> None:
    """Ask these two from now on: `finder()` gives every held GPU's holders, by its primary key, with their names;
    `seer(reader, jobs)` says which of the jobs' names are for this reader.
    """  # fmt: skip
    _sources.append((finder, seer))


def holders() -> dict[int, list[Holder]]:
    """GPU primary key to its holders: several where the GPU is shared. Names are for `seen_by` to allow."""
    return {gpu: held for finder, _seer in _sources for gpu, held in finder().items()}


def seen_by(reader: Any, jobs: Collection[int]) -> frozenset[int]:
    """Those of the jobs whose names the reader may see."""
    return frozenset(job for _finder, seer in _sources for job in seer(reader, jobs))
