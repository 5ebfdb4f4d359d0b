"""All nodes of one pass, those with equal rooms together. Every change goes through here. Pure."""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from jobs.policy.demand import Demand
from jobs.policy.ledger import Kind, Ledger
from jobs.policy.market import gpus_of
from jobs.policy.outlook import Outlook
from jobs.policy.rooms import Room, room_of
from jobs.policy.view import Gpu, Node, Running, Waiting

Score = tuple[object, ...]
MOST_GONE = 8  # groups that were given up and are not forgotten
SEEN_MORE, FREE_LESS = 1.5, 0.6  # factors at which the outlook is made anew: of requests seen, and of free GPUs


class Group:
    """The nodes that have one room, in the order they came to it."""

    def __init__(self, room: Room, number: int) -> None:
        self.room, self.number, self.largest, self.gpus = room, number, room.largest, room.gpus
        self.ledgers: dict[str, Ledger] = {}  # by node name; when the last one leaves, the group is given up
        self._worth: tuple[Outlook, float] | None = None
        self.most = 0, 0  # CPUs and memory: no node has more

    @property
    def one(self) -> Ledger:
        """Any of them; there must be one."""
        return next(iter(self.ledgers.values()))

    def enter(self, ledger: Ledger) -> None:
        self.ledgers[ledger.node.name] = ledger
        self.most = max(self.most[0], ledger.millicpus), max(self.most[1], ledger.memory_mib)

    def fitting(self, job: Waiting) -> Ledger | None:
        """The first node on which the job fits exactly."""
        cpus, memory = job.millicpus, job.memory_mib
        if cpus > self.most[0] or memory > self.most[1]:
            return None
        ledgers = self.ledgers.values()
        for ledger in ledgers:
            if cpus <= ledger.millicpus and memory <= ledger.memory_mib and ledger.fits(job):
                return ledger
        self.most = max(here.millicpus for here in ledgers), max(here.memory_mib for here in ledgers)
        return None

    def worth(self, outlook: Outlook) -> float:
        """Of the room."""
        if self._worth is None or self._worth[0] is not outlook:
            self._worth = outlook, outlook.worth(self.room)
        return self._worth[1]

    def bounds(self) -> "Bounds":
        """What a job must not pass, else it fits on none of the nodes."""
        room = self.room
        return self.largest, room.millicpus + room.steps[0], room.memory_mib + room.steps[1], self


Bounds = tuple[float, int, int, Group]  # GPUs up to, CPUs and memory below


def _size(gpus: float) -> int:
    """A class of groups by their largest room: the larger, the higher."""
    return int(gpus * 8)


class _Ranking:
    """Groups as one shape of job would have them, best first, as far as they were looked at."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}  # how many groups of each size
        self.slots: dict[Kind, int] = {}  # see `Room.could`
        self.ranked: list[tuple[Score, int, Group]] = []
        self.unranked: list[Group] = []  # at most one, and none beside ranked ones: nothing to choose

    def add(self, entries: list[tuple[Score, int, Group]]) -> None:
        if len(entries) > len(self.ranked) // 8:
            self.ranked += entries
            self.ranked.sort()
        else:
            for entry in entries:
                insort(self.ranked, entry)

    def first(self, job: Waiting) -> Ledger | None:
        """The best node that the job fits exactly. Groups that were given up are forgotten."""
        gone, found = 0, None
        for entry in self.ranked:
            group = entry[2]
            if not group.ledgers:
                gone += 1
            elif (found := group.fitting(job)) is not None:
                break
        if found is None and self.unranked:
            found = self.unranked[0].fitting(job)
        self._forget(gone)
        return found

    def _forget(self, gone: int) -> None:
        if gone > MOST_GONE:
            self.ranked = [entry for entry in self.ranked if entry[-1].ledgers]


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
        self._made = 0
        self._came: dict[int, list[Bounds]] = defaultdict(list)  # by size, all since the outlook was made
        self._rankings: dict[object, _Ranking] = {}
        self._outlook: Outlook | None = None
        self._known = 0, 0.0  # requests, and free GPUs, when the outlook was made
        self._free = 0.0
        for ledger in self.ledgers:
            self._enter(ledger)

    @property
    def outlook(self) -> Outlook:
        """What free GPUs are worth, by the demand and what is free."""
        if self._outlook is None:
            groups = self._groups.values()
            self._outlook = Outlook(self.demand, [(group.room, len(group.ledgers)) for group in groups])
            self._known = self.demand.total, self._free
        return self._outlook

    def _look_anew(self) -> None:
        """Forget all scores once demand, or what is free, is no longer much as it was when the outlook was made."""
        requests, free = self._known
        alike = self.demand.total <= requests * SEEN_MORE and free * FREE_LESS <= self._free <= free / FREE_LESS
        if self._outlook is None or alike:
            return
        self._outlook = None
        self._rankings.clear()
        self._came.clear()
        for group in self._groups.values():
            self._came[_size(group.largest)].append(group.bounds())

    def fitting(self, job: Waiting) -> Iterator[Ledger]:
        """The nodes where the job could start now."""
        gpus, cpus, memory, slots = gpus_of(job), job.millicpus, job.memory_mib, dict[Kind, int]()
        for group in self._groups.values():
            if gpus > group.largest or cpus > group.most[0] or memory > group.most[1]:
                continue
            if group.room.could(job, slots):
                for ledger in group.ledgers.values():
                    if cpus <= ledger.millicpus and ledger.fits(job):
                        yield ledger

    def fits_anywhere(self, job: Waiting) -> bool:
        return any(True for _ in self.fitting(job))

    def best(self, job: Waiting, score: Callable[[Group], Score], *, key: object) -> Ledger | None:
        """The node of the smallest score on which the job fits; scores must not differ for jobs of one `key`."""
        self._look_anew()
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = _Ranking()
        groups = self._new(job, ranking.seen, ranking.slots)
        if ranking.unranked:
            groups = [*(group for group in ranking.unranked if group.ledgers), *groups]
            ranking.unranked = []
        if len(groups) == 1 and not ranking.ranked:
            ranking.unranked = groups
        else:
            ranking.add([(score(group), group.number, group) for group in groups])
        return ranking.first(job)

    def _new(self, job: Waiting, seen: dict[int, int], slots: dict[Kind, int]) -> list[Group]:
        """Groups that may have a node for the job, but for those seen before; most are told by three numbers."""
        gpus, millicpus, memory_mib = gpus_of(job), job.millicpus, job.memory_mib
        least, found = _size(gpus), list[Group]()
        for size, came in self._came.items():
            if size < least or len(came) == (first := seen.get(size, 0)):
                continue
            found += [
                group for largest, cpus, memory, group in (came[first:] if first else came)
                if memory_mib < memory and millicpus < cpus and gpus <= largest and group.ledgers
            ]  # fmt: skip
            seen[size] = len(came)
        return [group for group in found if group.room.could(job, slots)] if job.gpus or job.labels else found

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

    def _enter(self, ledger: Ledger) -> None:
        if ledger.node.closed is not None:
            return
        room = room_of(ledger)
        group = self._groups.get(room)
        if group is None:
            group = self._groups[room] = Group(room, self._made)
            self._made += 1
            self._came[_size(group.largest)].append(group.bounds())
        group.enter(ledger)
        self._rooms[ledger.node.name] = room
        self._free += group.gpus

    def _leave(self, ledger: Ledger) -> None:
        room = self._rooms.pop(ledger.node.name, None)
        if room is not None:
            group = self._groups[room]
            del group.ledgers[ledger.node.name]
            if not group.ledgers:
                del self._groups[room]
            self._free -= group.gpus
