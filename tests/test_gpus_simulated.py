"""The simulated driver: plausible, deterministic, and its load follows the claims."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gpus.attribute import Rules, attribute
from gpus.claims import Claim
from gpus.readings import HostReading
from gpus.simulated import gpu_uuid, read_host

times = st.floats(1.7e9, 2e9)


def claim(index: int, *, node: str = "alpha", container: str = "a" * 64, ended: datetime | None = None) -> Claim:
    return Claim(gpu_uuid=gpu_uuid(node, index), container_id=container, job=1, run=2, owner="alice", ended=ended)


def read(claims: list[Claim], at: float = 1.7e9, count: int = 4, node: str = "alpha") -> HostReading:
    return read_host(node, claims, at, count=count, model="NVIDIA A100-SXM4-40GB", memory_mib=40960)


@given(st.sets(st.integers(0, 3)), times)
def test_load_follows_the_claims(claimed: set[int], at: float) -> None:
    for gpu in read([claim(index) for index in claimed], at).gpus:
        busy = gpu.index in claimed
        assert (gpu.utilisation > 50) if busy else (gpu.utilisation == 0)  # type: ignore[operator]
        assert len(gpu.processes) == busy


@given(st.sets(st.integers(0, 3)), times)
def test_values_are_plausible(claimed: set[int], at: float) -> None:
    reading = read([claim(index) for index in claimed], at)
    assert (reading.status, reading.simulated) == ("simulated", True)
    for gpu in reading.gpus:
        assert 0 <= gpu.utilisation <= 100  # type: ignore[operator]
        assert 0 < gpu.memory_used_mib <= gpu.memory_mib  # type: ignore[operator]
        assert 40 < gpu.power_w < 400  # type: ignore[operator]
        assert 25 < gpu.temperature_c < 80  # type: ignore[operator]
        assert gpu.health == "ok"


@given(st.sets(st.integers(0, 3)), times)
def test_a_simulated_host_has_no_outsiders(claimed: set[int], at: float) -> None:
    claims = [claim(index) for index in claimed]
    gpus = attribute(read(claims, at), claims, Rules()).gpus
    assert not any(gpu.busy_outside for gpu in gpus)
    assert {process.kind for gpu in gpus for process in gpu.processes} <= {"job"}


@given(times)
def test_the_same_claims_and_time_give_the_same_reading(at: float) -> None:
    assert read([claim(1)], at) == read([claim(1)], at)


def test_uuids_are_stable_and_never_shared_by_nodes() -> None:
    uuids = [gpu.uuid for node in ("alpha", "beta") for gpu in read([], node=node).gpus]
    assert len(set(uuids)) == 8
    assert uuids[0] == gpu_uuid("alpha", 0) == "GPU-" + uuids[0].removeprefix("GPU-").lower()
    assert len(uuids[0]) == len("GPU-00000000-1111-2222-3333-444444444444")


def test_a_run_without_its_container_yet_or_any_more_uses_nothing() -> None:
    ended = datetime.fromtimestamp(1.7e9, UTC)
    reading = read([claim(0, container=""), claim(1, ended=ended)])
    assert [gpu.utilisation for gpu in reading.gpus] == [0, 0, 0, 0]


def test_the_load_moves() -> None:
    assert len({read([claim(0)], 1.7e9 + second).gpus[0].utilisation for second in range(60)}) > 5
