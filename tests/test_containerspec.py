"""What the engine is asked for, as data: nothing that opens the host, and GPUs by UUID alone."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.containerspec import AllocationEmpty, Bind, RunFacts, build

FACTS = RunFacts(
    installation="main", job=12, run=30, attempt=2, image="busybox", image_variables=frozenset(), image_working_dir="",
    command_kind="script", script="echo a && echo b", entrypoint=(), arguments=(), environment={}, gpus_asked=0,
    gpu_uuids=(), injection="toolkit", uid=20001, gid=20002, millicpus=1500, memory_mib=2048, shm_mib=512, pids=4096,
    workspace="/data/workspaces/7", binds=(), network="dockyard-main", log_limit_bytes=1 << 30,
)  # fmt: skip
TWO = replace(FACTS, gpus_asked=2, gpu_uuids=("GPU-a", "GPU-b"))


def env(facts: RunFacts) -> dict[str, str | None]:
    rows = (row.partition("=") for row in build(facts)["Env"])
    return {name: value if sep else None for name, sep, value in rows}


def host(facts: RunFacts) -> dict[str, Any]:
    found: dict[str, Any] = build(facts)["HostConfig"]
    return found


def test_exactly_one_device_request_by_uuid() -> None:
    """Of two requests the engine heeds the last; by count it gives 0, 1, … to everybody: microsoft/pai#2910."""
    (request,) = host(TWO)["DeviceRequests"]
    assert (request["DeviceIDs"], request["Count"], request["Capabilities"]) == (["GPU-a", "GPU-b"], 0, [["gpu"]])


@pytest.mark.parametrize("uuids", [(), ("GPU-a",), ("GPU-a", "GPU-b", "GPU-c")])
def test_a_gpu_job_without_its_gpus_is_refused_before_create(uuids: tuple[str, ...]) -> None:
    """An empty list of devices starts a container without a GPU and without an error."""
    with pytest.raises(AllocationEmpty):
        build(replace(TWO, gpu_uuids=uuids))


def test_a_job_without_gpus_sees_none() -> None:
    """microsoft/pai#1667: with no device request the engine passes `all` through untouched."""
    facts = replace(FACTS, environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert env(facts)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "DeviceRequests" not in host(facts)


@pytest.mark.parametrize("injection", ["toolkit", "cdi", "runtime", "none"])
def test_neither_the_users_nor_the_images_value_decides_the_gpus(injection: str) -> None:
    """ytsaurus/ytsaurus#269, Project-HAMi/HAMi#469."""
    image = frozenset({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS", "CUDA_VISIBLE_DEVICES", "NVIDIA_REQUIRE_CUDA"})
    facts = replace(TWO, injection=injection, image_variables=image, environment={"NVIDIA_DRIVER_CAPABILITIES": "all"})
    found = env(facts)
    assert found["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert found["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert found["NVIDIA_IMEX_CHANNELS"] is None, "a name without a value removes the image's"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "NVIDIA_REQUIRE_CUDA" not in found


def test_what_an_image_preloads_reaches_no_hook_of_the_host() -> None:
    """NVIDIA/nvidia-container-toolkit#1208, Azure/aks-gpu#61: a root process of the host loaded the image's library."""
    found = env(replace(TWO, image_variables=frozenset({"LD_PRELOAD", "LANG"})))
    assert found == {**env(TWO), "LD_PRELOAD": None}


def test_neither_signal_nor_health_check_is_the_image_s_to_say() -> None:
    found = build(replace(FACTS, stop_signal="SIGINT"))
    assert (found["Healthcheck"], found["StopSignal"]) == ({"Test": ["NONE"]}, "SIGINT")


def test_other_ways_to_inject() -> None:
    (request,) = host(replace(TWO, injection="cdi"))["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"])
    assert host(replace(TWO, injection="runtime"))["Runtime"] == "nvidia"
    none = host(replace(TWO, injection="none"))
    assert "DeviceRequests" not in none
    assert "Runtime" not in none


def test_nothing_that_opens_the_host() -> None:
    """NVIDIA/nvidia-docker#764, #1405."""
    found = host(FACTS)
    assert found["Privileged"] is False
    assert {"MKNOD", "NET_RAW", "AUDIT_WRITE"} <= set(found["CapDrop"])
    assert found["SecurityOpt"] == ["no-new-privileges"]
    assert found["RestartPolicy"] == {"Name": "no"}
    assert found["AutoRemove"] is False
    assert not {"Devices", "CapAdd", "PidMode", "IpcMode", "UTSMode", "VolumesFrom", "CgroupParent"} & set(found)
    assert found["NetworkMode"] == "dockyard-main"
    assert build(FACTS)["User"] == "20001:20002"


def test_limits() -> None:
    found = host(FACTS)
    assert (found["Memory"], found["MemorySwap"], found["ShmSize"]) == (2 << 30, 2 << 30, 512 << 20)
    assert (found["NanoCpus"], found["PidsLimit"], found["Init"]) == (1_500_000_000, 4096, True)


def test_the_engines_own_log_does_not_rotate_below_the_runs_limit() -> None:
    """moby/moby#37646, #39235: a rotating log loses what a reader has not had yet."""
    config = host(FACTS)["LogConfig"]
    assert config["Type"] == "local"
    assert config["Config"]["max-file"] == "1"
    assert int(config["Config"]["max-size"]) > FACTS.log_limit_bytes


def test_a_script_runs_by_a_shell_in_place_of_the_entry_point() -> None:
    config = build(FACTS)
    assert config["Entrypoint"] == ["/bin/sh", "-c"]
    assert config["Cmd"] == ["trap 'wait; exit 143' TERM; echo a && echo b"]
    assert config["WorkingDir"] == "/workspace/jobs/12"


def test_the_images_own_command_is_left_alone_unless_replaced() -> None:
    own = replace(FACTS, command_kind="image", image_working_dir="/app")
    assert not {"Entrypoint", "Cmd"} & set(build(own))
    assert build(own)["WorkingDir"] == "/app"
    changed = build(replace(own, entrypoint=("/run",), arguments=("a b", "$HOME")))
    assert (changed["Entrypoint"], changed["Cmd"]) == (["/run"], ["a b", "$HOME"])


def test_python_does_not_buffer_unless_somebody_wants_it_to() -> None:
    """docker-library/python#604: nothing was seen until the end."""
    assert env(FACTS)["PYTHONUNBUFFERED"] == "1"
    assert env(replace(FACTS, environment={"PYTHONUNBUFFERED": ""}))["PYTHONUNBUFFERED"] == ""
    assert "PYTHONUNBUFFERED" not in env(replace(FACTS, image_variables=frozenset({"PYTHONUNBUFFERED"})))


def test_mounts_are_read_only_where_the_admin_said_so() -> None:
    """brigadecore/brigade#1701."""
    binds = (Bind(source="/data/sets", target="/mnt/sets", read_only=True),)
    found = host(replace(FACTS, binds=binds))["Binds"]
    assert found == ["/data/workspaces/7:/workspace:rw", "/data/sets:/mnt/sets:ro"]
    with pytest.raises(ValueError, match="colon"):
        build(replace(FACTS, binds=(Bind(source="/data:/etc", target="/mnt/x", read_only=True),)))


def test_a_container_is_found_again_by_its_labels() -> None:
    assert build(FACTS)["Labels"] == {
        "dockyard.installation": "main", "dockyard.job": "12", "dockyard.run": "30", "dockyard.attempt": "2",
    }  # fmt: skip
