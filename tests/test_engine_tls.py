"""An engine that is reached over TLS: its calls, and a container's output byte for byte."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.conf import settings as django_settings

from jobs import containers, containers_logs
from tests.rigs import logs
from tests.rigs.certificates import make_certificates
from tests.rigs.engine import Engine
from tests.rigs.logs import Container
from tests.rigs.processes import free_port

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def tls_engine(tmp_path: Path, settings: LazySettings, redis_server: object) -> Iterator[Engine]:
    """An engine that takes only clients with a certificate at its TCP address, which DOCKER_HOST leads to."""
    folder, port = make_certificates(tmp_path / "certificates"), free_port()
    options = {"--tlscacert": "ca.pem", "--tlscert": "cert.pem", "--tlskey": "key.pem"}
    files = [f"{option}={folder / name}" for option, name in options.items()]
    engine = Engine(extra=("--tlsverify", *files, f"--host=tcp://127.0.0.1:{port}"))
    settings.DOCKER_HOST, settings.DOCKER_TLS = f"tcp://127.0.0.1:{port}", folder
    settings.SPOOL_DIR = tmp_path / "spool"
    try:
        engine.start()
        engine.load_images()
        yield engine
    finally:
        engine.remove()


def test_a_log_over_tls_is_whole(tls_engine: Engine) -> None:
    """The first output comes in one record with the answer to the attach, a flood in records of any size."""
    assert containers.engine().version
    with logs.running_follower() as follower:
        small = Container(tls_engine, "echo at once")
        assert small.play(follower) == b"at once\n"
        flood = Container(tls_engine, "yes 0123456789 | head -n 200000")
        assert flood.play(follower) == b"0123456789\n" * 200000
    assert (flood.run.log_generation, flood.run.log_holes) == (0, [])


def test_an_engine_of_another_authority_is_not_spoken_to(
    tls_engine: Engine, tmp_path: Path, settings: LazySettings
) -> None:
    settings.DOCKER_TLS = make_certificates(tmp_path / "others")
    for ask in (containers.engine, lambda: containers_logs.status("any")):
        with pytest.raises(containers.EngineUnavailable, match="certificate"):
            ask()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"DOCKER_HOST": "tcp://gpu1:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"},
         'DOCKER_CERT_PATH "/nowhere" lacks ca.pem, cert.pem, key.pem'),
        ({"DOCKER_HOST": "ssh://root@gpu1"}, '"ssh://root@gpu1" is neither unix:///path nor tcp://host'),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_spoken_to_stops_the_start(environment: dict[str, str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import portal.settings"], env={**os.environ, **environment},
        cwd=django_settings.BASE_DIR, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 78
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
