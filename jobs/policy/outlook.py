"""What a node's free GPUs are worth: how much of them requests like those seen are expected to use. Pure.

Imagine as many requests as would fill what is free, drawn from the demand, and each sent to a GPU that could take
it, with equal chances. A node then sees a short stream of requests. Let it fill itself as well as it can: what
stays free is its fragmentation, whether slots, CPUs or memory beside them are too few. Scarce GPUs see more
requests for each of them, and so are worth more; so are whole nodes where requests of that size come. Akin to
"fragmentation gradient descent" (FGD, USENIX ATC 2023), which looks one request ahead.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from random import Random
from typing import NamedTuple

from jobs.policy.demand import Demand
from jobs.policy.ledger import Kind, least, shares, slots_of
from jobs.policy.market import Ask, Cell, Market
from jobs.policy.rooms import Lot, Room

STREAMS = 16  # imagined for each kind of GPU
PART = 0.5  # of the requests that would fill what is free: those beyond find the best places gone
CHOICE = 8  # requests more in each stream, since a node gets those that suit it best


_WHOLE = itemgetter(0)  # of an offer


class Offer(NamedTuple):
    """A request as a node of one kind of GPU sees it: whole GPUs, or else slots of one."""

    whole: int
    slots: int
    millicpus: int
    memory_mib: int
    worth: float


class Outlook:
    """Fixed for one demand and one state of the nodes, given as rooms and how many nodes have each."""

    def __init__(self, demand: Demand, rooms: Sequence[tuple[Room, int]]) -> None:
        self._market = Market([pair for pair in demand if pair[0].gpus], rooms)
        self._streams: dict[Cell, _Streams] = {}
        self._worth: dict[tuple[object, ...], float] = {}

    def worth(self, room: Room) -> float:
        """In GPUs."""
        lots = [lot for lot in room.lots if lot.free]
        if len(lots) == 1:
            return self._lot(room, lots[0], 1.0)
        free = room.gpus
        return sum(self._lot(room, lot, lot.gpus / free) for lot in lots)

    def loss(self, room: Room, worth: float, left: Room) -> float:
        """What a room of this worth loses when only so much of it is left. Where no request fits, none will."""
        if not worth and len(room.lots) == 1:
            return 0.0
        return worth - self.worth(left)

    def _lot(self, room: Room, lot: Lot, part: float) -> float:
        """CPUs and memory are divided among a node's kinds of GPU by what is free of each."""
        return self.lot(lot, room.labels, int(room.millicpus * part), int(room.memory_mib * part))

    def lot(self, lot: Lot, labels: frozenset[str], millicpus: int, memory_mib: int) -> float:
        """The worth of GPUs on a node that has nothing else free but these CPUs and this memory."""
        if not lot.free:
            return 0.0
        key = lot, labels, millicpus, memory_mib
        found = self._worth.get(key)
        if found is None:
            found = self._worth[key] = self._streams_of((labels, lot.kind)).filled(lot, millicpus, memory_mib)
        return found

    def _streams_of(self, cell: Cell) -> "_Streams":
        if cell not in self._streams:
            self._streams[cell] = _Streams((_offer(found, cell[1]), found.rate) for found in self._market.asks(cell))
        return self._streams[cell]


def _offer(ask: Ask, kind: Kind) -> Offer:
    job, worth = ask.job, ask.gpus * ask.urgency
    if shares(job):
        return Offer(0, slots_of(job, kind.gpu), job.millicpus, job.memory_mib, worth)
    return Offer(least(job), kind.slots, job.millicpus, job.memory_mib, worth)


class _Streams:
    """The imagined requests of one kind of GPU, by their rates for each GPU. Nothing is left to chance: seeded.

    At each place in the streams, all of them together show the demand as it is (a Latin hypercube).
    """

    def __init__(self, rates: Iterable[tuple[Offer, float]]) -> None:
        merged: dict[Offer, float] = defaultdict(float)
        for offer, rate in rates:
            merged[offer] += rate
        self._offers = sorted(merged, key=lambda offer: (-offer.whole, -offer.slots, -offer.millicpus, offer))
        self._sums = list(accumulate(merged[offer] for offer in self._offers))
        self._come: list[list[Offer]] = [[] for _ in range(STREAMS)]
        self._cut: dict[tuple[int, int], list[list[Offer]]] = {}

    def filled(self, lot: Lot, millicpus: int, memory_mib: int) -> float:
        """The worth of the requests that the lot takes, on average."""
        if not self._offers:
            return 0.0
        length = PART * self._sums[-1] * lot.gpus + CHOICE
        streams = self._first(int(length * STREAMS), 0 if lot.whole else lot.free[-1])
        fill = _fill_one if len(lot.free) == 1 and not lot.whole else _fill
        return sum([fill(lot, millicpus, memory_mib, come) for come in streams if come]) / STREAMS

    def _first(self, requests: int, most: int) -> list[list[Offer]]:
        """The first so many requests of all streams together; only shares up to `most` slots, if that is not 0.

        In each, large ones come first, and shares of a GPU in their order.
        """
        if (requests, most) not in self._cut:
            lengths = [(requests + number) // STREAMS for number in range(STREAMS)]
            self._draw(lengths[-1])
            cut = [come[:length] for come, length in zip(self._come, lengths, strict=True)]
            self._cut[requests, most] = [
                [offer for offer in come if not offer.whole and offer.slots <= most] if most
                else sorted(come, key=_WHOLE, reverse=True)
                for come in cut
            ]  # fmt: skip
        return self._cut[requests, most]

    def _draw(self, length: int) -> None:
        """So many requests in each stream."""
        sums, offers, last = self._sums, self._offers, len(self._offers) - 1
        for come, luck in zip(self._come, _luck(length), strict=True):
            come += [offers[min(bisect_left(sums, part * sums[-1]), last)] for part in luck[len(come) : length]]


def _luck(length: int) -> list[list[float]]:
    """For each stream numbers from 0 to 1, at least so many and always the same. All at one place are spread evenly."""
    return _drawn(1 << length.bit_length())


@cache
def _drawn(length: int) -> list[list[float]]:
    dice = Random(0)  # noqa: S311 - a plan must not depend on luck
    found: list[list[float]] = [[] for _ in range(STREAMS)]
    for _ in range(length):
        order = list(range(STREAMS))
        dice.shuffle(order)
        for place, come in zip(order, found, strict=True):
            come.append((place + dice.random()) / STREAMS)
    return found


def _fill(lot: Lot, millicpus: int, memory_mib: int, come: Iterable[Offer]) -> float:
    """The worth of the requests that fit, if they come in this order; a share goes to the fullest GPU with room."""
    full, free, taken = lot.kind.slots, list(lot.free), 0.0
    for gpus, slots, cpus, memory, worth in come:
        if cpus > millicpus or memory > memory_mib:
            continue
        if gpus:
            if gpus > len(free) or free[-gpus] < full:
                continue
            del free[-gpus:]
        else:
            place = bisect_left(free, slots)
            if place == len(free):
                continue
            rest = free.pop(place) - slots
            if rest:
                insort(free, rest)
        taken += worth
        if not free:
            break
        millicpus -= cpus
        memory_mib -= memory
    return taken


def _fill_one(lot: Lot, millicpus: int, memory_mib: int, come: Iterable[Offer]) -> float:
    """As `_fill`, of a single GPU that is taken in part, which none but shares come to."""
    free, taken = lot.free[0], 0.0
    for _gpus, slots, cpus, memory, worth in come:
        if slots <= free and cpus <= millicpus and memory <= memory_mib:
            taken += worth
            free -= slots
            if not free:
                break
            millicpus -= cpus
            memory_mib -= memory
    return taken
