"""The node of the running product, with GPUs from the stand-in for the driver's library instead of simulated ones."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpus.models import GPU, Node
from jobs.models import AllocationSlot
from tests.rigs.nvml import Nvml
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack


class GpuHost:
    """`nvml` gives the answers of the driver; `uuids` are its GPUs."""

    def __init__(self, stack: Stack, nvml: Nvml, uuids: list[str]) -> None:
        self.stack, self.nvml, self.uuids = stack, nvml, uuids

    def gpu(self, index: int) -> GPU:
        return self.stack.orm(lambda: GPU.objects.get(uuid=self.uuids[index]))

    def row(self) -> Node:
        return self.stack.orm(lambda: Node.objects.get(name=self.stack.env["NODE_NAME"]))

    def restart(self, injection: str) -> None:
        """Restart the node with this way of injection, and wait until it has looked at its engine."""
        node = Node.objects.filter(name=self.stack.env["NODE_NAME"])
        self.stack.stop("node")  # which may have looked once more, by its own way
        self.stack.orm(lambda: node.update(engine_error="not looked at"))
        self.stack.restart("node", GPU_DRIVER="nvml", GPU_INJECTION=injection, **self.nvml.environment)
        wait_until(lambda: self.row().engine_error != "not looked at", "a look at the engine")

    def wait_healthy(self) -> None:
        """Until every GPU is there, healthy and nobody's from outside."""
        wait_until(lambda: self.stack.orm(self._all_healthy), "healthy GPUs")

    def _all_healthy(self) -> bool:
        gpus = GPU.objects.filter(uuid__in=self.uuids, health=GPU.Health.OK, busy_outside_since=None)
        return gpus.count() == len(self.uuids) and gpus[0].node.gpu_status == Node.GpuStatus.OK

    def samplers(self) -> list[int]:
        """The processes in which the library is used."""
        found = []
        for pid in self.stack.children("node"):
            with contextlib.suppress(OSError):
                if b"gpus.sampler_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def load_library_anew(self) -> None:
        """End the process that uses the library; the next one loads it afresh."""
        for pid in self.samplers():
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def gpu_host(stack: Stack, *, gpus: int = 2, injection: str = "toolkit") -> Iterator[GpuHost]:
    """For as long as the block runs; then the simulated GPUs are back, and no trace of these."""
    with tempfile.TemporaryDirectory(prefix="nvml-answers-") as folder:
        nvml = Nvml(Path(folder))
        host = GpuHost(stack, nvml, nvml.add_gpus(gpus))
        try:
            host.restart(injection)
            host.wait_healthy()
            yield host
        finally:
            stack.restart("node")
            wait_until(lambda: stack.orm(_are_simulated), "simulated GPUs again")
            stack.orm(lambda: _forget(host.uuids))


def _are_simulated() -> bool:
    node = Node.objects.get(name=os.environ["NODE_NAME"])
    return node.gpu_status == Node.GpuStatus.SIMULATED and node.gpus.filter(health=GPU.Health.OK).exists()


def _forget(uuids: list[str]) -> None:
    AllocationSlot.objects.filter(gpu__uuid__in=uuids).delete()
    GPU.objects.filter(uuid__in=uuids).delete()
