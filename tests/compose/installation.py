"""compose.yaml run by docker-compose on a private engine, in a copy of the checkout."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import httpx

from tests.rigs.engine import Engine
from tests.rigs.processes import free_port, wait_until

HOST = "dockyard.example.org"
IMAGE = "dockyard"
SERVICES = ("front", "web", "scheduler", "node", "redis", "postgres")
# Where tests run, root may lack CAP_SYS_RESOURCE, and then may not be spared when memory is short.
OVERRIDE = """
services:
  node:
    oom_score_adj: 0
"""
MAKE_USER = """
from django.contrib.auth import get_user_model
from jobs.models import Membership, Team
user = get_user_model().objects.create_user({name!r}, password={password!r})
Membership.objects.create(team=Team.objects.create(name="vision"), user=user)
"""


class Installation:
    """`folder`: a copy of the checkout; its .env is made as scripts/compose-env makes it."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder, self.port = engine, folder, free_port()
        self.data = folder / "var"
        self._mounted = [path for path in (Path("/dev/char"),) if not path.exists()]  # the engine makes it; udev has it
        subprocess.run(["scripts/compose-env", HOST], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        env = (folder / ".env").read_text().replace(f"https://{HOST}", f"https://{HOST}:{self.port}")
        (folder / "compose.test.yaml").write_text(OVERRIDE)
        (folder / ".env").write_text(env + "\n".join(self._settings()) + "\n")

    def _settings(self) -> Iterator[str]:
        own = {
            "HTTP_PORT": f"127.0.0.1:{free_port()}", "HTTPS_PORT": f"127.0.0.1:{self.port}",
            "DOCKYARD_DIR": self.data, "MOUNT_ROOT": self.data / "mounts", "ENGINE_RUN": self.engine.root,
            "ENGINE_ROOT": self.engine.root / "data", "NODE_RUNTIME": "runc", "NODE_RESOURCES": "KILL",
            "GPU_DRIVER": "simulated", "SCHEDULER_PERIOD": 1, "RECONCILE_PERIOD": 2, "NODE_HEARTBEAT": 1,
            "INSTALLATION": "compose",
        }  # fmt: skip
        return (f"{name}={value}" for name, value in own.items())

    # --- its life ---

    def build(self, *, pull: bool) -> int:
        """Build the image as Dockerfile says; its size in bytes. Raises BuildError with its output."""
        with self.engine.client() as client:
            client.api.timeout = 900
            try:
                image, _log = client.images.build(
                    path=str(self.folder), tag=IMAGE, network_mode="host", pull=pull, rm=True
                )
            except docker.errors.BuildError as error:
                print("".join(str(line.get("stream", line)) for line in error.build_log)[-6000:])
                raise
            return int(image.attrs["Size"])

    def base_size(self) -> int:
        with self.engine.client() as client:
            return int(client.images.get("python:3.13-slim-trixie").attrs["Size"])

    def up(self) -> None:
        self.compose("up", "--detach", "--no-build")
        self.wait_healthy("web", "front", "redis", "postgres")

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "20")
        for path in self._mounted:
            with contextlib.suppress(OSError):
                path.rmdir()

    def kill(self, service: str) -> None:
        """As a crash does it: the engine, which was not asked, starts it again."""
        state = self.container(service).attrs["State"]
        os.kill(state["Pid"], signal.SIGKILL)
        wait_until(lambda: self._is_another(service, state["StartedAt"]), f"{service} is started again")

    def replace(self, service: str) -> None:
        """As an upgrade does it: another container of the service, and the old one is gone."""
        first = self.container(service).id
        self.compose("up", "--detach", "--no-build", "--no-deps", "--force-recreate", service)
        assert self.container(service).id != first

    def _is_another(self, service: str, first: str) -> bool:
        state = self.container(service).attrs["State"]
        return bool(state["Running"]) and state["StartedAt"] != first

    def wait_healthy(self, *services: str) -> None:
        for service in services:
            wait_until(lambda name=service: self._health(name) == "healthy", f"{service} is healthy", every=0.5)

    def _health(self, service: str) -> str:
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    # --- a look at it ---

    def container(self, service: str) -> Any:
        with self.engine.client() as client:
            labels = [f"com.docker.compose.service={service}"]
            return client.containers.list(all=True, filters={"label": labels})[0]

    def inspect(self) -> None:
        """Only the front is published, and no more is writable or privileged than must be."""
        for service in SERVICES:
            found = self.container(service).attrs
            published = sorted(port for port, where in found["NetworkSettings"]["Ports"].items() if where)
            assert published == (["443/tcp", "80/tcp"] if service == "front" else []), (service, published)
            host = found["HostConfig"]
            assert host["ReadonlyRootfs"], service
            assert "no-new-privileges:true" in host["SecurityOpt"], service
            assert host["CapDrop"] == ["ALL"], service
            assert host["LogConfig"]["Config"]["max-file"], service

    def redirects(self) -> bool:
        """Whether plain HTTP leads to HTTPS."""
        [where] = self.container("front").attrs["NetworkSettings"]["Ports"]["80/tcp"]
        answer = httpx.get(f"http://127.0.0.1:{where['HostPort']}/", headers={"Host": HOST}, trust_env=False)
        return answer.headers.get("Location") == f"https://{HOST}/"

    def show(self) -> None:
        """What every container said last, for who looks for the reason of a failure."""
        print(self.compose("ps", "--all", check=False))
        print(self.compose("logs", "--no-color", "--tail", "60", check=False))

    def authority(self) -> str:
        """The certificate with which the front signs."""
        return self.run("front", "cat", "/data/caddy/pki/authorities/local/root.crt")

    def make_user(self, name: str) -> str:
        """A user in a team; the password."""
        password = secrets.token_urlsafe(12)
        code = MAKE_USER.format(name=name, password=password)
        self.run("scheduler", "python", "manage.py", "shell", "--verbosity", "0", "--command", code)
        return password

    def token(self, name: str) -> str:
        return self.run("scheduler", "python", "manage.py", "token", name).strip()

    def doctor(self, service: str) -> str:
        account = "0:10001" if service == "node" else "10001"  # what the service itself runs as
        return self.compose(
            "exec", "-T", "--user", account, service, "python", "manage.py", "doctor", "--role", service
        )

    # --- commands ---

    def run(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command)

    def compose(self, *arguments: str, check: bool = True) -> str:
        """What docker-compose printed. Raises RuntimeError with that when it fails."""
        env = {**os.environ, "DOCKER_HOST": self.engine.url, "COMPOSE_PROJECT_NAME": "dockyard-test"}
        command = ["docker-compose", "-f", "compose.yaml", "-f", "compose.test.yaml", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=400
        )
        if check and done.returncode:
            raise RuntimeError(f"docker-compose {' '.join(arguments[:3])}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout + ("" if check else done.stderr)
