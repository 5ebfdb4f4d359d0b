"""One scheduling pass: every waiting job is placed or gets its reasons. Pure.

In order, each job starts where it fits. A job that only room holds back is blocked; those behind it may
pass, but once it has been blocked for `Rules.reserve_after`, a node's freed resources are kept for it.
"""

from datetime import timedelta

from jobs.policy import explain, order, place
from jobs.policy.account import Account
from jobs.policy.view import Placement, Plan, Reason, Reservation, Snapshot, Waiting


def make_plan(snapshot: Snapshot) -> Plan:
    """What starts now and why the rest does not. The same snapshot always gives the same plan."""
    return _Pass(snapshot).run()


class _Pass:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.account = Account(snapshot)
        self.placements: list[Placement] = []
        self.reasons: dict[int, tuple[Reason, ...]] = {}
        self.blocked: set[int] = set()
        self.no_room: dict[object, tuple[Reason, ...]] = {}  # by shape; a start or a keeping makes it stale

    def run(self) -> Plan:
        for job in order.in_order(self.snapshot):
            self._look_at(job)
        kept = [(led.kept_for.id, led.node.name) for led in self.account.nodes if led.kept_for is not None]
        return Plan(
            placements=tuple(self.placements), reasons=self.reasons, blocked=frozenset(self.blocked),
            reservations=tuple(Reservation(job=job, node=node, at=None) for job, node in kept),
        )  # fmt: skip

    def _look_at(self, job: Waiting) -> None:
        gates = explain.gates(job, self.snapshot, self.account)
        node = None if gates or job.shape in self.no_room else place.choose(job, self.account.fleet)
        if node is not None:
            gpus = self.account.fleet.take(node, job)
            self.account.charge(job)
            self.placements.append(
                Placement(job=job.id, node=node.node.name, gpu_uuids=tuple(gpu.uuid for gpu in gpus))
            )
            self.no_room.clear()
            return
        room = self._why_no_room(job)
        hopeless = any(reason["code"] in explain.NEVER for reason in room)
        self.reasons[job.id] = (*room, *gates) if hopeless else (*gates, *room)
        if not gates:
            self._block(job)

    def _why_no_room(self, job: Waiting) -> tuple[Reason, ...]:
        if job.shape not in self.no_room:
            reasons = tuple(explain.room(job, self.account.nodes))
            if not reasons:  # it fits: only its gates hold it back
                return ()
            self.no_room[job.shape] = reasons
        return self.no_room[job.shape]

    def _block(self, job: Waiting) -> None:
        self.blocked.add(job.id)
        since = job.blocked_since or self.snapshot.now
        if self.snapshot.now - since < timedelta(seconds=self.snapshot.rules.reserve_after):
            return
        node = place.choose_to_keep(job, self.account.nodes)
        if node is not None:
            self.account.fleet.keep(node, job)
            self.no_room.clear()
