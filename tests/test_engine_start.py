"""When an engine began, from what the real one offers: its default bridge, or the process at its socket."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.conf import LazySettings

from jobs import containers
from tests.rigs.engine import Engine

BRIDGE = "dky-born0"


@pytest.fixture
def bridge() -> Iterator[str]:
    """A bridge of the host that an engine may take for its default one."""
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    subprocess.run(["ip", "address", "add", "10.99.199.1/24", "dev", BRIDGE], check=True)
    yield BRIDGE
    subprocess.run(["ip", "link", "delete", BRIDGE], check=True)


@pytest.mark.parametrize("has_bridge", [True, False], ids=["by its bridge", "by its process"])
def test_an_engine_says_when_it_began_anew(has_bridge: bool, bridge: str, settings: LazySettings) -> None:
    engine = Engine(bridge=bridge if has_bridge else "none")
    settings.DOCKER_HOST = engine.url
    try:
        engine.start()
        between = datetime.now(UTC)
        first = containers.fresh_since()
        engine.restart()
        second = containers.fresh_since()
        assert first is not None
        assert second is not None
        assert first < between < second < datetime.now(UTC)
        containers.confirm(datetime.now(UTC))
        with pytest.raises(containers.EngineUnavailable, match="restarted"):
            containers.confirm(between)
        engine.configure(**{"live-restore": True})
        assert containers.fresh_since() is None, "its containers live through the next start"
    finally:
        engine.remove()
