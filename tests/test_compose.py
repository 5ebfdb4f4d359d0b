"""compose.yaml and what belongs to it, without running it: `make test-compose` does that."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PORTAL = {"front", "web", "scheduler", "prepare", "folders", "redis", "postgres"}


def services(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())["services"]
    return found


def test_a_further_gpu_host_runs_the_node_alone() -> None:
    """`docker compose --profile node up` there, and nothing that it waits for."""
    profiles = {name: service["profiles"] for name, service in services().items()}
    assert profiles == {"node": ["node"], **{name: ["portal"] for name in PORTAL}}
    assert "depends_on" not in services()["node"]


def test_nothing_is_published_but_the_front() -> None:
    assert [name for name, service in services().items() if "ports" in service] == ["front"]


def test_the_front_closes_a_line_before_web_does_so_under_a_request_that_is_on_its_way() -> None:
    """ray-project/ray#54127: web by itself does so after 5 s, and the front says 502."""
    front = re.search(r"keepalive (\d+)s", (ROOT / "deploy" / "compose" / "Caddyfile").read_text())
    web = re.search(r"--timeout-keep-alive (\d+)", (ROOT / "deploy" / "compose" / "start").read_text())
    assert front is not None
    assert web is not None
    assert int(front[1]) < int(web[1])


def test_every_container_is_closed_as_far_as_its_work_allows() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["logging"]["options"]["max-file"], name


def test_the_image_has_what_runs_and_nothing_else() -> None:
    """What is named in .dockerignore is there, and no secret, data or test of a checkout is among it."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    named = [line[1:] for line in lines if line.startswith("!")]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert not {".env", "data", "tests", ".git"} & set(named)
    packages = (ROOT / "requirements.txt").read_text()
    assert {"boto3", "django-storages"} <= set(re.findall(r"^([\w-]+)==", packages, re.MULTILINE)), "logs in S3"


def test_the_settings_file_has_secrets_of_its_own(tmp_path: Path) -> None:
    for name in ("scripts/compose-env", "compose.env.example"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [str(tmp_path / "scripts" / "compose-env"), "gpu.example.com"]
    subprocess.run(command, check=True, capture_output=True)
    made = tmp_path / ".env"
    assert made.stat().st_mode & 0o077 == 0
    found = dict(re.findall(r"^([A-Z_]+)=(.*)$", made.read_text(), re.MULTILINE))
    assert found["PUBLIC_URL"] == "https://gpu.example.com"
    assert found["REDIS_URL"] == f"unix://:{found['REDIS_PASSWORD']}@/run/redis/redis.sock"
    assert f":{found['POSTGRES_PASSWORD']}@" in found["DATABASE_URL"]
    assert min(len(found[name]) for name in ("SECRET_KEY", "REDIS_PASSWORD", "POSTGRES_PASSWORD")) >= 64
    assert subprocess.run(command, capture_output=True).returncode == 1, "one that is there stays"
    assert "example.org" not in "".join(found.values())


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose here")
def test_docker_compose_takes_it(tmp_path: Path) -> None:
    for name in ("compose.yaml", "compose.hosts.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copy(ROOT / "compose.env.example", tmp_path / ".env")
    command = ["docker-compose", "-f", "compose.yaml", "-f", "compose.hosts.yaml", "config"]
    environment = {"PATH": os.environ["PATH"], "STORES_ADDRESS": "10.0.0.1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = yaml.safe_load(done.stdout)["services"]
    for name in ("redis", "postgres"):
        [port] = found[name]["ports"]
        assert "10.0.0.1" in str(port), "on one address, and on no other"
    assert found["node"]["environment"]["DOCKER_HOST"] == "unix:///host/run/docker.sock"
