"""Why each waiting job waits: every reason, with numbers, by the state that a pass ends in. Pure.

Kinds are told apart: no such GPU, too large for every host, all busy, kept for another, host closed or sick. What
hardware says is worked out once for each shape of job. After the causes comes what would help. Reasons name jobs, nodes
and numbers that stay as long as the causes do, and of times those that limits and rules set, which do not move with
the clock. When the job should start is in `Plan.expected`, and who is ahead in `ahead`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from jobs.policy.account import Account
from jobs.policy.afterwards import Afterwards
from jobs.policy.gates import Gates
from jobs.policy.hardware import GpuKind, Hardware, NodeKind, sick_counts
from jobs.policy.helps import Helps
from jobs.policy.ledger import Ledger, is_cut, least, shares
from jobs.policy.view import WHOLE, Reason, Running, Snapshot, Waiting

NEVER = frozenset({
    "NO_GPU_MODEL", "NO_GPU_PROFILE", "NO_GPU_MEMORY", "NO_SHARED_GPU", "NO_LABELS",
    "TOO_LARGE_GPUS", "TOO_LARGE_CPUS", "TOO_LARGE_MEMORY", "TOO_LARGE_TOGETHER",
})  # fmt: skip

_BARRED = frozenset({"HELD_BY_IMAGE"})
_ABOVE_A_LIMIT = frozenset({"LARGEST_JOB", "LONGEST_LIMIT", "HIGHEST_PRIORITY", "BUDGET_SIZE"})
_LIMITS_IN_USE = frozenset({"QUOTA_GPUS", "QUOTA_MODEL", "QUOTA_CPUS", "QUOTA_MEMORY"})
_COUNTS = frozenset({"QUOTA_RUNNING", "QUOTA_INTERACTIVE"})
_MOST_SICK = 5  # hosts that are named for their sick GPUs


def is_final(reason: Reason) -> bool:
    """Whether no waiting lifts this: the hardware there is, or a limit or rule as it is now, never allows it."""
    code = reason["code"]
    if code in _LIMITS_IN_USE:
        return (reason.get("asked") or 0) > (reason.get("limit") or 0)
    return code in NEVER | _ABOVE_A_LIMIT | _BARRED or (code in _COUNTS and reason.get("limit") == 0)


def impossible(job: Waiting, ledgers: Sequence[Ledger]) -> list[Reason]:
    """What the hardware there is can't give, were all of it idle and well; empty when some host would do."""
    return _impossible(job, Hardware(ledgers))


def why_not(job: Waiting, hardware: Hardware) -> Reason:
    """The first thing that keeps a job that no gate holds back from starting on what is free."""
    return next(_no_room(job, hardware), {"code": "BUSY_TOGETHER"})


class Explain:
    """The reasons of one pass, once everything is given away."""

    def __init__(
        self, snapshot: Snapshot, account: Account, gates: Gates, hardware: Hardware,
        *, freed: Mapping[int, tuple[str, int]], protected: "Protected | None",
        in_the_way: Callable[[Waiting], tuple[Reason, ...]],
    ) -> None:  # fmt: skip
        self._snapshot, self._gates = snapshot, gates
        self._freed = freed  # by job: the node, and how many runs end there for it
        self._protected, self._in_the_way = protected, in_the_way
        self._hardware = hardware
        self._afterwards = Afterwards(account.fleet, hardware)
        self._helps = Helps(self._afterwards, gates, hardware)
        self._room: dict[object, _Said] = {}
        self._room_alone: dict[object, _Said] = {}  # of those that nothing but room holds back, or would help
        self._kept_from: dict[object, tuple[Reason, ...]] = {}

    def of(self, job: Waiting) -> tuple[Reason, ...]:
        """Never empty."""
        if job.id in self._freed:
            node, count = self._freed[job.id]
            return ({"code": "MAKING_WAY", "node": node, "count": count},)
        gates = self._gates.again(job)
        if gates:
            return self._gated(job, gates)
        allowed, closed = self._gates.narrowed(job) if self._gates.by_model else (job, [])
        key = None if closed else self._afterwards.alike(job)
        room = self._room_alone.get(key)
        if room is not None:
            return self._told(allowed, room)
        room, helps = self._room_says(allowed), self._helps.of(job, ())
        if key is not None and not self._helps.some(job):  # what helps depends on the quotas of this user and team
            self._room_alone[key] = room
        return self._told(allowed, room, closed, helps)

    def _gated(self, job: Waiting, gates: Sequence[Reason]) -> tuple[Reason, ...]:
        room = _NOTHING if self._afterwards.fits(job) else self._hardware_says(job)
        helps = [] if self._gates.shut(job) else self._helps.of(job, gates)
        if room.is_never:
            return (*room.reasons, *gates, *helps)
        return (*gates, *room.reasons, *self._in_the_way(job), *self._kept(job), *helps)

    def _told(
        self, job: Waiting, room: "_Said", closed: Sequence[Reason] = (), helps: Sequence[Reason] = ()
    ) -> tuple[Reason, ...]:
        """Where no gate is shut. `closed` are the models that quotas leave none of."""
        if room.is_never:
            return (*(closed or room.reasons), *helps)
        late = () if self._protected is None else self._until_later(job, self._protected)
        causes = (*closed, *room.reasons, *late) if closed or late else room.reasons
        return (*(causes or _TOGETHER), *helps) if helps else causes or _TOGETHER

    def _room_says(self, job: Waiting) -> "_Said":
        said = self._hardware_says(job)
        if said.is_never:
            return said
        return _Said((*said.reasons, *self._in_the_way(job), *self._kept(job)), is_never=False)

    def _hardware_says(self, job: Waiting) -> "_Said":
        found = self._room.get(job.shape)
        if found is None:
            reasons = tuple(_no_room(job, self._hardware))
            is_never = any(reason["code"] in NEVER for reason in reasons)
            found = self._room[job.shape] = _Said(reasons, is_never)
        return found

    def _kept(self, job: Waiting) -> tuple[Reason, ...]:
        """The nodes that have room for the job, but keep it for another."""
        if not self._afterwards.kept_with_room(job):
            return ()
        key = self._afterwards.alike(job)
        if key not in self._kept_from:
            self._kept_from[key] = tuple(self._keeping_from(job))
        return self._kept_from[key]

    def _keeping_from(self, job: Waiting) -> Iterator[Reason]:
        for ledger in self._afterwards.kept_with_room(job):
            kept = ledger.kept
            if kept is None or kept.job.id == job.id or ledger.fits(job):
                continue
            reason: Reason = {"code": "KEPT_FOR", "job": kept.job.id, "node": ledger.node.name}
            if kept.seconds is not None:
                reason["code"] = "RESERVED_FOR"
            if kept.seconds:  # of what is ending right now the time would be another in each pass
                reason["at"] = _minute(self._snapshot.now + timedelta(seconds=kept.seconds))
            yield reason

    def _until_later(self, job: Waiting, protected: "Protected") -> tuple[Reason, ...]:
        """The run that may be stopped for the job, but not yet."""
        run = protected(job)
        if run is None:
            return ()
        until = run.since + timedelta(seconds=self._snapshot.rules.protected_for)
        return ({"code": "PROTECTED", "job": run.job, "until": _minute(until)},)


Protected = Callable[[Waiting], Running | None]


class _Said(NamedTuple):
    """What hardware says to one shape of job, and whether that is for ever."""

    reasons: tuple[Reason, ...]
    is_never: bool


_NOTHING = _Said((), is_never=False)
_TOGETHER: tuple[Reason, ...] = ({"code": "BUSY_TOGETHER"},)


def _minute(at: datetime) -> str:
    """The full minute that is reached by then at the latest, which small shifts leave alone."""
    return (at + timedelta(seconds=59, microseconds=999_999)).replace(second=0, microsecond=0).isoformat()


def _no_room(job: Waiting, hardware: Hardware) -> Iterator[Reason]:
    if not hardware.kinds:
        yield {"code": "NO_NODE"}
        return
    able = hardware.able(job)
    if not able:
        yield from _impossible(job, hardware)
        return
    opened = [kind for kind in able if kind.open]
    suiting = hardware.suiting(job)
    if opened:
        yield from _busy(job, opened, suiting)
        yield from sick_counts(job, opened, suiting)[:_MOST_SICK]
    yield from _closed(closed for kind in able for closed in kind.closed)


def _busy(job: Waiting, kinds: Sequence[NodeKind], suiting: frozenset[GpuKind]) -> Iterator[Reason]:
    """What the node nearest to fitting the job lacks. Where no GPU is free anywhere, none is nearer than another."""
    found = [kind.free(job, suiting) for kind in kinds]
    best = max(found, key=lambda free: free.rank)
    node = best.ledger if best.here or not job.gpus else kinds[0].open[0]
    name = node.node.name
    if best.here < least(job):
        reason: Reason = {
            "code": "BUSY_GPUS", "asked": least(job), "free": best.here, "free_in_all": sum(f.in_all for f in found),
            "total": sum(kind.on_paper(suiting) * len(kind.open) for kind in kinds), "node": name,
        }  # fmt: skip
        yield {**reason, "milli": job.gpu_milli} if shares(job) else reason
    if best.here or not job.gpus:
        if job.millicpus > node.millicpus:
            yield {"code": "BUSY_CPUS", "asked": job.millicpus, "free": max(node.millicpus, 0), "node": name}
        if job.memory_mib > node.memory_mib:
            yield {"code": "BUSY_MEMORY", "asked": job.memory_mib, "free": max(node.memory_mib, 0), "node": name}


def _closed(reasons: Iterable[Reason]) -> Iterator[Reason]:
    """Hosts that take no job, gathered by why: one sentence for all silent ones, one for all cordoned ones."""
    gathered: dict[str, list[str]] = {}
    why: dict[str, str] = {}
    for closed in reasons:
        if "nodes" in closed:
            gathered.setdefault(closed["code"], []).extend(closed["nodes"])
            why |= closed.get("why", {})
        else:
            yield closed
    for code, nodes in gathered.items():
        told = {node: why[node] for node in sorted(nodes) if node in why}
        yield {"code": code, "nodes": sorted(nodes), **({"why": told} if told else {})}


def _impossible(job: Waiting, hardware: Hardware) -> list[Reason]:
    if hardware.able(job):
        return []
    return list(_too_large(job, hardware)) or [{"code": "TOO_LARGE_TOGETHER"}]


def _too_large(job: Waiting, hardware: Hardware) -> Iterator[Reason]:
    if job.labels and not any(job.labels <= kind.labels for kind in hardware.kinds):
        yield {"code": "NO_LABELS", "labels": sorted(job.labels)}
    if job.gpus:
        reason = _no_such_gpus(job, hardware)
        if reason is not None:
            yield reason
    cpus = max(hardware.kinds, key=lambda kind: kind.millicpus)
    if job.millicpus > cpus.millicpus:
        yield {"code": "TOO_LARGE_CPUS", "asked": job.millicpus, "most": cpus.millicpus, "node": cpus.all[0].node.name}
    memory = max(hardware.kinds, key=lambda kind: kind.memory_mib)
    if job.memory_mib > memory.memory_mib:
        yield {
            "code": "TOO_LARGE_MEMORY", "asked": job.memory_mib, "most": memory.memory_mib,
            "node": memory.all[0].node.name,
        }  # fmt: skip


def _no_such_gpus(job: Waiting, hardware: Hardware) -> Reason | None:
    models, suiting = hardware.models(), hardware.suiting(job)
    if job.gpu_model and not set(job.gpu_model.split("|")) & set(models):
        return {"code": "NO_GPU_MODEL", "model": job.gpu_model, "models": models}
    if models and not suiting:
        return _no_such_kind(job, hardware)
    most, node = max((kind.on_paper(suiting), kind.all[0].node.name) for kind in hardware.kinds)
    if least(job) > most:
        return {"code": "TOO_LARGE_GPUS", "asked": least(job), "most": most, "node": node}
    return None


def _no_such_kind(job: Waiting, hardware: Hardware) -> Reason:
    """No GPU of the model is shared, or has the MIG profile, or the memory."""
    if shares(job) and hardware.suiting(replace(job, gpu_milli=WHOLE, is_share=False)):
        cut = {gpu.model for gpu in hardware.samples.values() if is_cut(gpu)}
        return {"code": "NO_SHARED_GPU", "models": sorted(cut)}
    profiles = sorted({profile for _model, _memory, profile, _slots in hardware.samples})
    if job.gpu_profile not in profiles:
        return {"code": "NO_GPU_PROFILE", "profile": job.gpu_profile, "profiles": [p for p in profiles if p]}
    wanted = job.gpu_model.split("|")
    most = max((memory or 0 for model, memory, profile, _slots in hardware.samples
                if profile == job.gpu_profile and (not job.gpu_model or model in wanted)), default=0)  # fmt: skip
    return {"code": "NO_GPU_MEMORY", "asked_mib": job.gpu_memory_mib, "most_mib": most}
