"""Why a job that is not held back by a quota or a gate can't start: every reason, with numbers. Pure.

Kinds are told apart: no such GPU, too large for every host, all busy, kept for another, host closed or sick.
"""

from collections.abc import Iterable, Iterator, Sequence

from jobs.policy.account import Account
from jobs.policy.ledger import Ledger, suits
from jobs.policy.view import Reason, Snapshot, Waiting
from jobs.quotas import Limits, Usage, never, start

NEVER = frozenset(
    {"NO_GPU_MODEL", "NO_GPU_MEMORY", "TOO_LARGE_GPUS", "TOO_LARGE_CPUS", "TOO_LARGE_MEMORY", "TOO_LARGE_TOGETHER"}
)

_ABOVE_A_LIMIT = frozenset({"LARGEST_JOB", "LONGEST_LIMIT", "HIGHEST_PRIORITY", "BUDGET_SIZE"})
_LIMITS_IN_USE = frozenset({"QUOTA_GPUS", "QUOTA_CPUS", "QUOTA_MEMORY"})


def is_final(reason: Reason) -> bool:
    """Whether no waiting lifts this: the hardware there is, or a limit as it is now, can never give what is asked."""
    code = reason["code"]
    if code in _LIMITS_IN_USE:
        return (reason.get("asked") or 0) > (reason.get("limit") or 0)
    return code in NEVER | _ABOVE_A_LIMIT or (code == "QUOTA_RUNNING" and reason.get("limit") == 0)


def gates(job: Waiting, snapshot: Snapshot, account: Account) -> list[Reason]:
    """What holds the job back whatever room there is: holds, pause, start time, quotas, budget."""
    return [*_holds(job), *_switches(job, snapshot), *_quotas(job, snapshot, account)]


def _holds(job: Waiting) -> Iterator[Reason]:
    for who in job.held_by:
        yield {"code": f"HELD_BY_{who.upper()}"}


def _switches(job: Waiting, snapshot: Snapshot) -> Iterator[Reason]:
    if snapshot.paused is not None:
        yield snapshot.paused
    if job.start_after is not None and job.start_after > snapshot.now:
        yield {"code": "START_AFTER", "at": job.start_after.isoformat()}


def _quotas(job: Waiting, snapshot: Snapshot, account: Account) -> Iterator[Reason]:
    levels: list[tuple[Limits, Usage]] = []
    if job.user in snapshot.user_limits:
        levels.append((snapshot.user_limits[job.user], account.users.get(job.user, Usage())))
    if job.team in snapshot.team_limits:
        levels.append((snapshot.team_limits[job.team], account.teams.get(job.team, Usage())))
    refusals = never(job, *(limits for limits, _usage in levels)) or start(job, *levels)
    for refusal in refusals:
        yield refusal.as_dict()


def room(job: Waiting, ledgers: Sequence[Ledger]) -> list[Reason]:
    """Why no node can take the job now; empty when one can."""
    if not ledgers:
        return [{"code": "NO_NODE"}]
    if any(ledger.fits(job) for ledger in ledgers):
        return []
    too_large = impossible(job, ledgers)
    if too_large:
        return too_large
    able = [ledger for ledger in ledgers if _fits_on_paper(job, ledger)]
    opened = [ledger for ledger in able if ledger.node.closed is None]
    reasons = [*_closed(ledger for ledger in able if ledger.node.closed is not None)]
    if opened:
        best = max(opened, key=lambda ledger: (len(ledger.suiting(job)), ledger.millicpus, ledger.memory_mib))
        reasons = [*_busy(job, best, opened), *_sick(job, opened), *reasons, *_help(job, opened)]
    return reasons


def impossible(job: Waiting, ledgers: Sequence[Ledger]) -> list[Reason]:
    """What the hardware there is can't give, were all of it idle and well; empty when some host would do."""
    if any(_fits_on_paper(job, ledger) for ledger in ledgers):
        return []
    return list(_too_large(job, ledgers)) or [{"code": "TOO_LARGE_TOGETHER"}]


def _fits_on_paper(job: Waiting, ledger: Ledger) -> bool:
    """Whether the host would do if it were open, empty and healthy."""
    node = ledger.node
    enough = sum(1 for gpu in node.gpus if _offered(gpu.unavailable) and suits(gpu, job)) >= job.gpus
    return enough and job.millicpus <= node.millicpus and job.memory_mib <= node.memory_mib


def _offered(unavailable: Reason | None) -> bool:
    """Hidden GPUs are not counted as hardware there is."""
    return unavailable is None or unavailable["code"] != "GPU_HIDDEN"


def _too_large(job: Waiting, ledgers: Sequence[Ledger]) -> Iterator[Reason]:
    if job.gpus:
        reason = _no_such_gpus(job, ledgers)
        if reason is not None:
            yield reason
    cpus = max(ledgers, key=lambda ledger: ledger.node.millicpus).node
    if job.millicpus > cpus.millicpus:
        yield {"code": "TOO_LARGE_CPUS", "asked": job.millicpus, "most": cpus.millicpus, "node": cpus.name}
    memory = max(ledgers, key=lambda ledger: ledger.node.memory_mib).node
    if job.memory_mib > memory.memory_mib:
        yield {"code": "TOO_LARGE_MEMORY", "asked": job.memory_mib, "most": memory.memory_mib, "node": memory.name}


def _no_such_gpus(job: Waiting, ledgers: Sequence[Ledger]) -> Reason | None:
    offered = [gpu for ledger in ledgers for gpu in ledger.node.gpus if _offered(gpu.unavailable)]
    models = sorted({gpu.model for gpu in offered})
    if job.gpu_model and job.gpu_model not in models:
        return {"code": "NO_GPU_MODEL", "model": job.gpu_model, "models": models}
    if offered and not any(suits(gpu, job) for gpu in offered):
        most = max((g.memory_mib or 0 for g in offered if not job.gpu_model or g.model == job.gpu_model), default=0)
        return {"code": "NO_GPU_MEMORY", "asked_mib": job.gpu_memory_mib, "most_mib": most}
    counts = {ledger.node.name: _suiting_on_paper(job, ledger) for ledger in ledgers}
    node = max(counts, key=lambda name: counts[name])
    if job.gpus > counts[node]:
        return {"code": "TOO_LARGE_GPUS", "asked": job.gpus, "most": counts[node], "node": node}
    return None


def _suiting_on_paper(job: Waiting, ledger: Ledger) -> int:
    return sum(1 for gpu in ledger.node.gpus if _offered(gpu.unavailable) and suits(gpu, job))


def _closed(ledgers: Iterable[Ledger]) -> Iterator[Reason]:
    """Hosts that take no job, gathered by why: one sentence for all silent ones, one for all cordoned ones."""
    gathered: dict[str, list[str]] = {}
    for ledger in ledgers:
        closed = ledger.node.closed
        assert closed is not None
        if "nodes" in closed:
            gathered.setdefault(closed["code"], []).extend(closed["nodes"])
        else:
            yield closed
    for code, nodes in gathered.items():
        yield {"code": code, "nodes": sorted(nodes)}


def _busy(job: Waiting, best: Ledger, ledgers: Sequence[Ledger]) -> Iterator[Reason]:
    name = best.node.name
    free = len(best.suiting(job))
    if job.gpus > free:
        total = sum(_suiting_on_paper(job, ledger) for ledger in ledgers)
        in_all = sum(len(ledger.suiting(job)) for ledger in ledgers)
        yield {
            "code": "BUSY_GPUS", "asked": job.gpus, "free": free, "free_in_all": in_all, "total": total, "node": name,
        }  # fmt: skip
    if job.millicpus > best.millicpus:
        yield {"code": "BUSY_CPUS", "asked": job.millicpus, "free": max(best.millicpus, 0), "node": name}
    if job.memory_mib > best.memory_mib:
        yield {"code": "BUSY_MEMORY", "asked": job.memory_mib, "free": max(best.memory_mib, 0), "node": name}
    for ledger in ledgers:
        if ledger.kept_for is not None and ledger.hurts_kept(job):
            yield {"code": "KEPT_FOR", "job": ledger.kept_for.id, "node": ledger.node.name}


def _sick(job: Waiting, ledgers: Sequence[Ledger]) -> Iterator[Reason]:
    """GPUs that would suit but can't be given: used from outside, unhealthy, not sampled."""
    for ledger in ledgers:
        counts: dict[str, Reason] = {}
        for gpu in ledger.node.gpus:
            if gpu.unavailable is None or not suits(gpu, job) or not _offered(gpu.unavailable):
                continue
            code = gpu.unavailable["code"]
            reason = counts.setdefault(code, {**gpu.unavailable, "count": 0, "node": ledger.node.name})
            reason["count"] += 1
        yield from counts.values()


def _help(job: Waiting, ledgers: Sequence[Ledger]) -> Iterator[Reason]:
    """What would help at once: the same job with fewer GPUs."""
    if job.gpus < 2:
        return
    most = max(
        (len(led.suiting(job)) for led in ledgers
         if led.kept_for is None and led.millicpus >= job.millicpus and led.memory_mib >= job.memory_mib),
        default=0,
    )  # fmt: skip
    if 0 < most < job.gpus:
        yield {"code": "FITS_WITH", "gpus": most}
