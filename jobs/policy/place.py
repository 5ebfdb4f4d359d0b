"""Choose a node and GPUs for one job, or keep a node for it. Pure."""

from collections.abc import Iterable

from jobs.policy.fleet import Fleet
from jobs.policy.ledger import Ledger, least, slots_of, suits
from jobs.policy.neighbours import torn
from jobs.policy.view import Waiting

Score = tuple[object, ...]


def choose(job: Waiting, fleet: Fleet) -> Ledger | None:
    """The node to start on; None when the job fits nowhere now."""
    spread = job.team in fleet.spread
    return min(fleet.fitting(job), key=lambda ledger: score(job, ledger, spread=spread), default=None)


def score(job: Waiting, ledger: Ledger, *, spread: bool = False) -> Score:
    """Smallest is best: most GPUs of those an elastic job could use, close together, none better than needed.

    Then packed: the fullest node, so that whole hosts stay whole; or spread: the emptiest.
    """
    gpus = ledger.choice(job)
    overkill = max((gpu.memory_mib or 0 for gpu in gpus), default=0)
    slots = sum(ledger.free) - sum(slots_of(job, gpu) for gpu in gpus)
    room = (slots, ledger.memory_mib, ledger.millicpus)
    return job.gpus - len(gpus), torn(gpus), overkill, tuple(-n for n in room) if spread else room, ledger.node.name


def choose_to_keep(job: Waiting, ledgers: Iterable[Ledger]) -> Ledger | None:
    """The node whose freed resources are kept for a job blocked for long: the one nearest to fitting it."""
    candidates = [ledger for ledger in ledgers if ledger.kept is None and could_ever_fit(job, ledger)]
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
    if not job.labels <= node.labels:
        return False
    return sum(1 for gpu in node.gpus if gpu.unavailable is None and suits(gpu, job)) >= least(job)
