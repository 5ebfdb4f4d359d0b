"""What an admin would change, put upon a picture and the jobs of a trace. Pure; made of what JSON can hold."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from jobs.policy.replay import Task
from jobs.policy.view import Gpu, Node, Share, Snapshot
from jobs.quotas import Limits


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Only what is changed is there. Keys are text, as JSON wants it: primary keys of teams and users too.

    `teams` and `everybody` set fields of `Limits`, None for no limit; `shares` are those of teams; `team_classes` and
    `user_classes` set the priority of all their jobs, the user's own last; `rules` set fields of `Rules`.
    """

    hosts: Mapping[str, int] = field(default_factory=dict)  # GPUs that a host keeps, by name; 0: it is gone
    more_hosts: int = 0  # like the host with the most GPUs
    teams: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)
    everybody: Mapping[str, int | None] = field(default_factory=dict)
    team_classes: Mapping[str, int] = field(default_factory=dict)
    user_classes: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    half_life: float | None = None  # seconds

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        return cls(**found)

    def as_json(self) -> dict[str, Any]:
        """Without what is not changed."""
        return {name: value for name, value in asdict(self).items() if value}

    def picture(self, before: Snapshot) -> Snapshot:
        """The picture with hosts, limits, shares and rules changed."""
        return replace(
            before, nodes=self._nodes(before.nodes), rules=replace(before.rules, **self.rules),
            user_limits={user: _bound(limits, self.everybody) for user, limits in before.user_limits.items()},
            team_limits={team: _bound(limits, self.teams.get(str(team), {}))
                         for team, limits in before.team_limits.items()},
            team_shares={team: self._share(team, share) for team, share in before.team_shares.items()},
        )  # fmt: skip

    def tasks(self, before: Iterable[Task]) -> list[Task]:
        """The tasks with their classes changed."""
        return [self._task(task) for task in before]

    def _task(self, task: Task) -> Task:
        of_team = self.team_classes.get(str(task.job.team), task.job.priority)
        priority = self.user_classes.get(str(task.job.user), of_team)
        return task if priority == task.job.priority else replace(task, job=replace(task.job, priority=priority))

    def _share(self, team: int, share: Share) -> Share:
        return replace(share, shares=self.shares.get(str(team), share.shares))

    def _nodes(self, before: tuple[Node, ...]) -> tuple[Node, ...]:
        kept = [cut(node, self.hosts.get(node.name, len(node.gpus))) for node in before
                if self.hosts.get(node.name) != 0]  # fmt: skip
        largest = max(before, key=lambda node: (len(node.gpus), node.millicpus), default=None)
        more = [twin(largest, number) for number in range(1, self.more_hosts + 1)] if largest is not None else []
        return (*kept, *more)


def _bound(limits: Limits, fields: Mapping[str, Any]) -> Limits:
    return replace(limits, **fields)


def cut(node: Node, gpus: int) -> Node:
    """The host with its first so many GPUs, or with more like its last one."""
    more = tuple(_copy(node.gpus[-1], number) for number in range(len(node.gpus), gpus)) if node.gpus else ()
    return replace(node, gpus=(*node.gpus[:gpus], *more))


def _copy(gpu: Gpu, index: int) -> Gpu:
    return replace(gpu, uuid=f"{gpu.uuid}/{index}", index=index)


def twin(node: Node, number: int) -> Node:
    """One more host like this one."""
    gpus = tuple(replace(gpu, uuid=f"{gpu.uuid}+{number}") for gpu in node.gpus)
    return replace(node, name=f"{node.name}+{number}", gpus=gpus)
