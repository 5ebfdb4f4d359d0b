"""Who is below their part and who above: a fair-share tree of teams and their members. Pure.

As Slurm's fair tree does: siblings are compared by level fairshare, their part of the siblings' shares divided
by their part of the siblings' usage; the tree is gone through from the top, so that no member of a team above its
part passes one of a team below. Siblings with the same level are equals, and so are their children.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from jobs.policy.view import Running, Share, Snapshot, Waiting
from jobs.policy.weights import EQUAL, Weights

UNKNOWN_SECONDS = 86_400.0  # what a job runs that has neither a limit nor likes of it, as far as shares are concerned

Node = TypeVar("Node", bound=Hashable)

_ALONE = Share()  # of whoever has none


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A team among teams, or a member among the members of one. Equals have the same rank; 1 goes first."""

    shares: int
    used: float  # GPU-seconds, decayed
    promised: float  # GPU-seconds that live runs may still take
    due: float  # its part of the siblings' shares, 0–1
    part: float  # its part of the siblings' usage, promises too, 0–1
    rank: int


class Tree:
    """The usage of teams and members, with all that is given away while it is in use."""

    def __init__(self, teams: Mapping[int, Share], members: Mapping[tuple[int, int], Share]) -> None:
        self._teams = teams
        self._members = members
        self._team_promised: dict[int, float] = {}
        self._member_promised: dict[tuple[int, int], float] = {}

    def charge(self, team: int, user: int, gpu_seconds: float) -> None:
        """Count what a run will take as taken: else whoever goes first gets everything that is free at once."""
        self._team_promised[team] = self._team_promised.get(team, 0.0) + gpu_seconds
        self._member_promised[team, user] = self._member_promised.get((team, user), 0.0) + gpu_seconds

    def load(self, team: int, user: int) -> tuple[float, float]:
        """The usage per share of the team and of the member in it: the smaller goes first.

        Among siblings this is the reverse of Slurm's level fairshare, without the sums that all of them share.
        """
        member = team, user
        return (
            _per_share(self._teams.get(team, _ALONE), self._team_promised.get(team, 0.0)),
            _per_share(self._members.get(member, _ALONE), self._member_promised.get(member, 0.0)),
        )

    def teams(self) -> dict[int, Standing]:
        return _standings({team: (share, self._team_promised.get(team, 0.0)) for team, share in self._teams.items()})

    def members(self, team: int) -> dict[int, Standing]:
        """By user."""
        found = {user: (share, self._member_promised.get((of, user), 0.0))
                 for (of, user), share in self._members.items() if of == team}  # fmt: skip
        return _standings(found)


def tree_of(snapshot: Snapshot) -> Tree:
    """The tree with what live runs may still take, so that the order does not jump when a job has just started."""
    tree = Tree(snapshot.team_shares, snapshot.member_shares)
    for run in snapshot.running:
        tree.charge(run.team, run.user, still_to_take(run, snapshot.now, snapshot.rules.weights))
    return tree


def still_to_take(run: Running, now: datetime, weights: Weights = EQUAL) -> float:
    """GPU-seconds until the run should have ended at the latest, as they count."""
    end = run.ends_by
    if run.likely is not None and (end is None or run.likely[1] < end):
        end = run.likely[1]
    seconds = UNKNOWN_SECONDS if end is None else (end - now).total_seconds()
    counts = weights.milli(run.milli, model=run.model, millicpus=run.millicpus, memory_mib=run.memory_mib)
    return counts / 1000 * max(seconds, 0.0)


def to_take(job: Waiting, gpus: int | None = None, weights: Weights = EQUAL) -> float:
    """GPU-seconds that the job should take at most, as they count, with `gpus` where it is elastic."""
    seconds = [s for s in (job.limit_seconds, job.likely_seconds[1] if job.likely_seconds else None) if s is not None]
    counts = weights.milli(job.milli_of(gpus), model=job.gpu_model, millicpus=job.millicpus, memory_mib=job.memory_mib)
    return counts / 1000 * min(seconds, default=UNKNOWN_SECONDS)


def _per_share(share: Share, promised: float) -> float:
    return (share.used + promised) / share.shares if share.shares else float("inf")


def _standings(nodes: Mapping[int, tuple[Share, float]]) -> dict[int, Standing]:
    shares = sum(share.shares for share, _promised in nodes.values())
    usage = sum(share.used + promised for share, promised in nodes.values())
    ranks = _ranks(nodes, lambda node: _per_share(*nodes[node]))
    return {
        node: Standing(
            shares=share.shares, used=share.used, promised=promised, rank=ranks[node],
            due=share.shares / shares if shares else 0.0, part=(share.used + promised) / usage if usage else 0.0,
        )
        for node, (share, promised) in nodes.items()
    }  # fmt: skip


def _ranks(nodes: Iterable[Node], load: Callable[[Node], float]) -> dict[Node, int]:
    """Places from 1; equals share theirs, and the next one counts all before it."""
    ordered = sorted(nodes, key=load)
    ranks: dict[Node, int] = {}
    for place, node in enumerate(ordered, 1):
        before = ordered[place - 2] if place > 1 else None
        ranks[node] = ranks[before] if before is not None and load(before) == load(node) else place
    return ranks
