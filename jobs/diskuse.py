"""How much of a disk directories take, by `du`: whatever a user has planted there, and without this process's time."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LONGEST = 600.0  # seconds for one look; a tree that takes longer is of unknown size
Dimension = Literal["bytes", "files"]
_LAST = ("nice", "-n", "19", "ionice", "-c", "3")  # after everybody else


@dataclass(frozen=True)
class Size:
    """`bytes` as they take room on the disk, hard links once and holes not at all; `files` with directories."""

    bytes: int
    files: int

    def beyond(self, most: "Size") -> list[Dimension]:
        """What of it is beyond a limit, of which 0 is none."""
        dimensions: tuple[Dimension, ...] = ("bytes", "files")
        return [name for name in dimensions if 0 < getattr(most, name) < getattr(self, name)]

    def shrinks(self, before: "Size", dimensions: Sequence[Dimension], *, or_stays: bool = False) -> bool:
        """Whether each of these became less; with `or_stays` it is enough that none became more."""
        pairs = [(getattr(self, name), getattr(before, name)) for name in dimensions]
        return all(now < then or (or_stays and now == then) for now, then in pairs)


def measure(paths: Sequence[str]) -> Size | None:
    """Of the directories together, on their own file systems and through no link. None: unknown."""
    if not paths:
        return Size(0, 0)
    sizes, counts = _du(["--block-size=1"], paths), _du(["--inodes"], paths)
    return None if sizes is None or counts is None else Size(sizes, counts)


def _du(options: Sequence[str], paths: Sequence[str]) -> int | None:
    """The sum, also where names vanished meanwhile; None where nothing could be read in time."""
    nice = _LAST if shutil.which("ionice") else _LAST[:3]
    command = [*nice, "du", "--summarize", "--one-file-system", *options, "--", *paths]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LONGEST, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    return sum(int(word) for word in found if word.isdigit()) if found else None
