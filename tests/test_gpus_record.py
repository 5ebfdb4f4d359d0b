"""Readings on their way into the database and Redis."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpus import history
from gpus.availability import why_unavailable
from gpus.inventory import Inventory
from gpus.minutes import METRICS, Minutes, of_gpus
from gpus.models import GPU, GPUMinute, Node
from gpus.readings import GpuReading, HostReading, Process, decode
from gpus.record import Recorder
from portal import live
from tests.rigs.redis import RedisServer

AT = 1_764_500_040.0  # the start of a minute


def gpu(index: int = 0, **fields: Any) -> GpuReading:
    defaults: dict[str, Any] = {
        "uuid": f"GPU-{index}", "model": "NVIDIA RTX 4090", "pci": f"00000000:0{index}:00.0", "memory_mib": 24564,
        "memory_used_mib": 3, "utilisation": 0, "power_w": 25.5, "temperature_c": 38,
    }  # fmt: skip
    return GpuReading(index=index, **{**defaults, **fields})


def host(*gpus: GpuReading, at: float = AT, **fields: Any) -> HostReading:
    return HostReading(
        **{"node": "alpha", "at": at, "status": "ok", "driver_version": "570.86.10", **fields}, gpus=gpus
    )


BOB = Process(pid=4242, memory_mib=9000, user="bob", name="python3", kind="foreign")
BUSY = gpu(processes=(BOB,), busy_outside=True, memory_used_mib=9003)


@pytest.fixture
def now() -> datetime:
    return timezone.now() + timedelta(seconds=1)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading is due to be written."""
    monkeypatch.setattr("gpus.inventory._REFRESH", 0)


@pytest.mark.django_db
def test_the_first_reading_makes_node_and_gpus(now: datetime) -> None:
    """microsoft/pai#4985: inventory is what the driver says."""
    Inventory("alpha").update(host(gpu(0), gpu(1)))
    node = Node.objects.get()
    assert (node.name, node.gpu_status, node.driver_version) == ("alpha", "ok", "570.86.10")
    rows = list(GPU.objects.all())
    assert [(row.uuid, row.index, row.model, row.memory_mib, row.health) for row in rows] == [
        ("GPU-0", 0, "NVIDIA RTX 4090", 24564, "ok"),
        ("GPU-1", 1, "NVIDIA RTX 4090", 24564, "ok"),
    ]
    assert [why_unavailable(row, now) for row in rows] == [None, None]


@pytest.mark.django_db
def test_an_admins_wishes_stay(eager: None) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(gpu()))
    GPU.objects.update(hidden=True, slots=2)
    Node.objects.update(cordoned=True, reserved_memory_mib=1024)
    inventory.update(host(gpu(), driver_version="580.1"))
    row = GPU.objects.select_related("node").get()
    assert (row.hidden, row.slots, row.node.cordoned, row.node.reserved_memory_mib) == (True, 2, True, 1024)
    assert row.node.driver_version == "580.1"


@pytest.mark.django_db
def test_nothing_new_is_not_written_again_at_once(django_assert_num_queries: Callable[..., Any]) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(gpu(0), gpu(1)))
    with django_assert_num_queries(0):
        for second in range(1, 4):
            inventory.update(host(gpu(0, utilisation=second), gpu(1, power_w=99.0), at=AT + second))


@pytest.mark.django_db
def test_a_refresh_is_one_statement(eager: None, django_assert_num_queries: Callable[..., Any]) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(*map(gpu, range(8))))
    with django_assert_num_queries(3):  # the transaction's two, and one for eight GPUs
        inventory.update(host(*map(gpu, range(8)), at=AT + 5))


@pytest.mark.django_db
def test_a_lost_gpu_is_marked_at_once_and_keeps_what_was_known(now: datetime) -> None:
    """XuehaiPan/nvitop#139, rossumai/nvgpu#6."""
    inventory = Inventory("alpha")
    inventory.update(host(gpu(0), gpu(1)))
    lost = GpuReading(uuid="GPU-0", index=0, health="lost", message="handle: GPU is lost")
    inventory.update(host(lost, gpu(1), at=AT + 1))
    sick, well = GPU.objects.all()
    assert (sick.health, sick.health_message) == ("lost", "handle: GPU is lost")
    assert (sick.model, sick.pci_bus_id, sick.memory_mib) == ("NVIDIA RTX 4090", "00000000:00:00.0", 24564)
    assert why_unavailable(sick, now)["code"] == "GPU_UNHEALTHY"  # type: ignore[index]
    assert why_unavailable(well, now) is None
    inventory.update(host(gpu(0), gpu(1), at=AT + 2))
    assert GPU.objects.get(index=0).health == "ok"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reading", "health", "reason"),
    [
        (host(gpu(0)), "missing", "the others are there"),
        (host(status="no_gpu"), "missing", "the driver has none"),
        (host(status="no_driver"), "ok", "nobody was asked"),
        (host(status="driver_mismatch"), "ok", "nobody was asked"),
        (host(status="hung"), "ok", "no answer"),
    ],
)
def test_a_gpu_that_is_no_longer_reported_is_missing(reading: HostReading, health: str, reason: str) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(gpu(0), gpu(1)))
    inventory.update(reading)
    assert GPU.objects.get(uuid="GPU-1").health == health, reason
    inventory.update(host(gpu(0), gpu(1)))
    assert GPU.objects.get(uuid="GPU-1").health == "ok"


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["no_library", "no_driver", "no_gpu", "driver_mismatch", "hung", "error"])
def test_a_host_in_trouble_takes_no_gpu_jobs_until_it_is_well(status: Any, now: datetime) -> None:
    """pando85/homelab#4110, leptonai/gpud#117."""
    inventory = Inventory("alpha")
    inventory.update(host(gpu()))
    inventory.update(host(status=status, message="its own words"))
    row = GPU.objects.select_related("node").get()
    assert (row.node.gpu_status, row.node.gpu_message) == (status, "its own words")
    assert why_unavailable(row, now)["code"] == "DRIVER"  # type: ignore[index]
    inventory.update(host(gpu()))
    assert why_unavailable(GPU.objects.get(), now) is None


@pytest.mark.django_db
def test_a_gpu_that_the_driver_reports_as_broken_is_quarantined_once(now: datetime) -> None:
    """NVIDIA/k8s-device-plugin#267, Azure/azurehpc#648: but not for what users' own programs do wrong."""
    inventory = Inventory("alpha")
    inventory.update(host(gpu(0, xid=31, xid_at=AT), gpu(1, xid=79, xid_at=AT)))
    theirs, broken = GPU.objects.select_related("node")
    assert (theirs.quarantine_reason, broken.quarantine_reason) == ("", "Xid 79")
    assert why_unavailable(broken, now)["code"] == "GPU_QUARANTINED"  # type: ignore[index]
    GPU.objects.update(quarantine_reason="")  # an admin has looked at it
    inventory.update(host(gpu(0), gpu(1, xid=79, xid_at=AT), at=AT + 1))
    assert GPU.objects.get(index=1).quarantine_reason == ""
    inventory.update(host(gpu(0), gpu(1, xid=79, xid_at=AT + 2), at=AT + 2))
    assert GPU.objects.get(index=1).quarantine_reason == "Xid 79"


@pytest.mark.django_db
def test_a_gpu_moved_to_another_host_moves_in_the_inventory() -> None:
    alpha, beta = Inventory("alpha"), Inventory("beta")
    alpha.update(host(gpu(0), gpu(1)))
    beta.update(host(replace(gpu(1), index=0), node="beta"))
    alpha.update(host(gpu(0), at=AT + 1))
    moved = GPU.objects.select_related("node").get(uuid="GPU-1")
    assert (moved.node.name, moved.index, moved.health) == ("beta", 0, "ok")
    assert GPU.objects.count() == 2


@pytest.mark.django_db
def test_a_row_deleted_by_an_admin_comes_back_with_its_gpu(eager: None) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(gpu()))
    GPU.objects.all().delete()
    for second in range(1, 4):
        inventory.update(host(gpu(), at=AT + second))
    assert GPU.objects.get().health == "ok"


@pytest.mark.django_db
def test_a_gpu_in_use_from_outside_is_free_after_two_clean_samples(now: datetime) -> None:
    """clearml/clearml-agent#71, roscisz/TensorHive#208."""
    inventory = Inventory("alpha")
    verdicts = []
    for second, read in enumerate([gpu(), BUSY, BUSY, gpu(), gpu(), gpu()]):
        inventory.update(host(read, at=AT + second))
        found = why_unavailable(GPU.objects.select_related("node").get(), now)
        verdicts.append(found and found["code"])
    assert verdicts == [None, "GPU_BUSY_OUTSIDE", "GPU_BUSY_OUTSIDE", "GPU_BUSY_OUTSIDE", None, None]


@pytest.mark.django_db
def test_who_is_on_it_from_outside_is_told(now: datetime) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(BUSY))
    outsider = {"pid": 4242, "user": "bob", "name": "python3", "memory_mib": 9000, "container": None}
    assert GPU.objects.get().outsiders == [outsider]
    inventory.update(host(gpu(busy_outside=True, memory_used_mib=8192), at=AT + 1))
    assert GPU.objects.get().outsiders == [
        {"pid": None, "user": None, "name": None, "memory_mib": 8192, "container": None}
    ]


@pytest.mark.django_db
def test_clean_samples_start_anew_with_every_outsider(now: datetime) -> None:
    inventory = Inventory("alpha")
    for second, read in enumerate([BUSY, gpu(), BUSY, gpu()]):
        inventory.update(host(read, at=AT + second))
    assert why_unavailable(GPU.objects.get(), now) is not None
    inventory.update(host(gpu(), at=AT + 4))
    assert why_unavailable(GPU.objects.get(), now) is None


@pytest.mark.django_db
def test_an_outsider_is_remembered_over_a_restart_of_the_agent(now: datetime) -> None:
    Inventory("alpha").update(host(BUSY))
    after = Inventory("alpha")
    after.update(host(gpu(), at=AT + 1))
    assert why_unavailable(GPU.objects.get(), now) is not None
    after.update(host(gpu(), at=AT + 2))
    assert why_unavailable(GPU.objects.get(), now) is None


@pytest.mark.django_db
def test_changing_memory_of_an_outsider_is_not_written_every_second(
    django_assert_num_queries: Callable[..., Any],
) -> None:
    inventory = Inventory("alpha")
    inventory.update(host(BUSY))
    with django_assert_num_queries(0):
        inventory.update(host(replace(BUSY, processes=(replace(BOB, memory_mib=9001),)), at=AT + 1))


@pytest.mark.django_db
def test_minutes_are_means_and_the_unknown_is_left_out(eager: None) -> None:
    inventory = Inventory("alpha")
    for second in range(0, 61, 10):
        power = None if second >= 20 else 100.0 + second
        inventory.update(host(gpu(utilisation=second, power_w=power, temperature_c=None), at=AT + second))
    start = datetime.fromtimestamp(AT, UTC)
    [row] = history.minutes("GPU-0", start, start + timedelta(hours=1))
    assert row == {
        "minute": start, "utilisation": 25.0, "memory_mib": 3.0, "power_w": 105.0, "temperature_c": None,
        "sm_clock_mhz": None, "mem_clock_mhz": None, "throttle": None,
    }  # fmt: skip


@pytest.mark.django_db
def test_a_minute_met_again_is_one_row() -> None:
    """An agent restarted within a minute writes it twice."""
    for utilisation in (10, 30):
        inventory = Inventory("alpha")
        inventory._written_at = float("-inf")
        inventory.update(host(gpu(utilisation=utilisation), at=AT + 1))
        inventory._written_at = float("-inf")
        inventory.update(host(gpu(), at=AT + 61))
    assert [row.utilisation for row in GPUMinute.objects.all()] == [30.0]


def test_minutes_without_a_reading_are_absent() -> None:
    minutes = Minutes(tuple(METRICS))
    assert minutes.add(AT, of_gpus([gpu()])) == []
    [done] = minutes.add(AT + 300, of_gpus([gpu()]))
    assert done.start == AT
    assert minutes.add(AT + 301, of_gpus([gpu()])) == []


# --- Redis ---


@pytest.mark.django_db
def test_the_last_readings_and_the_samples_are_in_redis(redis_server: RedisServer) -> None:
    import time

    now = time.time()
    recorder = Recorder("alpha")
    for back in (3, 2, 1):
        recorder.record(host(gpu(utilisation=back, job=12), at=now - 100 * back))
    assert decode(redis_server.client().get(history.host_key("alpha"))).gpus[0].utilisation == 1  # type: ignore[arg-type]
    assert history.latest("alpha")["gpus"][0]["job"] == 12
    samples = history.recent("GPU-0", 600)
    assert [sample["utilisation"] for sample in samples] == [3, 2, 1]
    assert set(samples[0]) == {
        "at", "utilisation", "memory_used_mib", "power_w", "temperature_c", "sm_clock_mhz", "mem_clock_mhz",
        "throttle", "job",
    }  # fmt: skip
    assert [sample["utilisation"] for sample in history.recent("GPU-0", 150)] == [1]
    assert history.recent_of(["GPU-0", "GPU-9"], 600)["GPU-9"] == []
    thinned = history.recent_of(["GPU-0"], 600, every=2)["GPU-0"]
    assert [sample["utilisation"] for sample in thinned] == [3, 1], "the newest is one of them"


@pytest.mark.django_db
def test_samples_are_kept_for_an_hour_and_no_longer(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_SAMPLES", 5)
    recorder = Recorder("alpha")
    for second in range(61):
        recorder.record(host(gpu(), at=AT + second))
    client = redis_server.client()
    assert client.llen(history.gpu_key("GPU-0")) == 5
    assert 0 < client.ttl(history.gpu_key("GPU-0")) <= 2 * 3600
    assert 0 < client.ttl(history.host_key("alpha")) <= 60


@pytest.mark.django_db
def test_news_are_published(redis_server: RedisServer) -> None:
    listener = redis_server.client().pubsub()
    listener.psubscribe("*.live.gpus:*")
    listener.get_message(timeout=60)
    Recorder("alpha").record(host(gpu()))
    message = listener.get_message(timeout=60)
    listener.close()
    assert message is not None
    assert decode(message["data"]).node == "alpha"


@pytest.mark.django_db
def test_without_redis_the_database_is_written_and_history_is_empty(redis_server: RedisServer) -> None:
    redis_server.stop()
    live.connection().close()
    try:
        recorder = Recorder("alpha")
        for second in range(3):
            recorder.record(host(gpu(), at=AT + second))
        assert GPU.objects.get().health == "ok"
        assert (history.latest("alpha"), history.recent("GPU-0", 60)) == ({}, [])
    finally:
        redis_server.start()
    recorder._redis_from = 0
    recorder.record(host(gpu(), at=AT + 9))
    assert history.latest("alpha")["node"] == "alpha"


@pytest.mark.django_db
def test_a_database_that_fails_is_tried_again_and_redis_goes_on(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """roscisz/TensorHive#290: one failing part stops no other."""
    from django.db import OperationalError, connection

    recorder = Recorder("alpha")
    with connection.execute_wrapper(_fails(OperationalError("the database is away"))):
        recorder.record(host(gpu(), at=AT))
    assert not GPU.objects.exists()
    assert history.latest("alpha")["gpus"][0]["uuid"] == "GPU-0"
    recorder.record(host(gpu(), at=AT + 1))
    assert GPU.objects.get().health == "ok"


def _fails(error: Exception) -> Callable[..., Any]:
    def wrapper(*_: Any, **__: Any) -> Any:
        raise error

    return wrapper
