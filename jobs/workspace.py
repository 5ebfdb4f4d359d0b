"""A user's files: `WORKSPACE_ROOT/<owner>/` is `/workspace` in their containers, `jobs/<job>/` in it the job's own.

Everything below the owner's directory belongs to the owner, who may plant links, pipes and names there while
we look. So every step is taken from an open directory, one name at a time, and never through a link.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

from jobs.models import Job

MOST_FILES = 1000
MOST_LOOKED_AT = 20_000  # directory entries, so that a tree of a million names costs no more than a second
DEEPEST = 12

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO opens at once, and is then refused


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A regular file that a job left: its path below the job's folder, its size in bytes, when it was last written."""

    path: str
    size: int
    modified: datetime


def of_user(owner_id: int) -> Path:
    """What `/workspace` of this user's containers is on the host."""
    return Path(settings.WORKSPACE_ROOT) / str(owner_id)


def prepare(job: Job, uid: int, gid: int) -> Path:
    """Make the job's folder and those above it, owned by `uid` and `gid`; returns the directory to mount.

    Idempotent. Raises OSError, with the name at which it stopped, when something else than a directory is
    in the way: what the user put there is neither followed nor removed.
    """
    root = Path(settings.WORKSPACE_ROOT)
    root.mkdir(parents=True, exist_ok=True, mode=0o711)
    with _opened(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        fd = os.dup(above)
        for name in (str(job.owner_id), "jobs", str(job.pk)):
            with _opened(fd) as parent:
                fd = _make_owned(parent, name, uid, gid)
        os.close(fd)
    return of_user(job.owner_id)


def job_files(job: Job) -> list[Entry]:
    """The regular files in the job's folder, by path: at most MOST_FILES of them, DEEPEST levels down."""
    found: list[Entry] = []
    with suppress(OSError), _job_directory(job) as fd:
        for entry in _walk(fd, "", [MOST_LOOKED_AT], DEEPEST):
            found.append(entry)
            if len(found) == MOST_FILES:
                break
    return sorted(found, key=lambda entry: entry.path)


def open_file(job: Job, relpath: str) -> BinaryIO:
    """A regular file of the job's folder, open for reading in binary.

    Raises FileNotFoundError for everything else: no such name, a link anywhere on the way, a directory, a
    pipe or device, a way out of the folder, a file that this process may not read.
    """
    names = relpath.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise FileNotFoundError(relpath)
    try:
        with _job_directory(job) as folder:
            return _open_regular(folder, names)
    except OSError as error:
        raise FileNotFoundError(relpath) from error


@contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _make_owned(parent: int, name: str, uid: int, gid: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        found = os.fstat(fd)
        if (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(fd, uid, gid)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def _job_directory(job: Job) -> Iterator[int]:
    fd = os.open(settings.WORKSPACE_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in (str(job.owner_id), "jobs", str(job.pk)):
        with _opened(fd) as parent:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
    with _opened(fd):
        yield fd


def _walk(fd: int, prefix: str, budget: list[int], deepest: int) -> Iterator[Entry]:
    """Regular files below the open directory `fd`; `budget` counts down what may still be looked at."""
    with os.scandir(fd) as names:
        for item in names:
            budget[0] -= 1
            if budget[0] < 0:
                return
            with suppress(OSError):
                if item.is_dir(follow_symlinks=False):
                    if deepest > 1:
                        with _opened(os.open(item.name, _DIRECTORY, dir_fd=fd)) as below:
                            yield from _walk(below, f"{prefix}{item.name}/", budget, deepest - 1)
                elif item.is_file(follow_symlinks=False):
                    yield _entry(prefix + item.name, item.stat(follow_symlinks=False))


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(path=path, size=found.st_size, modified=datetime.fromtimestamp(found.st_mtime, UTC))


def _open_regular(folder: int, names: list[str]) -> BinaryIO:
    fd = os.dup(folder)
    for name in names[:-1]:
        with _opened(fd) as parent:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
    with _opened(fd) as parent:
        fd = os.open(names[-1], _FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(names[-1])
    return os.fdopen(fd, "rb")
