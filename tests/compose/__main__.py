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
from tests.compose.further import FurtherHost
from tests.compose.installation import Installation
from tests.compose.project import PATIENCE
from tests.compose.visitor import Visitor
from tests.rigs.engine import Engine, can_run
from tests.rigs.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "/var/cache")) / "dockyard-test-compose"
COUNT = "i=0; until [ -e enough ]; do i=$((i + 1)); echo line $i; sleep 0.3; done; echo end $i"


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
    with _engine() as engine, _copy() as folder:
        _further(FurtherHost(engine, folder, installation), visitor)


def _further(host: FurtherHost, visitor: Visitor) -> None:
    """A second machine, for all that the portal can tell: it has another engine and other folders."""
    try:
        with _step("Join a further GPU host by compose, and start its node"):
            host.bring_image()
            host.join("second")
            host.up()
        with _step("Run a job there while the first host is busy"):
            busy = visitor.submit(name="busy", script="exec sleep 900", gpus=4)
            job = visitor.submit(name="there", script="echo hello from there", gpus=4)
            ended = _ended(visitor, job)
            _must((ended["state"], ended["run"]["node"]) == ("SUCCEEDED", "second"), ended)
            _must(visitor.log(job) == b"hello from there\n", visitor.log(job))
            visitor.cancel(busy)
            _must(_ended(visitor, busy)["run"]["node"] != "second", busy)
        print(host.doctor("node"))
    except BaseException:
        host.show()
        raise
    finally:
        host.down()


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
    _more_lines(visitor, job, 5)
    for service in ("web", "node"):
        installation.kill(service)
    installation.wait_healthy("web", "front")
    _more_lines(visitor, job, 20)
    installation.replace("node")
    _more_lines(visitor, job, 20)
    [folder] = (installation.data / "workspaces").glob(f"*/jobs/{job}")
    (folder / "enough").touch()
    ended = _ended(visitor, job)
    _must(ended["state"] == "SUCCEEDED", ended)
    _must(visitor.is_whole(job), "a job has ended before its log is whole")
    *lines, last = visitor.log(job).splitlines()
    _must(lines == [b"line %d" % number for number in range(1, len(lines) + 1)], lines)
    _must(last == b"end %d" % len(lines), last)


def _more_lines(visitor: Visitor, job: int, count: int) -> None:
    there = len(visitor.log(job).splitlines())
    wait_until(lambda: len(visitor.log(job).splitlines()) >= there + count, f"{count} lines more than {there}",
               seconds=PATIENCE, every=0.5)  # fmt: skip


def _ended(visitor: Visitor, job: int) -> dict[str, Any]:
    ends = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT", "LOST")
    return wait_until(lambda: (found := visitor.job(job))["state"] in ends and found, "its end", seconds=PATIENCE,
                      every=0.5)  # fmt: skip


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
