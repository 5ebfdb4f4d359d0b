"""A private PostgreSQL cluster on a free port, run as the `postgres` user, since it refuses to run as root."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.rigs.processes import free_port, run_command, tail_of, wait_until


def _program(name: str) -> str:
    """A server program: Debian keeps those of each version in a folder of its own."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"no {name} here; install the Debian package postgresql")
    return path


class Postgres:
    """One cluster with the superuser `dockyard` and the database `dockyard`. Durability is off: it is for tests."""

    def __init__(self, *, port: int = 0, root: Path | None = None) -> None:
        """`root`: a folder that is used again where there is one; made anew without."""
        self.port = port or free_port()
        self.root = root or Path(tempfile.mkdtemp(prefix="dky-pg-"))
        self.root.mkdir(parents=True, exist_ok=True)
        self.data = self.root / "data"
        self.log = self.root / "postgres.log"
        self.url = f"postgres://dockyard@127.0.0.1:{self.port}/dockyard"
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.root, account.pw_uid, account.pw_gid)

    def start(self) -> None:
        if not self.data.exists():
            self._run("initdb", "-D", str(self.data), "-U", "dockyard", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-p {self.port} -h 127.0.0.1 -k {self.root} -F -c full_page_writes=off -c max_connections=200"
        self._run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.log), "-o", options, "start")
        with contextlib.suppress(RuntimeError):  # there already, after a restart
            self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "dockyard", "dockyard")

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def add_standby(self, port: int) -> "Postgres":
        """A copy that follows this one; from then on nothing is committed here before it is written there too."""
        standby = Postgres(port=port)
        self._run("pg_basebackup", "-D", str(standby.data), "-d", self.url, "-R", "-X", "stream", "-c", "fast",
                  "--no-sync")  # fmt: skip
        standby.start()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            wait_until(lambda: connection.execute(follows).fetchone() == (1,), "a standby that follows")
        return standby

    def promote(self) -> None:
        """A standby becomes the one that is written to."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def remove(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        as_postgres = "postgres" if os.geteuid() == 0 else None
        done = subprocess.run(
            [_program(program), *arguments], user=as_postgres, group=as_postgres, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PGCTLTIMEOUT": "240"},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr} {tail_of(self.log)}")


@contextlib.contextmanager
def running_postgres(*, port: int = 0) -> Iterator[Postgres]:
    """A cluster for as long as the block runs."""
    cluster = Postgres(port=port)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


if __name__ == "__main__":  # run a command on a private cluster: python -m tests.rigs.postgres COMMAND…
    with running_postgres() as _cluster:
        _status = run_command(sys.argv[1:], {**os.environ, "DATABASE_URL": _cluster.url})
    raise SystemExit(_status)
