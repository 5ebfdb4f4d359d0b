"""Choose a node and GPUs for one job, or keep a node for it. Pure."""

from collections.abc import Iterable

from jobs.policy.ledger import Ledger, suits
from jobs.policy.view import Waiting


def choose(job: Waiting, ledgers: Iterable[Ledger]) -> Ledger | None:
    """The node to start on: packed, so that whole hosts stay whole; None when it fits nowhere now."""
    candidates = [ledger for ledger in ledgers if ledger.fits(job)]
    return min(candidates, key=lambda ledger: score(job, ledger), default=None)


def score(job: Waiting, ledger: Ledger) -> tuple[int, int, int, int, str]:
    """Smallest is best: spares GPUs that the job has no use for, then fills the fullest node that still fits."""
    suiting = ledger.suiting(job)
    unsuiting = len(ledger.gpus) - len(suiting)
    gpus_left = len(suiting) - job.gpus
    overkill = max((gpu.memory_mib or 0 for gpu in suiting[: job.gpus]), default=0)
    return overkill, gpus_left + unsuiting, ledger.memory_mib, ledger.millicpus, ledger.node.name


def choose_to_keep(job: Waiting, ledgers: Iterable[Ledger]) -> Ledger | None:
    """The node whose freed resources are kept for a job blocked for long: the one nearest to fitting it."""
    candidates = [ledger for ledger in ledgers if ledger.kept_for is None and could_ever_fit(job, ledger)]
    return max(candidates, key=lambda ledger: _nearness(job, ledger), default=None)


def _nearness(job: Waiting, ledger: Ledger) -> tuple[int, int, int, str]:
    return (
        min(len(ledger.suiting(job)), job.gpus),
        min(ledger.millicpus, job.millicpus),
        min(ledger.memory_mib, job.memory_mib),
        ledger.node.name,
    )


def could_ever_fit(job: Waiting, ledger: Ledger) -> bool:
    """Whether the job would fit on the node as it is, were nothing running there."""
    node = ledger.node
    if node.closed is not None or job.millicpus > node.millicpus or job.memory_mib > node.memory_mib:
        return False
    return sum(1 for gpu in node.gpus if gpu.unavailable is None and suits(gpu, job)) >= job.gpus
