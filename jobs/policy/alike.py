"""Nodes that have the same, whatever runs there: whether a job would ever fit is asked once for all of them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from jobs.policy.ledger import Ledger, least, suits
from jobs.policy.view import Waiting


class Alike:
    """The open nodes of a pass."""

    def __init__(self, ledgers: Iterable[Ledger]) -> None:
        found: dict[object, list[Ledger]] = defaultdict(list)
        for ledger in ledgers:
            if ledger.node.closed is None:
                found[_what_is_there(ledger)].append(ledger)
        self._alike = list(found.values())
        self._able: dict[object, list[Ledger]] = {}

    def able(self, job: Waiting) -> list[Ledger]:
        """The nodes that the job would fit on as they are, were nothing running there."""
        found = self._able.get(job.shape)
        if found is None:
            found = self._able[job.shape] = [
                ledger for alike in self._alike if job.avoid or could_ever_fit(job, alike[0])
                for ledger in alike if not job.avoid or could_ever_fit(job, ledger)
            ]  # fmt: skip
        return found


def _what_is_there(ledger: Ledger) -> object:
    node, layout = ledger.node, ledger.layout
    well = [kind for kind, gpu in zip(layout.kinds, node.gpus, strict=True) if gpu.unavailable is None]
    gpus = (layout.only, len(well)) if layout.only is not None else frozenset(Counter(well).items())
    return node.millicpus, node.memory_mib, node.labels, len(node.gpus), gpus


def could_ever_fit(job: Waiting, ledger: Ledger) -> bool:
    """Whether the job would fit on the node as it is, were nothing running there."""
    node = ledger.node
    if node.closed is not None or job.millicpus > node.millicpus or job.memory_mib > node.memory_mib:
        return False
    if len(node.gpus) < least(job) or not job.labels <= node.labels or node.name in job.avoid:
        return False
    return sum(1 for gpu in node.gpus if gpu.unavailable is None and suits(gpu, job)) >= least(job)
