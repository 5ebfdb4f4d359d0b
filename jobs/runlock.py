"""One process of a host at a time acts on a run: by a lock file, which the kernel frees when its process dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from jobs.models import Run
from jobs.states import RunState


@contextmanager
def lock(run_id: int) -> Iterator[bool]:
    """Whether this process is the one that acts on the run now."""
    folder = settings.SPOOL_DIR / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / f"{run_id}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def forget_locks() -> None:
    """Remove the lock files of runs that have ended: nobody takes one of them any more."""
    files = {int(path.name): path for path in (settings.SPOOL_DIR / "locks").glob("*")}
    for run_id in Run.objects.filter(pk__in=files, state=RunState.ENDED).values_list("pk", flat=True):
        files[run_id].unlink(missing_ok=True)
