"""Where a job that hardware has failed is tried again: on other hardware, as long as there is some that would do."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpus.models import Node
from jobs import endings
from jobs.models import AllocationSlot, Run
from jobs.policy import Node as Host
from jobs.policy import Waiting
from jobs.policy.alike import could_ever_fit
from jobs.policy.ledger import Ledger
from jobs.states import CHARGED_TO, Charge, EndReason

KEPT_OFF_FOR = timedelta(minutes=30)  # since the end: then what has failed once is tried again rather than waited for


def blamed(jobs: Collection[int], now: datetime) -> dict[int, frozenset[str]]:
    """Of waiting jobs whose last run was ended by hardware: the UUIDs of GPUs and names of hosts to stay away from."""
    if not jobs:
        return {}
    rows = Run.objects.filter(job__in=jobs, ended_at__gt=now - KEPT_OFF_FOR).order_by("number")
    last = {job: (run, node, _charged(reason, words)) for run, job, node, reason, words in
            rows.values_list("pk", "job_id", "node_id", "end_reason", "engine_message")}  # fmt: skip
    of_host = {job: node for job, (_run, node, charge) in last.items() if charge is Charge.HOST}
    of_gpus = {run: job for job, (run, _node, charge) in last.items() if charge is Charge.GPU}
    on_host: dict[int, set[str]] = defaultdict(set)
    of_nodes = Node.objects.filter(pk__in=set(of_host.values())).values_list("pk", "name", "gpus__uuid")
    for node, name, uuid in of_nodes:
        on_host[node] |= {name, uuid} if uuid else {name}
    held: dict[int, set[str]] = defaultdict(set)
    slots = AllocationSlot.objects.filter(allocation__run__in=of_gpus)
    for run, uuid in slots.values_list("allocation__run_id", "gpu__uuid"):
        held[of_gpus[run]].add(uuid)
    found = {job: frozenset(on_host[node]) for job, node in of_host.items()}
    return found | {job: frozenset(uuids) for job, uuids in held.items()}


def _charged(reason: str, words: str) -> Charge | None:
    if reason == EndReason.GPU_START_FAILED and endings.is_host_trouble(words):
        return Charge.HOST
    return CHARGED_TO.get(reason)


def narrowed(jobs: Sequence[Waiting], hosts: Iterable[Host]) -> tuple[Waiting, ...]:
    """The jobs, where those that could start nowhere else need stay away from nothing.

    One that was moved for another does, until that has had its GPUs.
    """
    avoiding = [job for job in jobs if job.avoid and not (job.moved and job.yields_to)]
    if not avoiding:
        return tuple(jobs)
    ledgers = [Ledger(host) for host in hosts]
    stuck = {job.id for job in avoiding if not any(could_ever_fit(job, ledger) for ledger in ledgers)}
    return tuple(replace(job, avoid=frozenset()) if job.id in stuck else job for job in jobs)
