"""The account of one pass: the nodes, and what users and teams hold, with what this pass has given away. Pure."""

from jobs.policy.demand import Demand
from jobs.policy.fleet import Fleet
from jobs.policy.ledger import Ledger
from jobs.policy.view import Snapshot, Waiting
from jobs.quotas import Usage

_NOTHING = Usage()


class Account:
    def __init__(self, snapshot: Snapshot) -> None:
        self.fleet = Fleet(snapshot.nodes, demand=Demand.of(snapshot), spread=snapshot.rules.spread)
        self.users = dict(snapshot.user_usage)
        self.teams = dict(snapshot.team_usage)

    @property
    def nodes(self) -> list[Ledger]:
        return self.fleet.ledgers

    def charge(self, job: Waiting) -> None:
        self.users[job.user] = self.users.get(job.user, _NOTHING).plus(job)
        self.teams[job.team] = self.teams.get(job.team, _NOTHING).plus(job)
