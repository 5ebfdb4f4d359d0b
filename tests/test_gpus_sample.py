"""The agent's sampling loop, from the source to the records."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from gpus import history
from gpus.availability import why_unavailable
from gpus.claims import Claim
from gpus.models import GPU, Node
from gpus.sample import _Round, run_sampler
from gpus.simulated import gpu_uuid, read_host
from tests.rigs.engine import BUSYBOX, Engine
from tests.rigs.nvml import MIB, MISMATCH, standing_in
from tests.rigs.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Loop:
    """A running sampler, its claims, and what may go wrong with them."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.error: Exception | None = None
        self.asked = 0
        self.stop, self.sample_now = threading.Event(), threading.Event()

    def give(self) -> list[Claim]:
        self.asked += 1
        if self.error:
            raise self.error
        return self.claims


@contextmanager
def running(node: str = "alpha") -> Iterator[Loop]:
    loop = Loop()

    def work() -> None:
        try:
            run_sampler(node, loop.give, loop.stop, loop.sample_now)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop.set()
        loop.sample_now.set()
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.SAMPLE_PERIOD = 0.2
    settings.SIMULATED_GPUS = 2


def claim(uuid: str, container: str = "a" * 64) -> Claim:
    return Claim(gpu_uuid=uuid, container_id=container, job=12, run=30, owner="alice")


def seen(node: str = "alpha") -> list[dict[str, Any]]:
    """The last reading's GPUs; empty while there are none."""
    return list(history.latest(node).get("gpus", []))


def test_simulated_gpus_appear_and_work_for_their_claims() -> None:
    with running() as loop:
        wait_until(lambda: len(seen()) == GPU.objects.count() == 2, "both GPUs")
        assert [row.uuid for row in GPU.objects.all()] == [gpu_uuid("alpha", 0), gpu_uuid("alpha", 1)]
        wait_until(lambda: Node.objects.get().gpu_status == "simulated", "the host's status")
        loop.claims = [claim(gpu_uuid("alpha", 1))]
        wait_until(lambda: seen()[1]["job"] == 12, "the claim")
        idle, busy = seen()
        assert (idle["utilisation"], idle["job"]) == (0, None)
        assert busy["utilisation"] > 0
        assert (busy["owner"], busy["processes"][0]["kind"], busy["busy_outside"]) == ("alice", "job", False)


def test_a_container_made_while_the_library_was_read_is_no_outsider(settings: Any) -> None:
    """NVIDIA/nvidia-docker#1483: the portal's own job reported as an intruder."""
    settings.SIMULATED_GPUS = 1
    uuid = gpu_uuid("alpha", 0)

    class Late(Loop):
        def give(self) -> list[Claim]:
            """Claims of before and after the reading in turn: the second asking knows the container."""
            self.asked += 1
            return [claim(uuid, "b" * 64)] if self.asked % 2 else [claim(uuid, "a" * 64)]

    loop = Late()
    reading = read_host("alpha", [claim(uuid)], 1.7e9, count=1, model="A100", memory_mib=40960)
    round_ = _Round("alpha", loop.give)
    round_._refresh_claims()
    round_._record(reading)
    assert loop.asked == 2
    assert seen()[0]["processes"][0]["kind"] == "job"
    assert GPU.objects.get().busy_outside_since is None


def test_nothing_was_sampled_before_the_first_reading() -> None:
    """roscisz/TensorHive#70: no GPU, and no alarm either."""
    node = Node.objects.create(name="alpha")
    GPU.objects.create(uuid="GPU-1", node=node, index=0)
    from django.utils import timezone

    found = why_unavailable(GPU.objects.get(), timezone.now())
    assert found is not None
    assert (found["code"], found["sampled_at"]) == ("GPU_UNSAMPLED", None)


def test_claims_that_cannot_be_read_leave_the_last_ones_standing() -> None:
    with running() as loop:
        loop.claims = [claim(gpu_uuid("alpha", 0))]
        wait_until(lambda: seen() and seen()[0]["job"] == 12, "the claim")
        loop.error = RuntimeError("no claims today")
        before = loop.asked
        wait_until(lambda: loop.asked > before + 3, "further samples")
        assert seen()[0]["job"] == 12


def test_a_sample_can_be_had_at_once(settings: Any) -> None:
    settings.SAMPLE_PERIOD = 60
    with running() as loop:
        wait_until(lambda: seen(), "the first sample")
        first = history.latest("alpha")["at"]
        loop.sample_now.set()
        wait_until(lambda: history.latest("alpha")["at"] > first, "a sample out of turn")


def test_a_gpu_lost_to_an_outsider_and_regained(settings: Any) -> None:
    """clearml/clearml-agent#71, microsoft/pai#3372: by the real way from the library to the rows."""
    settings.GPU_DRIVER = "nvml"
    with standing_in() as nvml:
        [uuid] = nvml.add_gpus(1)
        with running():
            wait_until(lambda: GPU.objects.filter(health="ok", busy_outside_since=None).exists(), "a free GPU")
            nvml.set_gpu(0, used=9000 * MIB, Compute=f"1:{8990 * MIB}")
            row = wait_until(lambda: GPU.objects.filter(busy_outside_since__isnull=False).first(), "the outsider")
            assert (row.uuid, row.outsiders[0]["pid"], row.outsiders[0]["user"]) == (uuid, 1, "root")
            nvml.set_gpu(0, used=9000 * MIB, Compute=None)
            wait_until(lambda: GPU.objects.get().outsiders[0]["pid"] is None, "memory without a process")
            nvml.set_gpu(0, used=3 * MIB)
            wait_until(lambda: GPU.objects.get().busy_outside_since is None, "free again")


def test_a_driver_in_trouble_stops_neither_the_loop_nor_the_containers_figures(settings: Any, tmp_path: Any) -> None:
    """roscisz/TensorHive#290, #289, pando85/homelab#4110."""
    settings.GPU_DRIVER = "nvml"
    with standing_in() as nvml:
        nvml.set(init_rc=MISMATCH)
        with running() as loop:
            wait_until(lambda: Node.objects.filter(gpu_status="driver_mismatch").exists(), "the mismatch")
            before = loop.asked
            wait_until(lambda: loop.asked > before + 3, "further samples")
            nvml.set(init_rc=None)
            nvml.add_gpus(1)
            wait_until(lambda: Node.objects.get().gpu_status == "ok", "the driver well again")


def test_a_real_containers_process_is_the_jobs_and_is_measured(settings: Any, engine: Engine) -> None:
    """NVIDIA/nvidia-docker#1483, tkestack/gpu-manager#60, roscisz/TensorHive#290: from a host pid to its job.

    What the containers use is known with and without a working driver.
    """
    settings.GPU_DRIVER = "nvml"
    with engine.client() as client:
        container = client.containers.run(
            BUSYBOX, ["sh", "-c", "while :; do :; done"], detach=True, network_mode="none"
        )
        container.reload()
    with standing_in() as nvml, running() as loop:
        nvml.set(init_rc=MISMATCH)
        [uuid] = nvml.add_gpus(1)
        loop.claims = [claim(uuid, container.id or "")]
        wait_until(lambda: history.latest("alpha").get("status") == "driver_mismatch", "the mismatch")
        [use] = wait_until(lambda: [c for c in history.latest("alpha")["containers"] if c["cpu_percent"]], "its CPU")
        assert (use["job"], use["run"]) == (12, 30)
        assert use["memory_mib"] is not None
        nvml.set_gpu(0, used=2000 * MIB, Compute=f"{container.attrs['State']['Pid']}:{1990 * MIB}")
        nvml.set(init_rc=None)
        wait_until(lambda: seen() and seen()[0]["processes"], "the process")
        [gpu] = seen()
        assert (gpu["job"], gpu["owner"], gpu["busy_outside"]) == (12, "alice", False)
        [process] = gpu["processes"]
        assert (process["kind"], process["job"], process["container"]) == ("job", 12, container.id)


def test_one_hosts_trouble_is_not_anothers(settings: Any) -> None:
    """roscisz/TensorHive#290."""
    settings.GPU_DRIVER = "nvml"
    with standing_in() as nvml, running("alpha"):
        nvml.set(init_rc=MISMATCH)
        wait_until(lambda: Node.objects.filter(name="alpha", gpu_status="driver_mismatch").exists(), "the mismatch")
        settings.GPU_DRIVER = "simulated"
        with running("beta"):
            wait_until(lambda: len(seen("beta")) == 2, "the other host's GPUs")
        assert Node.objects.get(name="beta").gpu_status == "simulated"


def test_the_loop_outlives_a_database_that_fails() -> None:
    with running() as loop:
        wait_until(lambda: seen(), "the first sample")
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE gpus_gpu RENAME TO gpus_gpu_away")
        try:
            before = loop.asked
            wait_until(lambda: loop.asked > before + 3, "further samples")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE gpus_gpu_away RENAME TO gpus_gpu")
        before = loop.asked
        wait_until(lambda: loop.asked > before + 3, "further samples")
        assert seen()
