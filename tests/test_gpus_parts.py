"""Parts of GPUs and who is near whom: MIG instances, NVLink islands, NUMA nodes, as the library tells them or not."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from gpus import simulated
from gpus.availability import why_unavailable
from gpus.checks import check_simulated_mig
from gpus.inventory import Inventory
from gpus.models import GPU
from gpus.readings import HostReading, decode
from jobs import snapshot
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories
from tests.rigs.nvml import Nvml

Read = Callable[[], HostReading]


def test_a_split_gpu_is_read_as_its_instances_and_not_whole(nvml: Nvml, read: Read) -> None:
    """NVIDIA/k8s-device-plugin#446: what a parent in MIG mode can give are its instances."""
    whole, split = nvml.add_gpus(2, name="NVIDIA A100-SXM4-80GB")
    parts = nvml.split(1, "1g.10gb", "3g.40gb")
    reading = read()
    assert [(gpu.uuid, gpu.index, gpu.profile) for gpu in reading.gpus] == [
        (whole, 0, ""), (parts[0], 1, "1g.10gb"), (parts[1], 1, "3g.40gb")
    ]  # fmt: skip
    assert [gpu.memory_mib for gpu in reading.gpus] == [24564, 10240, 40960]
    assert {gpu.model for gpu in reading.gpus} == {"NVIDIA A100-SXM4-80GB"}
    assert (reading.split, reading.message, reading.gpus[1].health) == ((split,), "", "ok")
    assert reading.gpus[1].utilisation is None, "an instance tells no load, which is not 0"
    assert decode(reading.encode()) == reading


def test_instances_come_and_go_while_the_library_is_open(nvml: Nvml, read: Read) -> None:
    """NVIDIA/libcudacxx#224: deleted instances were still counted."""
    [uuid] = nvml.add_gpus(1)
    assert [gpu.uuid for gpu in read().gpus] == [uuid]
    parts = nvml.split(0, "1g.10gb", "1g.10gb")
    assert [gpu.uuid for gpu in read().gpus] == parts
    nvml.set_gpu(0, mig=0)
    assert (read().gpus, read().split) == ((), (uuid,))
    nvml.set_gpu(0, mig=None)
    assert [gpu.uuid for gpu in read().gpus] == [uuid]


def test_islands_and_numa_nodes_are_told_or_unknown(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(4)
    assert {(gpu.island, gpu.numa) for gpu in read().gpus} == {(None, None)}, "a driver without these calls"


def test_gpus_joined_by_nvlink_are_one_island(nvml: Nvml, read: Read) -> None:
    nvml.add_gpus(4)
    for index, others in enumerate(["2", "", "0", ""]):
        nvml.set_gpu(index, nvlink=others, numa=index % 2)
    assert [(gpu.island, gpu.numa) for gpu in read().gpus] == [(0, 0), (1, 1), (0, 0), (3, 1)]


@pytest.mark.django_db
def test_a_gpu_that_was_split_is_not_offered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpus.inventory._REFRESH", 0)
    inventory = Inventory("alpha")
    sizes: dict[str, Any] = {"count": 2, "model": "NVIDIA A100", "memory_mib": 40960}
    inventory.update(simulated.read_host("alpha", [], 1e9, **sizes))
    inventory.update(simulated.read_host("alpha", [], 1e9 + 1, mig={1: ["1g.10gb", "2g.20gb"]}, island=2, **sizes))
    rows = {row.uuid: row for row in GPU.objects.select_related("node")}
    gone = rows[simulated.gpu_uuid("alpha", 1)]
    assert (why_unavailable(gone, timezone.now()) or {})["code"] == "GPU_UNHEALTHY"
    assert gone.health == "split"
    assert gone.uuid not in [gpu.uuid for node in snapshot.hardware(timezone.now()) for gpu in node.gpus]
    parts = GPU.objects.exclude(profile="").order_by("memory_mib")
    assert [(part.profile, part.memory_mib, part.numa, part.island) for part in parts] == [
        ("1g.10gb", 10240, 0, None), ("2g.20gb", 20480, 0, None)
    ]  # fmt: skip
    assert (rows[simulated.gpu_uuid("alpha", 0)].island, why_unavailable(parts[0], timezone.now())) == (0, None)


@pytest.mark.parametrize(
    ("text", "found"), [("", []), ("0:1g.10gb+3g.40gb", []), ("0:half", ["gpus.E002"]), ("x", ["gpus.E002"])]
)
def test_a_description_of_simulated_instances_is_checked(text: str, found: list[str], settings: Any) -> None:
    settings.SIMULATED_MIG = text
    assert [message.id for message in check_simulated_mig(None)] == found


@pytest.mark.django_db
def test_slots_change_only_while_nobody_is_on_the_gpu(client: Client, root_admin: User, alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    run = factories.make_run(factories.make_job(alice), node)
    client.force_login(root_admin)
    gpu = node.gpus.get()
    address = reverse("admin:gpus_gpu_change", args=[gpu.pk])
    assert "A job is on it" in client.post(address, {"slots": 4, "quarantine_reason": ""}).content.decode()
    run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now())
    assert client.post(address, {"slots": 4, "quarantine_reason": ""}).status_code == 302
    gpu.refresh_from_db()
    assert gpu.slots == 4
