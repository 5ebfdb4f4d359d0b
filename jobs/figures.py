"""Figures of the whole installation for Prometheus, each by one bounded query: what waits, runs, is live, ended today.

They are the same whichever web process is asked. Counters begin anew at midnight UTC, which `rate` and `increase`
take for a restart: so no query looks at more than a day, however old the installation is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import redis
from django.db import DatabaseError
from django.db.models import Count, FloatField, Func, Q, Sum
from django.db.models.functions import Coalesce
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gpus import history
from gpus.availability import why_unavailable
from gpus.models import GPU, Node
from jobs import passmeter, queues, snapshot
from jobs.models import AllocationSlot, Cluster, Job, Run
from jobs.models.rules import Priority
from jobs.states import LIVE, WAITING
from portal import nodereports

WAITS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)  # seconds, upper bounds
MIB = 1 << 20
READINGS = {  # of a GPU: its name in a reading, the metric, what it is, and by how much to multiply
    "utilisation": ("dockyard_gpu_utilisation_percent", "Load of a GPU", 1),
    "memory_used_mib": ("dockyard_gpu_memory_used_bytes", "Memory in use on a GPU", MIB),
    "temperature_c": ("dockyard_gpu_temperature_celsius", "Temperature of a GPU", 1),
    "power_w": ("dockyard_gpu_power_watts", "Power that a GPU draws", 1),
}


def take(now: datetime) -> Iterator[Metric]:
    """Every figure as it is now. What can't be read is left out, and `dockyard_database_up` or `_redis_up` is 0."""
    nodes: list[Node] = []
    reached = GaugeMetricFamily("dockyard_database_up", "Whether the database answers", value=1)
    try:
        nodes = list(Node.objects.filter(left_at=None).order_by("name"))
        yield from [*_jobs(), *_ended(now), _waits(now), *_gpus(now), *_nodes(nodes, now), *_scheduler()]
    except DatabaseError:
        reached = GaugeMetricFamily("dockyard_database_up", "Whether the database answers", value=0)
    yield reached
    names = [node.name for node in nodes]
    yield from _readings(names)
    yield from _reports(names)
    try:
        yield from [_queues(names), _passes()]
        up = 1
    except redis.RedisError:
        up = 0
    yield GaugeMetricFamily("dockyard_redis_up", "Whether Redis answers", value=up)


def _gauge(name: str, what: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for values, number in rows:
        family.add_metric(list(values), number)
    return family


def _jobs() -> Iterator[Metric]:
    rows = Job.objects.filter(state__in=WAITING | LIVE).order_by().values_list("state", "priority")
    counts = {(state, priority): n for state, priority, n in rows.annotate(n=Count("pk"))}
    everywhere = ((state, Priority(p)) for state in sorted(WAITING | LIVE) for p in Priority)
    yield _gauge(
        "dockyard_jobs", "Jobs that have not ended, by state", ["state", "priority"],
        (((state, p.name.lower()), counts.get((state, p.value), 0)) for state, p in everywhere),
    )  # fmt: skip
    first = Job.objects.filter(state__in=WAITING).order_by().values("wait_reasons__0__code", "priority")
    yield _gauge(
        "dockyard_jobs_waiting", "Jobs that wait, by the first of their reasons", ["reason", "priority"],
        (
            ((row["wait_reasons__0__code"] or "NOT_LOOKED_AT", Priority(row["priority"]).name.lower()), row["n"])
            for row in first.annotate(n=Count("pk"))
        ),
    )  # fmt: skip


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _ended(now: datetime) -> Iterator[Metric]:
    ended = Run.objects.filter(ended_at__gte=_midnight(now)).order_by()
    family = CounterMetricFamily("dockyard_runs_ended", "Runs that ended, since midnight UTC", labels=["reason"])
    for reason, count in ended.values_list("end_reason").annotate(n=Count("pk")):
        family.add_metric([reason], count)
    yield family


def _waits(now: datetime) -> Metric:
    """From its place in the line, or its owner's letting go, to the start of a job's first container, of today."""
    before = Run.objects.filter(placed_at__lt=_midnight(now)).order_by("-pk").values_list("pk", flat=True).first()
    wait = _Seconds("started_at", Coalesce("job__released_at", "job__queued_at"))
    started = Run.objects.filter(pk__gt=before or 0, number=1, started_at__isnull=False).order_by()
    within = {f"w{n}": Count("pk", filter=Q(wait__lte=most)) for n, most in enumerate(WAITS)}
    by_priority = started.annotate(wait=wait).values("job__priority")
    rows: Iterable[Any] = by_priority.annotate(**within, n=Count("pk"), total=Sum("wait"))
    family = HistogramMetricFamily(
        "dockyard_wait_seconds", "Waits of jobs that started, since midnight UTC", labels=["priority"]
    )
    for row in rows:
        buckets = [(str(float(most)), row[f"w{n}"]) for n, most in enumerate(WAITS)]
        priority = Priority(row["job__priority"]).name.lower()
        family.add_metric([priority], [*buckets, ("+Inf", row["n"])], row["total"])
    return family


class _Seconds(Func):
    """So many seconds the first time is after the second. In SQLite without Django's own way, a Python call a row."""

    template = "EXTRACT(EPOCH FROM (%(expressions)s))"
    arg_joiner = " - "
    output_field = FloatField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        days = [Func(time, function="JULIANDAY") for time in self.get_source_expressions()]
        found = self.copy()
        found.set_source_expressions(days)
        return found.as_sql(compiler, connection, template="((%(expressions)s) * 86400.0)", **context)


def _gpus(now: datetime) -> Iterator[Metric]:
    held = set(AllocationSlot.objects.filter(released_at=None).values_list("gpu_id", flat=True))
    total: Counter[tuple[str, ...]] = Counter()
    states: Counter[tuple[str, ...]] = Counter()
    closed: Counter[tuple[str, ...]] = Counter()
    for gpu in GPU.objects.filter(node__left_at=None).exclude(health=GPU.Health.SPLIT).select_related("node"):
        node, why = gpu.node.name, _why_closed(gpu, now)
        total[node, gpu.model] += 1
        if gpu.pk in held:
            states[node, "allocated"] += 1
        elif why:
            states[node, "unavailable"] += 1
            closed[node, why] += 1
        else:
            states[node, "free"] += 1
    yield _gauge("dockyard_gpus_total", "GPUs, or MIG instances of them", ["node", "model"], total.items())
    yield _gauge("dockyard_gpus", "GPUs by what they are", ["node", "state"], states.items())
    yield _gauge(
        "dockyard_gpus_unavailable", "GPUs that no job holds or may have", ["node", "reason"], closed.items()
    )  # fmt: skip


def _why_closed(gpu: GPU, now: datetime) -> str:
    """Why no job may have the GPU; empty: it may."""
    found = snapshot.why_closed(gpu.node, now) or why_unavailable(gpu, now)
    return str(found["code"]) if found else ""


def _nodes(nodes: list[Node], now: datetime) -> Iterator[Metric]:
    yield _gauge(
        "dockyard_node_last_seen_timestamp_seconds", "When a node was last heard of", ["node"],
        (((node.name,), node.last_seen.timestamp()) for node in nodes if node.last_seen),
    )  # fmt: skip
    yield _gauge(
        "dockyard_node_silent", "1 where a node was not heard of for NODE_SILENT_AFTER", ["node"],
        (((node.name,), not node.is_alive(now)) for node in nodes),
    )  # fmt: skip
    yield _gauge(
        "dockyard_node_cordoned", "1 where no new job starts on a node", ["node"],
        (((node.name,), node.cordoned) for node in nodes),
    )  # fmt: skip
    yield _gauge(
        "dockyard_node_engine_failing", "1 where a node's engine does not do what is asked", ["node"],
        (((node.name,), bool(node.engine_error)) for node in nodes),
    )  # fmt: skip
    yield _gauge(
        "dockyard_node_info", "Versions on a node", ["node", "agent", "engine", "driver"],
        (((node.name, node.agent_version, node.engine_version, node.driver_version), 1) for node in nodes),
    )  # fmt: skip


def _scheduler() -> Iterator[Metric]:
    row = Cluster.objects.filter(pk=1).values_list("last_pass_at", "paused").first()
    last, paused = row or (None, False)
    yield _gauge(
        "dockyard_scheduler_last_pass_timestamp_seconds", "When the last scheduling pass began", [],
        [((), last.timestamp())] if last else [],
    )  # fmt: skip
    yield GaugeMetricFamily("dockyard_starts_paused", "1 while an admin has paused all starts", value=int(paused))


def _readings(nodes: list[str]) -> Iterator[Metric]:
    read = history.latest_of(nodes)
    for field, (name, what, times) in READINGS.items():
        rows = (
            ((node, str(gpu["index"]), gpu["uuid"]), gpu[field] * times)
            for node in nodes
            for gpu in read[node].get("gpus", ())
            if gpu.get(field) is not None
        )
        yield _gauge(name, what, ["node", "index", "gpu"], rows)


def _reports(nodes: list[str]) -> Iterator[Metric]:
    told = nodereports.read(nodes)
    yield _gauge(
        "dockyard_log_behind_bytes", "Output that a node has captured and not shipped yet", ["node"],
        (((node,), told[node]["log_behind_bytes"]) for node in nodes if "log_behind_bytes" in told[node]),
    )  # fmt: skip
    yield _gauge(
        "dockyard_unknown_containers", "Containers on a node of which the database knows no run", ["node"],
        (((node,), len(told[node]["unknown"])) for node in nodes if "unknown" in told[node]),
    )  # fmt: skip
    yield _findings(told)
    yield _gauge(
        "dockyard_log_behind_seconds", "Since when a node's oldest unshipped output waits", ["node"],
        (((node,), told[node]["log_behind_seconds"]) for node in nodes if "log_behind_seconds" in told[node]),
    )  # fmt: skip


def _findings(told: dict[str, nodereports.Report]) -> Metric:
    rows = (
        ((node, verdict), sum(found["verdict"] == verdict for found in report["doctor"]["findings"]))
        for node, report in told.items()
        if "doctor" in report
        for verdict in ("warn", "fail")
    )
    return _gauge("dockyard_node_findings", "What the doctor on a node has found", ["node", "verdict"], rows)


def _queues(nodes: list[str]) -> Metric:
    names = ["scheduler", *(name for node in nodes for name in (queues.node_queue(node), queues.stop_queue(node)))]
    lengths = queues.lengths(names)
    return _gauge(
        "dockyard_rq_queue_length", "Tasks that wait in an RQ queue", ["queue"],
        (((name,), lengths[name]) for name in names),
    )  # fmt: skip


def _passes() -> Metric:
    family = HistogramMetricFamily("dockyard_pass_seconds", "Length of scheduling passes", labels=["kind"])
    for kind, found in passmeter.passes().items():
        bounds = [*(str(bound) for bound in passmeter.BUCKETS), "+Inf"]
        family.add_metric([kind], list(zip(bounds, accumulate(found.counts), strict=True)), found.seconds)
    return family
