"""The account of one pass: what is free on each node, less what this pass has given away. Pure."""

from jobs.policy.view import Gpu, Node, Snapshot, Waiting
from jobs.quotas import Usage


def suits(gpu: Gpu, job: Waiting) -> bool:
    """Whether the GPU is of the model and memory asked for. Unknown memory suits only who asks for none."""
    if job.gpu_model and gpu.model != job.gpu_model:
        return False
    return not job.gpu_memory_mib or (gpu.memory_mib is not None and gpu.memory_mib >= job.gpu_memory_mib)


class Ledger:
    """One node in one pass."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.millicpus = node.millicpus - node.used_millicpus
        self.memory_mib = node.memory_mib - node.used_memory_mib
        self.gpus = [gpu for gpu in node.gpus if not gpu.taken and gpu.unavailable is None]
        self.kept_for: Waiting | None = None

    def suiting(self, job: Waiting) -> list[Gpu]:
        """The free GPUs that the job could have, in PCI order."""
        return [gpu for gpu in self.gpus if suits(gpu, job)]

    def fits(self, job: Waiting) -> bool:
        """Whether the job could start here now, all or nothing, without touching what is kept for another."""
        return self.node.closed is None and self._has_room(job) and not self.hurts_kept(job)

    def _has_room(self, job: Waiting) -> bool:
        if job.millicpus > self.millicpus or job.memory_mib > self.memory_mib:
            return False
        return not job.gpus or len(self.suiting(job)) >= job.gpus

    def hurts_kept(self, job: Waiting) -> bool:
        """Whether the job would take something that the node is kept for: only what is left over may go."""
        kept = self.kept_for
        if kept is None or kept.id == job.id:
            return False
        if job.millicpus > self.millicpus - kept.millicpus or job.memory_mib > self.memory_mib - kept.memory_mib:
            return True
        spare = len(self.suiting(kept)) - kept.gpus
        return bool(job.gpus) and self._wanted_by_kept(job, kept) > max(spare, 0)

    def _wanted_by_kept(self, job: Waiting, kept: Waiting) -> int:
        """How many GPUs suiting the kept job this one would have to take."""
        others = sum(1 for gpu in self.suiting(job) if not suits(gpu, kept))
        return max(job.gpus - others, 0)

    def take(self, job: Waiting) -> tuple[Gpu, ...]:
        """Give the job its share of the node. The caller has asked `fits`."""
        kept = self.kept_for
        choice = sorted(
            self.suiting(job),
            key=lambda g: (kept is not None and suits(g, kept), g.memory_mib or 0, g.index),
        )[: job.gpus]
        self.gpus = [gpu for gpu in self.gpus if gpu not in choice]
        self.millicpus -= job.millicpus
        self.memory_mib -= job.memory_mib
        return tuple(choice)


class Account:
    """All nodes, and what users and teams hold, in one pass."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = [Ledger(node) for node in snapshot.nodes]
        self.users = dict(snapshot.user_usage)
        self.teams = dict(snapshot.team_usage)

    def charge(self, job: Waiting) -> None:
        self.users[job.user] = self.users.get(job.user, Usage()).plus(job)
        self.teams[job.team] = self.teams.get(job.team, Usage()).plus(job)
