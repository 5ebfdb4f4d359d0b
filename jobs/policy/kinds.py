"""The kinds of GPU that there are: which models a request may get, and what a share of a GPU is charged there. Pure.

A share takes whole slots of its GPU and is charged for those, so that how GPUs are cut says what it is charged.
"""

from collections.abc import Iterable
from dataclasses import replace

from jobs.policy.hardware import offered
from jobs.policy.ledger import charge, is_asked_for, shares
from jobs.policy.view import WHOLE, Node, Snapshot, Waiting, changed


class Kinds:
    """Of these nodes, whatever is in use there. Hidden GPUs are not counted."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        found = {
            (gpu.model, gpu.memory_mib, gpu.profile, gpu.slots, node.labels): gpu
            for node in nodes for gpu in node.gpus if offered(gpu)
        }  # fmt: skip
        self._kinds = [(gpu, labels) for (*_alike, labels), gpu in found.items()]
        self.cut_differently = len({gpu.slots for gpu, _labels in self._kinds if gpu.slots > 1}) > 1
        self._known: dict[object, tuple[tuple[str, ...], tuple[int, ...]]] = {}

    def models(self, job: Waiting) -> tuple[str, ...]:
        """The models of GPUs that would do for the job."""
        return self._of(job)[0]

    def charges(self, job: Waiting) -> tuple[int, ...]:
        """What may be charged for a share, the least first, in thousandths; nothing where no GPU would do."""
        return self._of(job)[1]

    def charged(self, job: Waiting) -> Waiting:
        """The job with its share as large as what is charged for it at least. It takes as many slots as before."""
        least = self.charges(job)[:1] if shares(job) else ()
        if not least or least[0] == job.gpu_milli:
            return job
        return changed(job, gpu_milli=least[0], is_share=least[0] == WHOLE)

    def _of(self, job: Waiting) -> tuple[tuple[str, ...], tuple[int, ...]]:
        share = (job.gpu_milli, job.most_milli) if shares(job) else ()
        key = job.gpu_model, job.gpu_memory_mib, job.gpu_profile, job.labels, share
        found = self._known.get(key)
        if found is None:
            would_do = [gpu for gpu, labels in self._kinds if job.labels <= labels and is_asked_for(gpu, job)]
            models, charges = {gpu.model for gpu in would_do}, {charge(job, gpu) for gpu in would_do}
            found = self._known[key] = tuple(sorted(models)), tuple(sorted(charges))
        return found


def as_charged(snapshot: Snapshot, kinds: Kinds | None = None) -> Snapshot:
    """The snapshot with all waiting shares as large as what is charged for them at least. `kinds`: of its nodes."""
    if not any(map(shares, snapshot.waiting)):
        return snapshot
    kinds = Kinds(snapshot.nodes) if kinds is None else kinds
    waiting = tuple([kinds.charged(job) if job.gpu_milli < WHOLE else job for job in snapshot.waiting])
    return replace(snapshot, waiting=waiting)
