"""compose.yaml run by docker-compose on a private engine, in a copy of the checkout."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
from pathlib import Path

import docker
import httpx

from tests.compose.project import HOST, OVERRIDE, PATIENCE, Project
from tests.rigs.engine import Engine
from tests.rigs.processes import free_port, wait_until

IMAGE = "dockyard"
SERVICES = ("front", "web", "scheduler", "node", "redis", "postgres")
STORES = "127.0.0.77"  # an address by which GPU hosts reach Redis and PostgreSQL
PUBLISHED = {"front": {"443/tcp": "127.0.0.1", "80/tcp": "127.0.0.1"}, "redis": {"6379/tcp": STORES},
             "postgres": {"5432/tcp": STORES}}  # fmt: skip
MAKE_USER = """
from django.contrib.auth import get_user_model
from jobs.models import Membership, Team
user = get_user_model().objects.create_user({name!r}, password={password!r})
Membership.objects.create(team=Team.objects.create(name="vision"), user=user)
"""


class Installation(Project):
    """`folder`: a copy of the checkout; its .env is made as scripts/compose-env makes it."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.port, self.logs = free_port(), folder / "var" / "data" / "logs"
        self._mounted = [path for path in (Path("/dev/char"),) if not path.exists()]  # the engine makes it; udev has it
        subprocess.run(["scripts/compose-env", HOST], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        env = (folder / ".env").read_text().replace(f"https://{HOST}", f"https://{HOST}:{self.port}")
        (folder / ".env").write_text(env)
        super().__init__(
            engine, folder, name="dockyard-test", files=["compose.yaml", "compose.hosts.yaml"], override=OVERRIDE,
            settings=self._settings(),
        )  # fmt: skip

    def _settings(self) -> dict[str, object]:
        shared = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(self.logs)}}
        return {
            "HTTP_PORT": f"127.0.0.1:{free_port()}", "HTTPS_PORT": f"127.0.0.1:{self.port}", "SCHEDULER_PERIOD": 1,
            "INSTALLATION": "compose", "STORES_ADDRESS": STORES, "NODE_REDIS_URL": f"redis://{STORES}:6379/0",
            "NODE_DATABASE_URL": f"postgres://{STORES}:5432/dockyard", "STORAGES": json.dumps({"logs": shared}),
        }  # fmt: skip

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
        wait_until(lambda: self._is_another(service, state["StartedAt"]), f"{service} is started again",
                   seconds=PATIENCE)  # fmt: skip

    def replace(self, service: str) -> None:
        """As an upgrade does it: another container of the service, and the old one is gone."""
        first = self.container(service).id
        self.compose("up", "--detach", "--no-build", "--no-deps", "--force-recreate", service)
        assert self.container(service).id != first

    def _is_another(self, service: str, first: str) -> bool:
        state = self.container(service).attrs["State"]
        return bool(state["Running"]) and state["StartedAt"] != first

    # --- a look at it ---

    def inspect(self) -> None:
        """Only the front is published, and the stores to hosts; no more is writable or privileged than must be."""
        for service in SERVICES:
            found = self.container(service).attrs
            ports = found["NetworkSettings"]["Ports"].items()
            published = {port: where[0]["HostIp"] for port, where in ports if where}
            assert published == PUBLISHED.get(service, {}), (service, published)
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
