"""The real parts the tests stand on are what they are taken for."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import pytest

from jobs import firewall
from jobs.containerspec import bridge_name
from jobs.models import AllocationSlot
from portal.models import User
from tests import factories
from tests.rigs.engine import BUSYBOX, WITH_ENTRYPOINT, Engine, running_engine
from tests.rigs.processes import has_ended, kill_group, wait_until
from tests.rigs.redis import RedisServer

GPUS = [docker.types.DeviceRequest(device_ids=["GPU-a", "GPU-b"], capabilities=[["gpu"]])]


def test_the_engine_gives_a_container_the_gpus_it_was_asked_for(engine: Engine) -> None:
    before = engine.hook_calls
    with engine.client() as client:
        printed = client.containers.run(BUSYBOX, ["env"], network_mode="none", device_requests=GPUS)
    assert b"NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b\n" in printed
    assert engine.hook_calls == before + 1


def test_a_failing_hook_fails_the_start_of_a_gpu_container(engine: Engine) -> None:
    engine.hook_does("echo 'nvidia-container-cli: device error: unknown device' >&2; exit 1")
    with engine.client() as client, pytest.raises(docker.errors.APIError, match="unknown device"):
        client.containers.run(BUSYBOX, ["env"], network_mode="none", device_requests=GPUS)


def test_an_engine_that_is_removed_leaves_neither_bridge_nor_rule(settings: Any) -> None:
    settings.NODE_NAME = "gone"
    bridge = bridge_name(settings.INSTALLATION, "gone")
    with running_engine(images=False) as engine, pytest.MonkeyPatch.context() as patch:
        settings.DOCKER_HOST = engine.url
        patch.setattr(firewall, "BRIDGE", bridge)
        firewall.ensure("open", ())
        assert Path("/sys/class/net", bridge).exists()
        assert bridge in _rules()
    assert not Path("/sys/class/net", bridge).exists()
    assert bridge not in _rules()


def _rules() -> str:
    return subprocess.run(["iptables", "-w", "5", "-S"], capture_output=True, text=True, check=True).stdout


def test_an_image_may_bring_its_own_entry_point(engine: Engine) -> None:
    with engine.client() as client:
        printed = client.containers.run(WITH_ENTRYPOINT, network_mode="none").decode()
    assert printed == "entrypoint of the image, with: default words\nGREETING=hello\n"


def test_redis_forgets_everything_when_it_restarts(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("a", "b")
    redis_server.restart()
    with redis_server.client() as client:
        assert client.get("a") is None


LEFT_ALONE = """
import time
from tests.rigs.redis import RedisServer
server = RedisServer()
server.start()
print(server._process.pid, server.root, flush=True)
time.sleep(60)
"""


def test_what_a_killed_test_run_has_started_ends_too(settings: Any) -> None:
    """SIGKILL leaves nobody to stop the servers of a run."""
    run = subprocess.Popen([sys.executable, "-c", LEFT_ALONE], cwd=settings.BASE_DIR, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid, root = run.stdout.readline().split()
    assert Path("/proc", pid).exists()
    run.kill()
    run.communicate()
    wait_until(lambda: not Path("/proc", pid).exists(), "its Redis gone")
    shutil.rmtree(root)


def test_a_group_is_killed_with_its_leader_and_only_while_it_has_the_number(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child; exit 3"
    leader = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    wait_until(lambda: has_ended(leader), "the leader's end")
    child = int((tmp_path / "child").read_text())
    assert Path(f"/proc/{child}").exists()
    kill_group(leader)
    assert leader.returncode == 3
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the rest of the group")
    kill_group(leader)  # collected by now: nobody is signalled


def test_the_factories_keep_the_invariants(alice: User) -> None:
    node = factories.make_node(gpus=2)
    run = factories.make_run(factories.make_job(alice, gpus=2), node)
    assert run.gpu_uuids == ["GPU-alpha-0000", "GPU-alpha-0001"]
    assert factories.free_gpus(node) == []
    assert AllocationSlot.objects.count() == 2
