"""What a replay is played on: this installation's hosts and rules, with nothing running."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from jobs import snapshot
from jobs.models import Cluster
from jobs.policy.replay import Task
from jobs.policy.trace import EPOCH
from jobs.policy.view import Node, Share, Snapshot


def own_nodes(now: datetime) -> tuple[Node, ...]:
    """This installation's hosts as if all of them were well and idle; GPUs that are hidden stay away."""
    return tuple(_well(node) for node in snapshot.nodes(now, ()))


def _well(node: Node) -> Node:
    shown = [gpu for gpu in node.gpus if gpu.unavailable is None or gpu.unavailable["code"] != "GPU_HIDDEN"]
    gpus = tuple(replace(gpu, used_slots=0, unavailable=None) for gpu in shown)
    return replace(node, gpus=gpus, closed=None)


def picture(nodes: tuple[Node, ...], cluster: Cluster) -> Snapshot:
    """These hosts under the rules of a cluster, which may be one that is not stored; without quotas."""
    return Snapshot(
        now=EPOCH, nodes=nodes, waiting=(), user_limits={}, team_limits={}, user_usage={}, team_usage={},
        rules=snapshot.rules(cluster, ()),
    )  # fmt: skip


def with_equal_shares(picture: Snapshot, tasks: Iterable[Task]) -> Snapshot:
    """All teams of the trace, and all members of each, with one share each."""
    both = {(task.job.team, task.job.user) for task in tasks}
    return replace(
        picture, team_shares={team: Share() for team, _user in both}, member_shares={pair: Share() for pair in both}
    )
