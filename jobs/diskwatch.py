"""What jobs fill the disk of this host with, against the limits of the installation.

Neither overlay2 nor a bind mount bounds it by itself. So it is looked at, as often as that costs little, and a run
that is beyond a limit is stopped; one that goes on until the next look is killed, whatever its grace is.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from django.conf import settings

from jobs import containers, containers_disk, workspace
from jobs.control import wish
from jobs.diskuse import Dimension, Size, measure
from jobs.models import Run
from jobs.states import RunState, Wish
from jobs.stop import kill
from jobs.watch import warn

log = logging.getLogger(__name__)

COSTS_AT_MOST = 0.05  # of the time is spent on looking, shared evenly by the trees
What = Literal["workspace", "scratch"]
Tree = tuple[What, int]  # a user's workspace, or what a run's container writes for itself


def run_disk_watch(
    node_name: str, stopping: threading.Event, guarded: Callable[[str, Callable[[], None]], object]
) -> None:
    """Look every DISK_PERIOD, until `stopping`."""
    watch = DiskWatch()
    while not stopping.wait(settings.DISK_PERIOD):
        guarded("disk watch", lambda: watch.look(node_name))


@dataclass(frozen=True)
class Look:
    """At a tree: its size, as long ago as it was known; the runs that wrote there; when it is due again."""

    size: Size | None
    runs: frozenset[int]
    due: float


class DiskWatch:
    """Remembers its last look at each tree: whoever has too much already may still run a job that deletes.

    A tree that takes long, or too long to be measured, is looked at more seldom, and no other because of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Tree, Look] = {}

    def look(self, node_name: str) -> None:
        """Stop each run of this host that is beyond a limit."""
        runs = Run.objects.filter(node__name=node_name, state__in=(RunState.RUNNING, RunState.STOPPING))
        trees: dict[Tree, list[Run]] = defaultdict(list)
        for run in runs.select_related("job", "node"):
            for tree in _written_by(run):
                trees[tree].append(run)
        self._last = {tree: last for tree, last in self._last.items() if tree in trees or tree[0] == "workspace"}
        for tree, writers in trees.items():
            if tree not in self._last or self._last[tree].due <= self._clock():
                self._judge(tree, writers, COSTS_AT_MOST / len(trees))

    def _judge(self, tree: Tree, runs: Sequence[Run], costs_at_most: float) -> None:
        began, last, most = self._clock(), self._last.get(tree), _most(tree[0])
        size = _measured(tree, runs)
        stopped = size is not None and self._stopped(tree, runs, size, most)
        now = self._clock()
        due = 0.0 if stopped else now + (now - began) / costs_at_most
        known = size or (last.size if last else None)
        self._last[tree] = Look(known, frozenset(run.pk for run in runs), due)

    def _stopped(self, tree: Tree, runs: Sequence[Run], size: Size, most: Size) -> bool:
        """Whether any run had to be stopped for the size of what it writes to."""
        over, last = size.beyond(most), self._last.get(tree)
        spares = tree[0] == "workspace"  # which is there before a job and after it
        guilty = [run for run in runs if over and not (spares and _is_spared(size, last, run.pk, over))]
        for run in guilty:
            log.warning("run %d is beyond what its %s may take: %s of %s", run.pk, tree[0], size, most)
            warn(run, "DISK_LIMIT", what=tree[0], counts=over[0], size=getattr(size, over[0]),
                 most=getattr(most, over[0]))  # fmt: skip
            if not wish(run, Wish.DISK_LIMIT) and run.state == RunState.STOPPING:
                kill(run.pk)
        return bool(guilty)


def _is_spared(size: Size, last: Look | None, run_id: int, over: Sequence[Dimension]) -> bool:
    """Whether all that is too much becomes less. A run that is new there need not have begun with that."""
    if last is None or last.size is None:
        return True
    return size.shrinks(last.size, over, or_stays=run_id not in last.runs)


def _written_by(run: Run) -> Iterator[Tree]:
    """The trees of a run that have a limit."""
    if _most("scratch") != Size(0, 0):
        yield "scratch", run.pk
    if _most("workspace") != Size(0, 0):
        yield "workspace", run.job.owner_id


def _most(what: What) -> Size:
    if what == "scratch":
        return Size(settings.SCRATCH_BYTES, settings.SCRATCH_FILES)
    return Size(settings.WORKSPACE_BYTES, settings.WORKSPACE_FILES)


def _measured(tree: Tree, runs: Sequence[Run]) -> Size | None:
    """None: unknown."""
    if tree[0] == "workspace":
        return measure([str(workspace.of_user(tree[1]))])
    try:
        return _scratch(runs[0].container_id)
    except (containers.EngineUnavailable, containers.EngineRefused) as error:
        log.warning("run %d: what it writes is not known: %s", runs[0].pk, error)
        return None


def _scratch(container_id: str) -> Size | None:
    """Where the layer can't be seen, its bytes are as the engine counts them, and its files are not known."""
    own = containers_disk.own(container_id)
    if own is None:
        return Size(0, 0)
    if own.layer:
        return measure([own.layer, *own.volumes])
    volumes = measure(own.volumes)
    return volumes and Size(volumes.bytes + containers_disk.layer_bytes(container_id), volumes.files)
