"""A private Docker engine: the real dockerd, with its own data root, socket and address pools.

On its PATH is an executable `nvidia-container-runtime-hook`, so that the engine takes GPU device requests
and sets `NVIDIA_VISIBLE_DEVICES`; what the hook does is decided by a file that a test may write.
Needs root. Several may run at once: each is a host of its own.
"""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import requests

from portal.busybox import busybox_tar
from portal.demo.engine import drop_rules
from tests.rigs.processes import Guard, processes_naming, tail_of, terminate, wait_until

BUSYBOX = "dockyard-test/busybox:latest"
WITH_ENTRYPOINT = "dockyard-test/entrypoint:latest"

STARTING = Path(tempfile.gettempdir(), "dockyard-test-engine.lock")

UNREACHABLE = (docker.errors.DockerException, requests.RequestException)

_HOOK = """#!/bin/sh
echo "$@" >> "$0.calls"
[ -e "$0.sh" ] && . "$0.sh"
exit 0
"""
_ENTRYPOINT = """#!/bin/sh
echo "entrypoint of the image, with: $*"
echo "GREETING=$GREETING"
"""


def can_run() -> str:
    """Empty where an engine can be started here; otherwise why not."""
    if os.geteuid() != 0:
        return "a Docker engine needs root"
    missing = [name for name in ("dockerd", "iptables", "busybox") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class Engine:
    """One dockerd. `start` and `stop` may alternate: images and containers live in its data root until `remove`."""

    _pools = iter(range(os.getpid() % 100, 256))

    def __init__(self, *, live_restore: bool = False, bridge: str = "none", extra: tuple[str, ...] = ()) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dky-engine-"))  # short: socket paths have 108 bytes
        self.socket = self.root / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.log = self.root / "dockerd.log"
        self.live_restore = live_restore
        self.bridge = bridge
        self.extra = extra
        self._pool = next(self._pools)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._bin = self.root / "bin"
        self.hook = self._bin / "nvidia-container-runtime-hook"
        self._bin.mkdir()
        (self.root / "daemon.json").write_text("{}")  # not the machine's own
        self.hook.write_text(_HOOK)
        self.hook.chmod(0o755)

    # --- the GPU hook ---

    def hook_does(self, shell: str) -> None:
        """Let the hook run these shell lines at each start of a GPU container: `echo why >&2; exit 1` fails it."""
        Path(f"{self.hook}.sh").write_text(shell + "\n")

    def hook_works(self) -> None:
        """The hook does nothing, successfully, again."""
        Path(f"{self.hook}.sh").unlink(missing_ok=True)

    @property
    def hook_calls(self) -> int:
        """How often the engine called the hook so far."""
        calls = Path(f"{self.hook}.calls")
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    # --- its life ---

    def start(self) -> None:
        """Start dockerd and wait until it answers.

        One at a time on a machine: each makes the firewall's chains of all engines anew, and fails if another does so.
        """
        with STARTING.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._start()
            except RuntimeError as error:
                if "iptables" not in str(error):
                    raise
                self._start()  # an engine that is none of ours was in the way

    def _start(self) -> None:
        (self.root / "docker.pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}", "DOCKER_RAMDISK": ""},
            )  # fmt: skip
        self._guard = Guard(self._process, signal.SIGTERM)
        wait_until(self._answers, f"dockerd at {self.root}", seconds=240)

    def _command(self) -> list[str]:
        return [
            "dockerd",
            f"--host={self.url}",
            f"--data-root={self.root}/data",
            f"--exec-root={self.root}/exec",
            f"--pidfile={self.root}/docker.pid",
            f"--bridge={self.bridge}",
            f"--default-address-pool=base=10.{self._pool}.128.0/17,size=24",
            f"--config-file={self.root}/daemon.json",
            *(["--live-restore"] if self.live_restore else []),
            *self.extra,
        ]

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"dockerd ended with {self._process.returncode}: {tail_of(self.log)}")
        with contextlib.suppress(*UNREACHABLE), self.client() as client:
            return bool(client.ping())
        return False

    def stop(self) -> None:
        """SIGTERM, as a package upgrade does: without live-restore it stops the containers first."""
        if self._process is not None and self._guard is not None:
            self._guard.release()
            terminate(self._process, seconds=120)
            self._process = self._guard = None

    def kill(self) -> None:
        """SIGKILL. containerd goes with it; the containers' shims and processes stay, as after a crash."""
        if self._process is not None and self._guard is not None:
            self._guard.release()
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = self._guard = None
            self._forget_containerd()

    def _forget_containerd(self) -> None:
        """containerd dies with dockerd; its pid file would make the next dockerd wait for a zombie of that number."""
        pid_file = self.root / "exec" / "containerd" / "containerd.pid"
        wait_until(lambda: not processes_naming(f"{pid_file.parent}/containerd.toml"), "containerd gone after dockerd")
        pid_file.unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def configure(self, **options: object) -> None:
        """Give the running engine this daemon.json, of which it takes what it can without a restart."""
        assert self._process
        (self.root / "daemon.json").write_text(json.dumps(options))
        told = self._reloads()
        self._process.send_signal(signal.SIGHUP)
        wait_until(lambda: self._reloads() > told, "the engine has read its configuration anew")

    def _reloads(self) -> int:
        return self.log.read_bytes().count(b"Reloaded configuration")

    def remove(self) -> None:
        """Stop everything and leave nothing behind: no process, no mount, no bridge, no firewall rule, no file."""
        with contextlib.suppress(*UNREACHABLE, RuntimeError, TimeoutError):
            if self._process is None:
                self.start()  # only it knows its bridges
            self.remove_containers()
            with self.client() as client:
                bridges = [n.attrs["Options"].get("com.docker.network.bridge.name", "") for n in client.networks.list()]
                client.networks.prune()
            for bridge in filter(None, bridges):
                drop_rules(bridge)
        self.stop()
        for pid in processes_naming(str(self.root)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for mount in reversed(_mounts_under(self.root)):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)

    # --- what is on it ---

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        """A client of this engine, closed after use."""
        client = docker.DockerClient(base_url=self.url, timeout=120, version="1.41")
        try:
            yield client
        finally:
            client.close()

    def remove_containers(self) -> None:
        """Remove every container, running or not."""
        with self.client() as client:
            for container in client.containers.list(all=True, ignore_removed=True):
                with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
                    container.remove(force=True, v=True)

    def load_images(self) -> None:
        """Import the test images: BUSYBOX has a shell and nothing else, WITH_ENTRYPOINT has what images can have."""
        with self.client() as client:
            self._import(client, BUSYBOX, _plain_tar(), ["ENV PATH=/bin"])
            changes = [
                "ENV PATH=/bin", "ENV GREETING=hello", "WORKDIR /srv", 'ENTRYPOINT ["/entrypoint.sh"]',
                'CMD ["default", "words"]', "LABEL purpose=test",
            ]  # fmt: skip
            self._import(client, WITH_ENTRYPOINT, busybox_tar({"entrypoint.sh": _ENTRYPOINT}), changes)

    @staticmethod
    def _import(client: docker.DockerClient, name: str, tar: bytes, changes: list[str]) -> None:
        repository, _, tag = name.partition(":")
        client.api.import_image_from_data(tar, repository=repository, tag=tag, changes=changes)


@functools.cache
def _plain_tar() -> bytes:
    return busybox_tar()


def _mounts_under(root: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [point for point in (line.split()[1] for line in lines) if point.startswith(f"{root}/")]


@contextlib.contextmanager
def running_engine(*, live_restore: bool = False, images: bool = True) -> Iterator[Engine]:
    """An engine for as long as the block runs."""
    engine = Engine(live_restore=live_restore)
    try:
        engine.start()
        if images:
            engine.load_images()
        yield engine
    finally:
        engine.remove()
