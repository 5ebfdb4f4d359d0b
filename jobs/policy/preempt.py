"""Which runs end, or go elsewhere, so that a blocked job can start. Pure.

GUARANTEE: a team that would stay within its guaranteed GPUs takes back what others have borrowed. A team has
borrowed what it holds beyond its own guarantee, its youngest runs first; one without a guarantee has borrowed
all that it holds. That is worked out anew in each pass and stored nowhere. A borrowed run may always be stopped,
whether its owner called it preemptible or not: that is what borrowing means.
PRIORITY: where `Rules.preempt_lower` is set, a higher class stops runs of lower ones that are preemptible.

Never a run that is stopping already, or that ran for less than `Rules.protected_for`. All victims are on one node;
they are the fewest that will do, then the youngest, and none at all where the job would not fit afterwards.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import combinations, islice
from operator import attrgetter

from jobs.policy import onward
from jobs.policy.guarantee import Guarantees, borrowed
from jobs.policy.kinds import Kinds
from jobs.policy.ledger import Ledger, least
from jobs.policy.view import Running, Snapshot, Waiting

GUARANTEE, PRIORITY = "GUARANTEE", "PRIORITY"
MOST_WINNERS = 16  # jobs that runs are stopped for in one pass; the next pass follows within seconds
MOST_SEARCHES = 32  # kinds of blocked jobs that victims are looked for in vain in one pass
MOST_PROTECTED = 4  # kinds of blocked jobs that are told which run is still protected from them
MOST_TRIALS = 400  # sets of so many victims on one node, before a set that merely has none too many will do
MOST_MOVED = 2  # runs that are moved for one job

Fits = Callable[[Sequence[Running]], bool]  # whether the job fits once these have gone


@dataclass(frozen=True)
class Way:
    """How a job gets room: on this node, once these runs have gone."""

    ledger: Ledger
    victims: tuple[Running, ...]
    why: str = ""


class Preempting:
    """Who may be stopped for whom, in one pass."""

    def __init__(
        self, snapshot: Snapshot, ledgers: Sequence[Ledger], guarantees: Guarantees, kinds: Kinds
    ) -> None:  # fmt: skip
        self._snapshot, self._rules, self._running, self._kinds = snapshot, snapshot.rules, snapshot.running, kinds
        self._known_to_go_on: dict[int, bool] = {}
        self._protected_since = snapshot.now - timedelta(seconds=snapshot.rules.protected_for)
        self._ledgers = {ledger.node.name: ledger for ledger in ledgers}
        self._guarantees = guarantees
        self._gone = {run.run for run in snapshot.running if run.stopping or run.makes_way_for is not None}
        self._candidates: dict[tuple[str, int], list[Running]] = {}
        self._in_vain: set[object] = set()
        self._protecting: dict[object, Running | None] = {}
        self._told: set[object] = set()  # shapes of those
        self._winners = 0

    @property
    def is_over(self) -> bool:
        """Whether no more ways are found in this pass."""
        return self._winners >= MOST_WINNERS

    def way(self, job: Waiting, *, entitled: bool) -> Way | None:
        """The runs to stop for a job that nothing but room holds back; None when there are none that would do."""
        found = self._search(job, GUARANTEE, job.team) if entitled else None
        if found is None and self._rules.preempt_lower:
            found = self._search(job, PRIORITY, job.priority)
        return found

    def take(self, way: Way) -> None:
        """Count the victims as gone."""
        self._gone.update(run.run for run in way.victims)
        self._winners += 1
        if way.why != GUARANTEE:  # its team has less now, and so has borrowed less
            self._candidates = {key: runs for key, runs in self._candidates.items() if key[0] == PRIORITY}

    def protected(self, job: Waiting, *, entitled: bool) -> Running | None:
        """The last run to lose its protection, of those that will be the first that may be stopped for the job.

        None where no protected runs stand in its way. Asked at the end of a pass, of jobs that no way was found for.
        """
        if not self.some_protected:
            return None
        whys = ((GUARANTEE, job.team),) if entitled else ()
        if self._rules.preempt_lower:
            whys = (*whys, (PRIORITY, job.priority))
        found = [run for why, who in whys if (run := self._oldest_way(job, why, who)) is not None]
        return min(found, key=_age, default=None)

    def tells_of(self, job: Waiting) -> bool:
        """Whether `protected` may have something to tell the job: not all are told."""
        return len(self._protecting) < MOST_PROTECTED or job.shape in self._told

    @cached_property
    def some_protected(self) -> bool:
        """Whether any run is protected still."""
        return bool(self._youngest) and self._protected(self._youngest[0])

    def _oldest_way(self, job: Waiting, why: str, who: int) -> Running | None:
        """Of the runs that would have to be stopped on one node the youngest, where that is longest ago."""
        key = why, who, job.shape
        if key not in self._protecting:
            if len(self._protecting) >= MOST_PROTECTED:
                return None
            runs = list(self._borrowed(who) if why == GUARANTEE else self._lower(who))[::-1]
            ways = list(self._by_node(job, runs)) if runs and self._protected(runs[-1]) else []
            ways = [(ledger, here) for ledger, here in ways if self._protected(here[-1])]  # else it was tried before
            gone = (fewest(job, ledger, here, most=len(here)) for ledger, here in ways)
            last = [max(victims, key=_age) for victims in gone if victims]
            self._protecting[key] = min(filter(self._protected, last), key=_age, default=None)
            self._told.add(job.shape)
        return self._protecting[key]

    def _search(self, job: Waiting, why: str, who: int) -> Way | None:
        """Whose victims were looked for in vain need not look again: what may be stopped only gets less in a pass."""
        key = why, who, job.shape
        if key in self._in_vain or len(self._in_vain) >= MOST_SEARCHES:
            return None
        if (why, who) not in self._candidates:
            found = self._borrowed(who) if why == GUARANTEE else self._lower(who)
            self._candidates[why, who] = [run for run in found if not self._protected(run)]
        way = self._best(job, self._candidates[why, who], why)
        if way is None:
            self._in_vain.add(key)
        return way

    def _borrowed(self, team: int) -> Iterator[Running]:
        """What the other teams hold beyond their guarantees, youngest first."""
        runs = [run for run in self._youngest if run.team != team and run.milli and run.run not in self._gone]
        return borrowed(runs, self._guarantees.of)

    def _lower(self, priority: int) -> Iterator[Running]:
        """What a class may stop, youngest first."""
        return (run for run in self._preemptible if run.priority < priority and run.run not in self._gone)

    @cached_property
    def _preemptible(self) -> list[Running]:
        return [run for run in self._youngest if run.preemptible]

    @cached_property
    def _youngest(self) -> list[Running]:
        return sorted(self._running, key=attrgetter("since", "run"), reverse=True)

    def _protected(self, run: Running) -> bool:
        return run.since > self._protected_since

    def _best(self, job: Waiting, runs: Sequence[Running], why: str) -> Way | None:
        """One victim if one will do, the youngest; else the fewest of any node."""
        for run in runs:
            ledger = None if run.run in self._gone else self._ledgers.get(run.node)
            if ledger is not None and _is_open(ledger, job) and _fits_without(job, ledger, (run,)):
                return Way(ledger, (run,), why)
        best: Way | None = None
        for ledger, here in self._by_node(job, [run for run in runs if run.run not in self._gone]):
            victims = fewest(job, ledger, here, most=len(best.victims) if best else len(here))
            if victims and (best is None or _rank(victims) < _rank(best.victims)):
                best = Way(ledger, victims, why)
        return best

    def _by_node(self, job: Waiting, runs: Iterable[Running]) -> Iterator[tuple[Ledger, list[Running]]]:
        """The nodes that are kept for nobody else, each with its runs in the order given."""
        found: dict[str, list[Running]] = defaultdict(list)
        for run in runs:
            found[run.node].append(run)
        for name, here in found.items():
            ledger = self._ledgers.get(name)
            if ledger is not None and _is_open(ledger, job):
                yield ledger, here

    def moves(self, job: Waiting) -> Way | None:
        """The runs to move to other nodes, where they fit now, so that a blocked job can start in their place."""
        movable = (
            run for run in self._youngest
            if run.movable and run.ask is not None and run.run not in self._gone and not self._protected(run)
            and self._may_go_on(run)
        )  # fmt: skip
        ways: list[Way] = []
        for ledger, here in self._by_node(job, movable):
            moved = fewest(job, ledger, here, most=MOST_MOVED, also=partial(self._settle, ledger))
            if moved:
                ways.append(Way(ledger, moved))
        return min(ways, key=lambda way: _rank(way.victims), default=None)

    def _may_go_on(self, run: Running) -> bool:
        if run.run not in self._known_to_go_on:
            self._known_to_go_on[run.run] = onward.may_go_on(self._snapshot, run, self._kinds)
        return self._known_to_go_on[run.run]

    def _settle(self, leaving: Ledger, runs: Sequence[Running]) -> bool:
        """Whether all of the runs fit on other nodes at once."""
        others = [ledger.copy() for ledger in self._ledgers.values() if ledger is not leaving and ledger.kept is None]
        for run in runs:
            assert run.ask is not None
            there = next((ledger for ledger in others if run.ask and ledger.fits(run.ask)), None)
            if there is None:
                return False
            there.take(run.ask)
        return True


def _is_open(ledger: Ledger, job: Waiting) -> bool:
    return ledger.kept is None or ledger.kept.job.id == job.id


def _age(run: Running) -> tuple[datetime, int]:
    return run.since, run.run


def _youngest_first(run: Running) -> tuple[float, int]:
    return -run.since.timestamp(), -run.run


def _rank(victims: Sequence[Running]) -> tuple[int, list[tuple[float, int]]]:
    return len(victims), sorted(map(_youngest_first, victims))


def fewest(
    job: Waiting, ledger: Ledger, runs: Sequence[Running], *, most: int,
    also: Callable[[Sequence[Running]], bool] = lambda gone: True,
) -> tuple[Running, ...]:  # fmt: skip
    """The fewest of the runs, at most `most`, that the job needs to be gone, given youngest first; () when none do."""

    def fits(gone: Sequence[Running]) -> bool:
        return _fits_without(job, ledger, gone) and also(gone)

    if not _fits_without(job, ledger, runs):
        return ()
    for count in range(1, min(most, len(runs)) + 1):
        sets = combinations(runs, count)
        found = next((gone for gone in islice(sets, MOST_TRIALS) if fits(gone)), None)
        if found is not None:
            return found
        if next(sets, None) is not None:  # too many to try them all
            return _none_too_many(runs, fits, most)
    return ()


def _fits_without(job: Waiting, ledger: Ledger, gone: Sequence[Running]) -> bool:
    """Whether the job fits on the node once the runs have gone. The sums spare most of the trials."""
    if (
        job.millicpus > ledger.millicpus + sum([run.millicpus for run in gone])
        or job.memory_mib > ledger.memory_mib + sum([run.memory_mib for run in gone])
        or least(job) > sum(map(bool, ledger.free)) + sum([run.gpus for run in gone])
    ):
        return False
    trial = ledger.copy()
    for run in gone:
        trial.release(run)
    return trial.fits(job)


def _none_too_many(runs: Sequence[Running], fits: Fits, most: int) -> tuple[Running, ...]:
    """A set of which none can be spared: begun with all, the oldest are let go on first."""
    gone = list(runs)
    if not fits(gone):
        return ()
    for run in reversed(runs):
        rest = [other for other in gone if other is not run]
        if rest and fits(rest):
            gone = rest
    return tuple(gone) if len(gone) <= most else ()
