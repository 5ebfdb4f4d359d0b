"""All nodes of one pass, those with equal rooms together. Every change goes through here. Pure."""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence

from jobs.policy.demand import Demand
from jobs.policy.ledger import Ledger
from jobs.policy.market import gpus_of
from jobs.policy.outlook import Outlook
from jobs.policy.rooms import Room, room_of
from jobs.policy.view import Gpu, Node, Running, Waiting

Score = tuple[object, ...]
SEEN_MORE, FREE_LESS = 1.5, 0.6  # the outlook is made anew when so many more requests were seen, or so little is left


class Group:
    """The nodes that have one room, in the order they came to it."""

    def __init__(self, room: Room) -> None:
        self.room, self.largest = room, room.largest
        self.ledgers: dict[str, Ledger] = {}  # by node name; when the last one leaves, the group is given up
        self.below = room.millicpus + room.steps[0], room.memory_mib + room.steps[1]

    @property
    def one(self) -> Ledger:
        """Any of them; there must be one."""
        return next(iter(self.ledgers.values()))


def _could(job: Waiting, groups: Sequence[Group], start: int = 0) -> Iterator[tuple[int, Group]]:
    """Those that may have a node for the job, with their places; most are told by a look at three numbers."""
    gpus, millicpus, memory_mib = gpus_of(job), job.millicpus, job.memory_mib
    for place in range(start, len(groups)):
        group = groups[place]
        if group.largest >= gpus and group.ledgers:
            cpus, memory = group.below
            if millicpus < cpus and memory_mib < memory and group.room.could(job):
                yield place, group


class _Ranking:
    """Groups as one shape of job would have them, best first, as far as they were looked at."""

    def __init__(self) -> None:
        self.seen = 0
        self.ranked: list[tuple[Score, int]] = []  # groups by their place among those that came


class Fleet:
    """The ledgers of all nodes, in the order given. `spread`: teams whose jobs go to the emptiest nodes."""

    def __init__(
        self, nodes: Iterable[Node], *, demand: Demand | None = None, spread: frozenset[int] = frozenset()
    ) -> None:
        self.ledgers = [Ledger(node) for node in nodes]
        self.demand = Demand() if demand is None else demand
        self.spread = spread
        self._rooms: dict[str, Room] = {}  # by node name
        self._groups: dict[Room, Group] = {}
        self._came: list[Group] = []  # all groups there have been since the outlook was made
        self._rankings: dict[object, _Ranking] = {}
        self._outlook: Outlook | None = None
        self._free = 0.0
        for ledger in self.ledgers:
            self._enter(ledger)

    @property
    def outlook(self) -> Outlook:
        """What free GPUs are worth, by the demand and what is free; made anew when either has changed much."""
        found = self._outlook
        if found is None or self.demand.total > found.requests * SEEN_MORE or self._free < found.free * FREE_LESS:
            self._came = list(self._groups.values())
            self._rankings.clear()
            found = self._outlook = Outlook(self.demand, [(group.room, len(group.ledgers)) for group in self._came])
        return found

    def fitting(self, job: Waiting) -> Iterator[Ledger]:
        """The nodes where the job could start now."""
        groups = _could(job, list(self._groups.values()))
        return (ledger for _place, group in groups for ledger in group.ledgers.values() if ledger.fits(job))

    def fits_anywhere(self, job: Waiting) -> bool:
        return any(True for _ in self.fitting(job))

    def best(self, job: Waiting, score: Callable[[Waiting, Ledger, Room], Score], *, key: object) -> Ledger | None:
        """The node of the smallest score on which the job fits; scores must not differ for jobs of one `key`."""
        ranking = self._rankings.setdefault(key, _Ranking())
        ranking.ranked = [entry for entry in ranking.ranked if self._came[entry[1]].ledgers]
        for place, group in _could(job, self._came, ranking.seen):
            insort(ranking.ranked, (score(job, group.one, group.room), place))
        ranking.seen = len(self._came)
        groups = (self._came[place] for _score, place in ranking.ranked)
        return next((ledger for group in groups for ledger in group.ledgers.values() if ledger.fits(job)), None)

    def take(self, ledger: Ledger, job: Waiting) -> tuple[Gpu, ...]:
        """Start the job on a node that it fits."""
        self._leave(ledger)
        gpus = ledger.take(job)
        self._enter(ledger)
        return gpus

    def release(self, ledger: Ledger, run: Running) -> None:
        """The run ends: what it holds is free."""
        self._leave(ledger)
        ledger.release(run)
        self._enter(ledger)

    def hold(self, ledger: Ledger, job: Waiting, runs: Iterable[Running]) -> tuple[Gpu, ...] | None:
        """Give the job what these runs hold before they have ended; None where it won't fit then."""
        self._leave(ledger)
        gpus = ledger.hold(job, runs)
        self._enter(ledger)
        return gpus

    def keep(self, ledger: Ledger, job: Waiting, *, seconds: float | None = None, runs: Iterable[Running] = ()) -> None:
        """Keep the node for the job, which starts there within `seconds` (None: nobody can say), once `runs` ended."""
        ledger.keep(job, seconds=seconds, runs=runs)

    def unkeep(self, ledger: Ledger) -> None:
        ledger.kept = None

    def _enter(self, ledger: Ledger) -> None:
        if ledger.node.closed is not None:
            return
        room = room_of(ledger)
        group = self._groups.get(room)
        if group is None:
            group = self._groups[room] = Group(room)
            self._came.append(group)
        group.ledgers[ledger.node.name] = ledger
        self._rooms[ledger.node.name] = room
        self._free += room.gpus

    def _leave(self, ledger: Ledger) -> None:
        room = self._rooms.pop(ledger.node.name, None)
        if room is not None:
            group = self._groups[room]
            del group.ledgers[ledger.node.name]
            if not group.ledgers:
                del self._groups[room]
            self._free -= room.gpus
