"""500 MB of lines from one container: until the last byte can be read over HTTP, against docker-py's attach to nowhere.

Both containers print the same file, with the product's own log driver. Both times begin at the container's own
`StartedAt`. The product's whole log is read afterwards and its SHA-256 compared.
"""

import contextlib
import hashlib
import os
import time
import uuid
from datetime import datetime
from pathlib import Path

import docker

from bench._report import report, say
from bench._rig import Client, Product, create_arguments, median, product
from jobs import workspace
from jobs.models import Job

ROUNDS, LINES, LINE = 3, 5_000_000, 100
SIZE = LINES * LINE
RANGE = 4 << 20
LOOK = 0.1  # seconds between two looks at how far the log can be read
PAGE = os.sysconf("SC_PAGE_SIZE")
SCRIPT = "exec cat /workspace/lines"


def make_lines(folder: Path) -> str:
    """Write numbered lines, each but for its number another's like. Returns their SHA-256."""
    digest = hashlib.sha256()
    with (folder / "lines").open("wb") as file:
        for first in range(0, LINES, 10_000):
            block = "".join(f"{number:>{LINE - 1}}\n" for number in range(first, first + 10_000)).encode()
            digest.update(block)
            file.write(block)
    (folder / "lines").chmod(0o644)
    return digest.hexdigest()


class NodeMemory:
    """The most that each of the node's processes held (RSS, MiB), and all, what they share counted once (PSS)."""

    def __init__(self, product: Product) -> None:
        self._stack = product.stack
        self.most: dict[int, float] = {}
        self.together = 0.0

    def look(self) -> None:
        for pid in self._pids():
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.most[pid] = max(self.most.get(pid, 0), round(pages * PAGE / 2**20, 1))

    def look_at_all(self) -> None:
        """Seldom: it stops each process for a moment."""
        found = 0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                found += sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
        self.together = max(self.together, round(found / 1024, 1))

    def _pids(self) -> list[int]:
        pump = int((self._stack.data / "spool" / "pump.pid").read_text())
        return [self._stack.pid("node"), *self._stack.children("node"), pump]


def ours(product: Product, digest: str, memory: NodeMemory) -> float:
    """Seconds from the container's start until the product's HTTP gives the last byte."""
    job = product.post(SCRIPT, gpus=1, cpus=2)
    product.when(job, "RUNNING")
    while not _last_byte_there(product, job):
        memory.look()
        time.sleep(LOOK)
    seconds = time.time() - _started(job)
    memory.look_at_all()
    product.when_ended([job])
    if _digest(product, job) != digest:
        raise RuntimeError("the log is not what was printed")
    product.settle()
    return seconds


def _last_byte_there(product: Product, job: int) -> bool:
    answer = product.http.get(f"/api/jobs/{job}/log", params={"start": SIZE - 1})
    answer.raise_for_status()
    return answer.content == b"\n" and int(answer.headers["X-Log-Size"]) == SIZE


def _started(job: int) -> float:
    started = Job.objects.get(pk=job).started_at
    assert started
    return started.timestamp()


def _digest(product: Product, job: int) -> str:
    digest, at = hashlib.sha256(), 0
    while data := product.http.get(f"/api/jobs/{job}/log", params={"start": at, "end": at + RANGE}).content:
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def theirs(product: Product, folder: Path) -> float:
    """Seconds from the container's start until its attach stream has ended."""
    arguments = create_arguments(SCRIPT, millicpus=2000, workspace=folder)
    with contextlib.closing(Client(product.docker_url)) as client:
        made = client.create_container_from_config(arguments, f"reference-{uuid.uuid4().hex}")
        stream = client.attach(made["Id"], stream=True, stdout=True, stderr=True)
        client.start(made["Id"])
        length = sum(len(part) for part in stream)
        ended = time.time()
        started = client.inspect_container(made["Id"])["State"]["StartedAt"]
        client.wait(made["Id"])
        client.remove_container(made["Id"])
    if length != SIZE:
        raise RuntimeError(f"attach gave {length} bytes")
    return ended - _moment(started)


def _moment(text: str) -> float:
    """The engine's nine digits are more than the library reads."""
    return datetime.fromisoformat(f"{text.rstrip('Z')[:26]}+00:00").timestamp()


def main() -> None:
    rounds = []
    with product() as running:
        folder = workspace.of_user(running.user.pk)
        digest = make_lines(folder)
        memory = NodeMemory(running)
        for number in range(ROUNDS):
            rounds.append((ours(running, digest, memory), theirs(running, folder)))
            say(f"round {number + 1}: ours {rounds[-1][0]:.2f} s, docker-py {rounds[-1][1]:.2f} s")
    mine, reference = (SIZE / 1e6 / median(list(column)) for column in zip(*rounds, strict=True))
    report(
        "logs", figure=mine, reference=reference, ratio=mine / reference, unit="MB/s to the last byte over HTTP",
        detail={
            "bytes": SIZE, "wrong_bytes": 0, "rounds_s": [[round(a, 2), round(b, 2)] for a, b in rounds],
            "node_rss_mib": sorted(memory.most.values(), reverse=True),
            "node_pss_mib": memory.together, "docker_py": docker.__version__,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
