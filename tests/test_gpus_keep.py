"""What is kept of the readings for good: minutes of containers, and what each run used."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from gpus import history
from gpus.inventory import Inventory
from gpus.minutes import Use, Uses
from gpus.models import ContainerMinute, GPUMinute, RunUse
from gpus.readings import ContainerReading, GpuReading, HostReading, Process, throttle_mask

AT = 1_764_500_040.0  # the start of a minute
START = datetime.fromtimestamp(AT, UTC)


def container(run: int = 30, **values: Any) -> ContainerReading:
    return ContainerReading(job=12, run=run, **values)


def gpu(number: int = 0, **fields: Any) -> GpuReading:
    return GpuReading(uuid=f"GPU-{number}", index=number, **{"jobs": (12,), "runs": (30,), **fields})


def host(at: float, *gpus: GpuReading, containers: tuple[ContainerReading, ...] = ()) -> HostReading:
    return HostReading(node="alpha", at=at, status="ok", gpus=gpus, containers=containers)


def used(*readings: HostReading) -> Use:
    """What run 30 used by readings a second apart each."""
    uses = Uses()
    for reading in readings:
        uses.add(reading)
    return uses.so_far()[30]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading is due to be written."""
    monkeypatch.setattr("gpus.inventory._REFRESH", 0)


@pytest.mark.django_db
def test_containers_are_kept_by_the_minute_and_to_their_last_second() -> None:
    """dstackai/dstack#2618: metrics of finished runs, whose last minute is no whole one."""
    inventory = Inventory("alpha")
    for second, memory in ((0, 100), (30, 300), (61, 50), (62, 70)):
        busy = container(cpu_percent=100.0, memory_mib=memory, read_kib_s=None, sent_kib_s=8.0)
        inventory.update(host(AT + second, containers=(busy,)))
    assert ContainerMinute.objects.count() == 1
    inventory.update(host(AT + 63))
    first, last = history.minutes_of_run(30, START, START + timedelta(hours=1))
    assert (first["memory_mib"], last["memory_mib"], last["minute"]) == (200, 60, START + timedelta(minutes=1))
    assert (first["cpu_percent"], first["read_kib_s"], first["sent_kib_s"]) == (100, None, 8)
    assert [row.memory_max_mib for row in ContainerMinute.objects.order_by("minute")] == [300, 70]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_away", [True, False], ids=["database-away", "database-there"])
def test_a_minute_with_a_sample_that_hung_is_one_row_of_the_whole_minute(is_away: bool) -> None:
    """The one GPU and the one run were gone for that sample: PostgreSQL writes no row twice in one statement."""

    def fails(*_: Any) -> None:
        raise OperationalError("away")

    inventory = Inventory("alpha")
    inventory.update(host(AT, gpu(utilisation=10), containers=(container(cpu_percent=10.0, memory_mib=300),)))
    with connection.execute_wrapper(fails) if is_away else nullcontext():
        for second, *there in ((1,), (2, 30), (3, 50), (60, 90)):
            busy = [gpu(utilisation=load) for load in there]
            loads = tuple(container(cpu_percent=float(load), memory_mib=load) for load in there)
            with pytest.raises(OperationalError) if is_away else nullcontext():
                inventory.update(host(AT + second, *busy, containers=loads))
            inventory.forget()
    inventory.update(host(AT + 61, gpu(), containers=(container(),)))
    assert [row.utilisation for row in GPUMinute.objects.all()] == [30.0]
    assert [(row.cpu_percent, row.memory_max_mib) for row in ContainerMinute.objects.all()] == [(30.0, 300)]


@pytest.mark.django_db
def test_what_a_run_used_adds_up_over_restarts_of_the_agent() -> None:
    for begin in (0, 300):
        inventory = Inventory("alpha")
        for second in range(4):
            busy = container(cpu_percent=50.0, memory_mib=100 + begin)
            inventory.update(host(AT + begin + second, gpu(power_w=100.0, utilisation=40), containers=(busy,)))
        inventory.update(host(AT + begin + 4))
    use = RunUse.objects.get(run=30)
    assert (use.seconds, use.cpu_seconds, use.energy_j) == (6, 3, 600)
    assert (use.memory_max_mib, use.gpus_busy_max, use.gpu_known_seconds) == (400, 1, 6)


def test_an_idle_gpu_among_busy_ones_shows() -> None:
    """rackslab/Slurm-web#288: allocation is not utilisation."""
    use = used(*(host(AT + s, gpu(0, utilisation=90), gpu(1, utilisation=2)) for s in range(3)))
    assert (use.gpus_busy_max, use.gpu_known_seconds, use.gpu_idle_seconds) == (1, 4, 2)
    assert use.gpu_busy_seconds == pytest.approx(2 * 0.92)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"utilisation": None, "profile": "1g.10gb"}, "a MIG instance tells no load"),
        ({"utilisation": 50, "power_w": 90.0, "jobs": (12, 13), "runs": (30, 31)}, "one shared is nobody's own"),
    ],
)
def test_a_load_that_is_not_known_is_not_counted_as_none(fields: dict[str, Any], reason: str) -> None:
    use = used(host(AT, gpu(**fields)), host(AT + 1, gpu(**fields)))
    assert (use.seconds, use.gpu_known_seconds, use.gpus_busy_max, use.energy_j) == (1, 0, None, None), reason


def test_on_a_shared_gpu_only_the_own_processes_count_as_memory() -> None:
    own, other = (Process(pid=job, memory_mib=100 * job, kind="job", job=job) for job in (12, 13))
    shared = gpu(jobs=(12, 13), runs=(30, 31), memory_used_mib=2600, processes=(own, other))
    assert used(host(AT, shared), host(AT + 1, shared)).gpu_memory_max_mib == 1200


def test_time_without_readings_is_not_counted() -> None:
    """The agent was away: nothing is known of it, and least of all that the GPU was idle."""
    use = used(host(AT, gpu(utilisation=0)), host(AT + 900, gpu(utilisation=0)), host(AT + 901, gpu(utilisation=0)))
    assert (use.seconds, use.gpu_idle_seconds) == (1, 1)


def test_reasons_of_throttling_are_one_number() -> None:
    assert [throttle_mask(codes) for codes in (None, (), ("power_cap", "heat"), ("heat", "of another version"))] == [
        None, 0, 3, 2,
    ]  # fmt: skip


@pytest.mark.django_db
def test_minutes_of_containers_go_with_those_of_gpus() -> None:
    old = [ContainerMinute(run=run, minute=START) for run in range(3)]
    ContainerMinute.objects.bulk_create([*old, ContainerMinute(run=1, minute=START + timedelta(days=2))])
    assert history.forget(START + timedelta(days=1), most=2) == 2
    assert history.forget(START + timedelta(days=1), most=2) == 1
    assert ContainerMinute.objects.count() == 1
