"""What a running product holds that is to go again with the jobs: one number a name, before and after."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, cast

from django.db import connection

from bench._many import Installation
from bench._usage import used_by
from jobs.models import Allocation, AllocationSlot, Job, Run
from jobs.states import ENDED, RunState
from tests.rigs.processes import processes_naming

_NUMBER = re.compile(r"(?<![a-zA-Z])(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|[0-9a-f]{8}|\d+)(?![a-zA-Z0-9])")


def left(running: Installation) -> dict[str, float]:
    """Everything there is of it now."""
    return {
        **_of_processes(running), **_of_redis(running), **_rows(), **_connections(), **_of_engines(running),
        **_on_disk(running),
    }  # fmt: skip


def memory(running: Installation) -> dict[str, float]:
    """MiB of each role."""
    return {name: used.mib for name, used in used_by(running.roles).items()}


def _of_processes(running: Installation) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, used in used_by(running.roles).items():
        if (
            name == "postgres"
        ):  # a process for each connection, which are counted by themselves, with tables as its files
            found["PostgreSQL memory: all connections (MiB)"] = used.mib
            continue
        if name != "redis":  # which holds the newest bytes of each log for an hour: its data are counted by themselves
            found[f"memory: {name} (MiB)"] = used.mib
        found |= {f"files: {name}": used.files, f"threads: {name}": used.threads, f"processes: {name}": used.processes}
    return found


def _of_redis(running: Installation) -> dict[str, float]:
    """Keys that stay until they are deleted, by their shape; the memory of all but those that go by themselves."""
    shapes: Counter[str] = Counter()
    going, memory_of_going = 0, 0
    with running.redis.client() as client:
        for key in client.scan_iter(count=1000):
            if client.ttl(key) == -1:
                shapes[_NUMBER.sub("*", key.decode())] += 1
            else:
                going += 1
                memory_of_going += cast(int, client.memory_usage(key, samples=0) or 0)
        said = cast(dict[str, Any], client.info())
        subscribed = len(cast(list[bytes], client.pubsub_channels()))
    return {
        **{f"Redis key: {shape}": count for shape, count in shapes.items()},
        "Redis keys that expire by themselves": going, "Redis connections": said["connected_clients"],
        "Redis channels listened to": subscribed,
        "Redis memory: but for what expires (MiB)": (said["used_memory"] - memory_of_going) / (1 << 20),
    }  # fmt: skip


def _rows() -> dict[str, float]:
    """Rows that are there only while something goes on."""
    live = Run.objects.exclude(state=RunState.ENDED)
    return {
        "rows: jobs that have not ended": Job.objects.exclude(state__in=ENDED).count(),
        "rows: runs that have not ended": live.count(),
        "rows: allocations held": Allocation.objects.filter(released_at=None).count(),
        "rows: GPU slots held": AllocationSlot.objects.filter(released_at=None).count(),
        "rows: sessions": _number("SELECT count(*) FROM django_session"),
        "rows: cache": _number("SELECT count(*) FROM cache"),
    }


def _connections() -> dict[str, float]:
    backends = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    return {"connections: PostgreSQL": _number(backends)}


def _number(query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        found: int = cursor.fetchone()[0]
    return found


def _of_engines(running: Installation) -> dict[str, float]:
    engines = {"engines": [pid for engine in running.engines.values() for pid in processes_naming(str(engine.root))]}
    used = used_by(engines)["engines"]
    networks = 0
    for engine in running.engines.values():
        with engine.client() as client:
            networks += len(client.api.networks())
    mounts = Path("/proc/self/mounts").read_text()
    return {
        "containers": running.containers(), "networks": networks, "files: engines": used.files,
        "processes: engines": used.processes,
        "mounts of engines": sum(mounts.count(str(engine.root)) for engine in running.engines.values()),
    }  # fmt: skip


def _on_disk(running: Installation) -> dict[str, float]:
    spools = [node.data / "spool" for node in running.nodes.values()]
    return {
        "entries: spools": sum(len(os.listdir(spool)) for spool in spools),
        "entries: temporary files": len(os.listdir(running.scratch)),
    }
