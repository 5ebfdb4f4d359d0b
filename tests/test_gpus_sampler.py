"""The watchdog over the process that NVML lives in."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpus.readings import HostReading
from gpus.sampler import Sampler
from tests.rigs.nvml import MISMATCH, Nvml, standing_in
from tests.rigs.processes import wait_until

PERIOD = 0.3
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    with standing_in() as standin:
        standin.add_gpus(2)
        yield standin


@pytest.fixture
def sampler(nvml: Nvml) -> Iterator[Sampler]:
    sampler = Sampler("alpha", PERIOD)
    yield sampler
    sampler.close()


def read_until(sampler: Sampler, wanted: Callable[[HostReading], bool]) -> list[HostReading]:
    """The readings up to the first that is wanted, at the sampler's pace."""
    seen = []
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if reading := sampler.read():
            seen.append(reading)
            if wanted(reading):
                return seen
        time.sleep(0.02)
    raise TimeoutError(f"only {[reading.status for reading in seen][-5:]}")


def is_ok(reading: HostReading) -> bool:
    return reading.status == "ok"


def is_hung(reading: HostReading) -> bool:
    return reading.status == "hung"


def children() -> list[int]:
    """The sampler processes that this test process has, dead ones not yet collected left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            is_ours = int(fields[1]) == os.getpid() and b"sampler_child" in (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if is_ours and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_call_that_hangs_is_noticed_and_the_child_replaced(nvml: Nvml, sampler: Sampler) -> None:
    """leptonai/gpud#117, NVIDIA/NVSentinel#1576, aristocratos/btop#1612, NVIDIA/go-nvml#152."""
    read_until(sampler, is_ok)
    first = sampler.pid
    nvml.set_gpu(1, utilisation_hang=1)
    [*before, hung] = read_until(sampler, is_hung)
    assert all(reading.status == "ok" for reading in before)
    assert (hung.gpus, hung.node) == ((), "alpha")
    nvml.set_gpu(1, utilisation_hang=None)
    [*still, _] = read_until(sampler, is_ok)
    assert all(reading.status == "hung" for reading in still)
    assert sampler.pid != first


def test_children_never_pile_up(nvml: Nvml, sampler: Sampler) -> None:
    """NVIDIA/go-nvml#152: a child that cannot be killed is not joined by a second one."""
    read_until(sampler, is_ok)
    stuck = sampler.pid
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)
    sampler._child.kill = lambda: None  # type: ignore[union-attr,method-assign]  # the kernel's deaf ear
    read_until(sampler, is_hung)
    end = time.monotonic() + 5 * PERIOD
    while time.monotonic() < end:
        assert is_hung(sampler.read())  # type: ignore[arg-type]
        time.sleep(0.02)
    assert children() == [stuck]
    os.kill(stuck, signal.SIGKILL)
    read_until(sampler, is_ok)
    assert children() == [sampler.pid]


@pytest.mark.parametrize("call", ["utilisation", "memory"])
def test_a_crash_in_the_library_harms_nothing_of_ours(nvml: Nvml, sampler: Sampler, call: str) -> None:
    """XuehaiPan/nvitop#139: a lost GPU took the whole process down."""
    read_until(sampler, is_ok)
    nvml.set_gpu(0, **{f"{call}_crash": 1})
    crashed = read_until(sampler, lambda reading: reading.status == "error")[-1]
    assert "SIGSEGV" in crashed.message
    nvml.set_gpu(0, **{f"{call}_crash": None})
    assert len(read_until(sampler, is_ok)[-1].gpus) == 2


def test_a_killed_child_is_replaced(sampler: Sampler) -> None:
    read_until(sampler, is_ok)
    first = sampler.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    read_until(sampler, lambda reading: not is_ok(reading))
    read_until(sampler, is_ok)
    assert children() == [sampler.pid] != [first]


def test_restarts_that_bring_no_answer_come_at_growing_intervals(nvml: Nvml) -> None:
    """NVIDIA/nvidia-docker#1451 (269 restarts): no crash loop."""
    nvml.set(init_crash=1)
    sampler = Sampler("alpha", 0.05)
    starts: dict[int | None, tuple[float, float]] = {}  # child: from when to when it was started
    try:
        while len(starts) < 5:
            before = time.monotonic()
            sampler.read()
            starts.setdefault(sampler.pid, (before, time.monotonic()))
            time.sleep(0.005)
    finally:
        sampler.close()
    between = [later - earlier for (earlier, _), (_, later) in pairwise(starts.values())]
    assert all(seconds >= 0.05 * periods for seconds, periods in zip(between, (1, 2, 5, 15), strict=True)), between


def test_the_child_ends_with_its_parent(nvml: Nvml, tmp_path: Path) -> None:
    code = (
        "import sys, time; from gpus.sampler import Sampler; s = Sampler('alpha', 1)\n"
        "while not s.read(): pass\n"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_alive(child), "the child gone")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_close_ends_the_child(sampler: Sampler) -> None:
    read_until(sampler, is_ok)
    sampler.close()
    assert children() == []


def test_the_library_lives_in_the_child_alone_and_forks_do_not_lose_it(nvml: Nvml, sampler: Sampler) -> None:
    """NVIDIA/cuCascade#138, plasma-umass/scalene#169, geopm/geopm#3083: NVML is open only where it was opened."""
    read_until(sampler, is_ok)
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
    code = (
        "import os; from gpus import nvml\n"
        "assert nvml.read_host('a').status == 'ok'\n"
        "pid = os.fork()\n"
        "os._exit(0 if len(nvml.read_host('a').gpus) == 2 else 1) if pid == 0 else None\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False).returncode == 0


def test_a_library_replaced_by_an_upgrade_is_loaded_afresh(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pando85/homelab#4110: after an upgrade of the driver the loaded library is the old one for ever."""
    library = tmp_path / "libnvidia-ml.so.1"
    shutil.copy(nvml.library / library.name, library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nvml.set(init_rc=MISMATCH)
    sampler = Sampler("alpha", 1)
    try:
        read_until(sampler, lambda reading: reading.status == "driver_mismatch")
        child, old = sampler.pid, library.stat().st_ino
        shutil.copy(library, tmp_path / "new")
        (tmp_path / "new").replace(library)
        assert library.stat().st_ino != old
        loaded = re.compile(rf" {library.stat().st_ino} +{library}$", re.MULTILINE)
        read_until(sampler, lambda _: loaded.search(Path(f"/proc/{child}/maps").read_text()) is not None)
        assert sampler.pid == child
    finally:
        sampler.close()


def test_the_child_loads_no_django(nvml: Nvml) -> None:
    code = "import sys; import gpus.sampler_child; raise SystemExit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False).returncode == 0


def test_an_answer_that_lay_in_the_pipe_too_long_is_not_passed_off_as_new(nvml: Nvml, sampler: Sampler) -> None:
    read_until(sampler, is_ok)
    sampler._ask()
    assert sampler._child is not None
    select.select([sampler._child.stdout], [], [])  # the answer is there
    time.sleep(4 * PERIOD)  # and the reader was busy elsewhere
    assert sampler.read() is None
    thrown_away = time.time()
    assert read_until(sampler, is_ok)[-1].at >= thrown_away
