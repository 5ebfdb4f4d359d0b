"""A docker-compose project of compose.yaml on a private engine, in a copy of the checkout."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until

HOST = "dockyard.example.org"
PATIENCE = 240  # seconds, for a machine that does much else
# Where tests run, root may lack CAP_SYS_RESOURCE, and then may not be spared when memory is short.
OVERRIDE = """
services:
  node:
    oom_score_adj: 0
"""


class Project:
    """`files` are what docker-compose reads, and a compose.test.yaml of `override`; .env has `settings` at its end."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        *,
        name: str,
        files: Sequence[str],
        override: str,
        settings: dict[str, object],
    ) -> None:
        self.engine, self.folder, self.name, self.data = engine, folder, name, folder / "var"
        self._files = (*files, "compose.test.yaml")
        (folder / "compose.test.yaml").write_text(override)
        own: dict[str, object] = {
            "DOCKYARD_DIR": self.data, "MOUNT_ROOT": self.data / "mounts", "ENGINE_RUN": engine.root,
            "ENGINE_ROOT": engine.root / "data", "NODE_RUNTIME": "runc", "NODE_RESOURCES": "KILL",
            "GPU_DRIVER": "simulated", "RECONCILE_PERIOD": 2, "NODE_HEARTBEAT": 1,
        }  # fmt: skip
        with (folder / ".env").open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in (own | settings).items())

    def container(self, service: str) -> Any:
        with self.engine.client() as client:
            labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
            return client.containers.list(all=True, filters={"label": labels})[0]

    def wait_healthy(self, *services: str) -> None:
        for service in services:
            wait_until(
                lambda name=service: self._health(name) == "healthy",
                f"{service} is healthy",
                seconds=PATIENCE,
                every=0.5,
            )

    def _health(self, service: str) -> str:
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    def show(self) -> None:
        """What every container said last, for who looks for the reason of a failure."""
        print(self.compose("ps", "--all", check=False))
        print(self.compose("logs", "--no-color", "--tail", "60", check=False))

    def doctor(self, service: str) -> str:
        account = "0:10001" if service == "node" else "10001"  # what the service itself runs as
        return self.compose(
            "exec", "-T", "--user", account, service, "python", "manage.py", "doctor", "--role", service
        )

    def run(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command)

    def compose(self, *arguments: str, check: bool = True) -> str:
        """What docker-compose printed. Raises RuntimeError with that when it fails."""
        env = {**os.environ, "DOCKER_HOST": self.engine.url, "COMPOSE_PROJECT_NAME": self.name}
        command = ["docker-compose", *(word for name in self._files for word in ("-f", name)), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=400
        )
        if check and done.returncode:
            raise RuntimeError(f"docker-compose {' '.join(arguments[:3])}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout + ("" if check else done.stderr)
