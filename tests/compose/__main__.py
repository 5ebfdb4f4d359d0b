"""`make test-compose`: the image is built, compose.yaml runs, and a job goes through it over TLS. As root.

`--pull`: with the real base images, from a registry; otherwise with stand-ins.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.compose import standins
from tests.compose.installation import Installation
from tests.compose.visitor import Visitor
from tests.rigs.engine import Engine, can_run
from tests.rigs.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "/var/cache")) / "dockyard-test-compose"
LINES = 100
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i + 1)); echo line $i; sleep 0.5; done"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--pull", action="store_true", help="use the real base images, from a registry")
    pull = asked.parse_args().pull
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # everything is taken down then too
    problem = can_run() or standins.can_make()
    if problem:
        sys.exit(f"make test-compose cannot run here: {problem}")
    with _engine() as engine, _copy() as folder:
        if not pull:
            with _step(f"Make stand-ins for base images (kept in {CACHE})"):
                standins.bring(engine, CACHE)
        installation = Installation(engine, folder)
        with _step("Build the image"):
            size = installation.build(pull=pull)
        print(f"  {size >> 20} MiB, {(size - installation.base_size()) >> 20} of them ours")
        try:
            _try(installation)
        except BaseException:
            installation.show()
            raise
        finally:
            with _step("Take all down"):
                installation.down()
    print("✓ The product runs by compose.yaml")


def _try(installation: Installation) -> None:
    with _step("Start everything: docker-compose up"):
        installation.up()
    installation.inspect()
    _must(installation.redirects(), "plain HTTP is answered")
    with _step("Log in over TLS"):
        password = installation.make_user("alice")
        visitor = Visitor(installation.port, installation.authority(), installation.token("alice"))
        visitor.log_in("alice", password)
    with _step("Run a job with a GPU, its log by a WebSocket through the front"):
        _first_job(visitor)
    with _step("Kill web and node in the middle of a job, and replace the node as an upgrade does"):
        _interrupted(installation, visitor)
    with _step("Ask manage.py doctor in every container"):
        for service in ("web", "scheduler", "node"):
            print(installation.doctor(service))


def _first_job(visitor: Visitor) -> None:
    job = visitor.submit(name="hello", script="echo hello from $HOSTNAME; id -u; sleep 2; echo bye", gpus=1)
    seen = visitor.watch(job, until=b"bye\n")
    _must(b"hello from" in seen, seen)
    ended = _ended(visitor, job)
    _must(ended["state"] == "SUCCEEDED", ended)
    _must(ended["run"]["verified"], ended)  # by /proc/<pid>/environ of the host
    _must(visitor.log(job).endswith(b"\nbye\n"), visitor.log(job))


def _interrupted(installation: Installation, visitor: Visitor) -> None:
    job = visitor.submit(name="count", script=COUNT, gpus=1)
    wait_until(lambda: b"line 5\n" in visitor.log(job), "its first lines", seconds=60, every=0.5)
    for service in ("web", "node"):
        installation.kill(service)
    installation.wait_healthy("web", "front")
    wait_until(lambda: len(visitor.log(job).splitlines()) > LINES // 4, "more lines", seconds=60, every=0.5)
    installation.replace("node")
    ended = _ended(visitor, job)
    _must(ended["state"] == "SUCCEEDED", ended)
    wait_until(lambda: visitor.is_whole(job), "the whole log is there", seconds=60, every=0.5)
    whole = b"".join(b"line %d\n" % number for number in range(1, LINES + 1))
    _must(visitor.log(job) == whole, visitor.log(job))


def _ended(visitor: Visitor, job: int) -> dict[str, Any]:
    ends = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT", "LOST")
    return wait_until(lambda: (found := visitor.job(job))["state"] in ends and found, "its end", seconds=120, every=0.5)


def _must(fact: bool, seen: object) -> None:
    if not fact:
        raise AssertionError(seen)


@contextlib.contextmanager
def _engine() -> Iterator[Engine]:
    engine = Engine()
    try:
        with _step("Start a private engine"):
            engine.start()
            engine.load_images()
        yield engine
    finally:
        engine.remove()


@contextlib.contextmanager
def _copy() -> Iterator[Path]:
    """What git knows of this checkout or would, in a folder of its own: nothing else is in a clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
        capture_output=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="dky-compose-") as name:
        for path in filter(None, listed.stdout.decode().split("\0")):
            target = Path(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(ROOT / path, target)
        yield Path(name)


@contextlib.contextmanager
def _step(title: str) -> Iterator[None]:
    print(f"· {title} …", flush=True)
    began = time.monotonic()
    yield
    print(f"✓ {title} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
