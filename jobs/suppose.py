"""What would happen if one thing were otherwise: asked of the policy that decides, on the picture of now."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from jobs import snapshot
from jobs.models import Job, Run
from jobs.policy import Gpu, Node, Placement, Reason, Snapshot, Waiting, make_plan, onward
from jobs.policy.ledger import slots_of


def without(picture: Snapshot, run: Run) -> Snapshot:
    """The picture with what the run holds given back, to quotas too."""
    held = next((live for live in picture.running if live.run == run.pk), None)
    picture = picture if held is None else onward.without(picture, held)
    slots = dict(held.slots) if held else {}
    nodes = tuple(_less(node, run, slots) if node.name == run.node.name else node for node in picture.nodes)
    return replace(picture, nodes=nodes, running=tuple(live for live in picture.running if live.run != run.pk))


def _less(node: Node, run: Run, slots: dict[str, int]) -> Node:
    return replace(
        node, used_millicpus=node.used_millicpus - run.job.millicpus,
        used_memory_mib=node.used_memory_mib - run.job.memory_mib,
        gpus=tuple(_free(gpu, slots.get(gpu.uuid, 0)) for gpu in node.gpus),
    )  # fmt: skip


def _free(gpu: Gpu, slots: int) -> Gpu:
    return replace(gpu, used_slots=gpu.used_slots - slots) if slots else gpu


def place_for(
    job: Job, run: Run, picture: Snapshot, *, gpus: int, avoid: Sequence[str]
) -> tuple[Placement | None, tuple[Reason, ...]]:
    """Where the running job would start now were its run not there, with just so many GPUs; or why nowhere."""
    asked: Waiting = replace(
        snapshot.waiting(job), id=job.pk, gpus=gpus, least_gpus=None, avoid=frozenset(avoid), held_by=(), pinned=True,
        start_after=None, yields_to=None, begun=True, moved=True,
    )  # fmt: skip
    free = replace(without(picture, run), waiting=(asked,))
    plan = make_plan(free)
    return next((p for p in plan.placements if p.job == job.pk), None), plan.reasons.get(job.pk, ())


def with_placed(picture: Snapshot, job: Job, placed: Placement) -> Snapshot:
    """The picture once the job holds that place."""
    nodes = tuple(_more(node, job, placed.gpu_uuids) if node.name == placed.node else node for node in picture.nodes)
    return replace(picture, nodes=nodes)


def _more(node: Node, job: Job, uuids: Sequence[str]) -> Node:
    asked = snapshot.waiting(job)
    return replace(
        node, used_millicpus=node.used_millicpus + job.millicpus, used_memory_mib=node.used_memory_mib + job.memory_mib,
        gpus=tuple(
            replace(gpu, used_slots=gpu.used_slots + slots_of(asked, gpu)) if gpu.uuid in uuids else gpu
            for gpu in node.gpus
        ),
    )  # fmt: skip


def delays(picture: Snapshot, run: Run, until: datetime) -> dict[int, float | None]:
    """Waiting jobs that would start later if the run might go on `until` then: by how many seconds.

    None: by nobody can say how much, as where a start that had a date would have none.
    """
    longer = tuple(replace(live, ends_by=until) if live.run == run.pk else live for live in picture.running)
    before, after = _starts(picture), _starts(replace(picture, running=longer))
    found: dict[int, float | None] = {}
    for job, at in before.items():
        then = after.get(job)
        if at is not None and (then is None or then > at):
            found[job] = None if then is None else (then - at).total_seconds()
    return found


def _starts(picture: Snapshot) -> dict[int, datetime | None]:
    """When each waiting job starts at the latest, as far as limits tell."""
    plan = make_plan(picture)
    starts: dict[int, datetime | None] = {job: expected.latest for job, expected in plan.expected.items()}
    starts |= {kept.job: kept.at for kept in plan.reservations}
    return starts | {placed.job: picture.now for placed in plan.placements}
