"""All nodes of one pass. Every change goes through here, so that what is known of them stays true. Pure."""

from collections.abc import Iterable, Iterator

from jobs.policy.ledger import Ledger
from jobs.policy.view import Gpu, Node, Running, Waiting


class Fleet:
    """The ledgers of all nodes, in the order given. `spread`: teams whose jobs go to the emptiest nodes."""

    def __init__(self, nodes: Iterable[Node], *, spread: frozenset[int] = frozenset()) -> None:
        self.ledgers = [Ledger(node) for node in nodes]
        self.spread = spread
        self._no_room: set[object] = set()  # shapes that fit nowhere

    def fitting(self, job: Waiting) -> Iterator[Ledger]:
        """The nodes where the job could start now."""
        return (ledger for ledger in self.ledgers if ledger.fits(job))

    def fits_anywhere(self, job: Waiting) -> bool:
        return any(True for _ in self.fitting(job))

    def take(self, ledger: Ledger, job: Waiting) -> tuple[Gpu, ...]:
        """Start the job on a node that it fits."""
        return ledger.take(job)

    def release(self, ledger: Ledger, run: Running) -> None:
        """The run ends: what it holds is free."""
        ledger.release(run)

    def keep(self, ledger: Ledger, job: Waiting, *, seconds: float | None = None, runs: Iterable[Running] = ()) -> None:
        """Keep the node for the job, which starts there within `seconds` (None: nobody can say), once `runs` ended."""
        ledger.keep(job, seconds=seconds, runs=runs)

    def unkeep(self, ledger: Ledger) -> None:
        ledger.kept = None
