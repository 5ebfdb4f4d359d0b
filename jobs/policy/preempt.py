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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import combinations, islice

from jobs.policy import place
from jobs.policy.ledger import Ledger, least
from jobs.policy.view import Running, Snapshot, Waiting
from jobs.quotas import WHOLE, least_milli

GUARANTEE, PRIORITY = "GUARANTEE", "PRIORITY"
MOST_SEARCHES = 64  # kinds of blocked jobs that victims are looked for in one pass, first in the queue first
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

    def __init__(self, snapshot: Snapshot, ledgers: Sequence[Ledger]) -> None:
        self._snapshot = snapshot
        self._ledgers = {ledger.node.name: ledger for ledger in ledgers}
        self._gone: set[int] = set()  # runs that stop or are to stop
        self._no_way: set[object] = set()
        self._guarantees = {
            team: limits.guaranteed_gpus * WHOLE
            for team, limits in snapshot.team_limits.items() if limits.guaranteed_gpus
        }  # fmt: skip
        for run in snapshot.running:
            if run.stopping or run.makes_way_for is not None:
                self._gone.add(run.run)

    def entitled(self, job: Waiting, held_milli: int) -> bool:
        """Whether the job's team, holding so much, stays within its guaranteed GPUs when the job starts."""
        asked = least_milli(job)
        return asked > 0 and held_milli + asked <= self._guarantees.get(job.team, 0)

    def has_guarantee(self, team: int) -> bool:
        return team in self._guarantees

    def way(self, job: Waiting, *, entitled: bool) -> Way | None:
        """The runs to stop for a job that nothing but room holds back; None when there are none that would do."""
        if entitled:
            found = self._search(job, GUARANTEE, job.team, self._borrowed)
            if found is not None:
                return found
        if self._snapshot.rules.preempt_lower:
            return self._search(job, PRIORITY, job.priority, self._lower)
        return None

    def take(self, way: Way) -> None:
        """Count the victims as gone."""
        self._gone.update(run.run for run in way.victims)

    def _search(self, job: Waiting, why: str, who: int, victims: Callable[[Waiting], Iterable[Running]]) -> Way | None:
        key = (why, who, job.shape)
        if key in self._no_way or len(self._no_way) >= MOST_SEARCHES:
            return None
        found = self._best(job, self._by_node(victims(job)))
        if found is None:
            self._no_way.add(key)
            return None
        return Way(*found, why)

    def _by_node(self, runs: Iterable[Running]) -> dict[str, list[Running]]:
        """Youngest first on each node."""
        found: dict[str, list[Running]] = defaultdict(list)
        for run in sorted(runs, key=_youngest_first):
            found[run.node].append(run)
        return found

    def _best(self, job: Waiting, by_node: Mapping[str, list[Running]]) -> tuple[Ledger, tuple[Running, ...]] | None:
        best: tuple[Ledger, tuple[Running, ...]] | None = None
        for name, runs in by_node.items():
            ledger = self._ledgers.get(name)
            if ledger is None or ledger.kept is not None or not place.could_ever_fit(job, ledger):
                continue
            victims = fewest(job, ledger, runs, most=len(best[1]) if best else len(runs))
            if victims and (best is None or _rank(victims) < _rank(best[1])):
                best = ledger, victims
        return best

    def _borrowed(self, job: Waiting) -> Iterator[Running]:
        """What other teams hold beyond their guarantees, as far as it may be stopped."""
        teams: dict[int, list[Running]] = defaultdict(list)
        for run in self._snapshot.running:
            if run.team != job.team and run.milli and run.run not in self._gone:
                teams[run.team].append(run)
        for team, runs in teams.items():
            beyond = sum(run.milli for run in runs) - self._guarantees.get(team, 0)
            for run in sorted(runs, key=_youngest_first):
                if run.milli <= beyond:
                    beyond -= run.milli
                    if not self._protected(run):
                        yield run

    def _lower(self, job: Waiting) -> Iterator[Running]:
        return (
            run for run in self._snapshot.running
            if run.preemptible and run.priority < job.priority and run.run not in self._gone
            and not self._protected(run)
        )  # fmt: skip

    def _protected(self, run: Running) -> bool:
        return self._snapshot.now - run.since < timedelta(seconds=self._snapshot.rules.protected_for)

    def moves(self, job: Waiting) -> Way | None:
        """The runs to move to other nodes, where they fit now, so that a blocked job can start in their place."""
        movable = (
            run for run in self._snapshot.running
            if run.movable and run.ask is not None and run.run not in self._gone and not self._protected(run)
        )  # fmt: skip
        ways: list[Way] = []
        for name, runs in self._by_node(movable).items():
            ledger = self._ledgers.get(name)
            if ledger is None or ledger.kept is not None or not place.could_ever_fit(job, ledger):
                continue
            moved = fewest(job, ledger, runs, most=MOST_MOVED, also=partial(self._settle, ledger))
            if moved:
                ways.append(Way(ledger, moved))
        return min(ways, key=lambda way: _rank(way.victims), default=None)

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
        if not _enough(job, ledger, gone):
            return False
        trial = ledger.copy()
        for run in gone:
            trial.release(run)
        return trial.fits(job) and also(gone)

    if len(runs) > most and not _enough(job, ledger, runs):
        return ()
    for count in range(1, min(most, len(runs)) + 1):
        sets = combinations(runs, count)
        found = next((gone for gone in islice(sets, MOST_TRIALS) if fits(gone)), None)
        if found is not None:
            return found
        if next(sets, None) is not None:  # too many to try them all
            return _none_too_many(runs, fits, most)
    return ()


def _enough(job: Waiting, ledger: Ledger, gone: Sequence[Running]) -> bool:
    """Whether the sums would do: what spares most of the trials."""
    return (
        job.millicpus <= ledger.millicpus + sum(run.millicpus for run in gone)
        and job.memory_mib <= ledger.memory_mib + sum(run.memory_mib for run in gone)
        and least(job) <= sum(map(bool, ledger.free)) + sum(run.gpus for run in gone)
    )


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
