"""What jobs fill the disk of this host with, against the limits of the installation.

Neither overlay2 nor a bind mount bounds it by itself. So it is looked at, as often as that costs little, and a run
that is beyond a limit is stopped; one that goes on until the next look is killed, whatever its grace is.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from django.conf import settings

from jobs import containers, workspace
from jobs.control import wish
from jobs.diskuse import Size, measure
from jobs.models import Run
from jobs.states import RunState, Wish
from jobs.watch import warn

log = logging.getLogger(__name__)

COSTS_AT_MOST = 0.05  # of the time is spent on looking
What = Literal["workspace", "scratch"]


def run_disk_watch(
    node_name: str, stopping: threading.Event, guarded: Callable[[str, Callable[[], None]], None]
) -> None:
    """Look every DISK_PERIOD, and less often where a look takes long, until `stopping`."""
    watch, pause = DiskWatch(), settings.DISK_PERIOD
    while not stopping.wait(pause):
        began = time.monotonic()
        guarded("disk watch", lambda: watch.look(node_name))
        pause = max(settings.DISK_PERIOD, (time.monotonic() - began) / COSTS_AT_MOST)


class DiskWatch:
    """Remembers the last look at each user's files: whoever has too many already may still run a job that deletes."""

    def __init__(self) -> None:
        self._before: dict[int, Size] = {}

    def look(self, node_name: str) -> None:
        """Stop each run of this host that is beyond a limit. Raises EngineUnavailable."""
        runs = Run.objects.filter(node__name=node_name, state__in=(RunState.RUNNING, RunState.STOPPING))
        found: dict[int, Size] = {}
        for run in runs.select_related("job", "node"):
            for what, size, most in self._beyond(run, found):
                self._stop(run, what, size, most)
        self._before = found

    def _beyond(self, run: Run, found: dict[int, Size]) -> Iterator[tuple[What, Size, Size]]:
        most = Size(settings.SCRATCH_BYTES, settings.SCRATCH_FILES)
        size = measure(containers.own_paths(run.container_id)) if most != Size(0, 0) else None
        if size is not None and size.exceeds(most):
            yield "scratch", size, most
        most, owner = Size(settings.WORKSPACE_BYTES, settings.WORKSPACE_FILES), run.job.owner_id
        if most != Size(0, 0) and owner not in found:
            measured = measure([str(workspace.of_user(owner))])
            if measured is not None:
                found[owner] = measured
        if owner in found and found[owner].exceeds(most) and not self._shrinks(owner, found[owner]):
            yield "workspace", found[owner], most

    def _shrinks(self, owner: int, now: Size) -> bool:
        """Whether it became less since the last look; what was never looked at gets another chance."""
        before = self._before.get(owner)
        return before is None or now.bytes < before.bytes or now.files < before.files

    def _stop(self, run: Run, what: What, size: Size, most: Size) -> None:
        log.warning("run %d is beyond what its %s may take: %s of %s", run.pk, what, size, most)
        counts = "bytes" if most.bytes and size.bytes > most.bytes else "files"
        warn(run, "DISK_LIMIT", what=what, counts=counts, size=getattr(size, counts), most=getattr(most, counts))
        if not wish(run, Wish.DISK_LIMIT) and run.state == RunState.STOPPING:
            containers.kill(run.container_id, "SIGKILL")
