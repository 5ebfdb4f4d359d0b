"""The pump outlives the agent, and the agent the pump: whichever is killed, the log is whole and was never in doubt."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import logstore
from jobs.logframes import RECOVERING
from tests.rigs import logs
from tests.rigs.engine import Engine
from tests.rigs.logs import AgentProcess, Container, gate
from tests.rigs.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
FLOOD = "trap 'exit 0' TERM; while :; do head -c 400000 /dev/urandom; usleep 20000; done"


@pytest.fixture(autouse=True)
def spool(settings: Any, tmp_path: Path, redis_server: Any) -> Path:
    settings.SPOOL_DIR = tmp_path
    return tmp_path


def restart_agent(agent: AgentProcess, container: Container) -> None:
    agent.restart(pump=False)
    assert agent.call("adopt", container.run.pk, container.id) == "ok"


def kill_pump(agent: AgentProcess, container: Container) -> None:
    agent.kill_pump()


def more_is_shown(container: Container) -> None:
    """Wait until a flood has gone on for a while."""
    enough = logstore.size(container.run) + 600_000
    wait_until(lambda: logstore.size(container.run) > enough, "more of the flood")
    time.sleep(0.1)


def flood(agent: AgentProcess, container: Container, *kills: Callable[[AgentProcess, Container], None]) -> bytes:
    """Kill what `kills` says, one after another, in the middle of a flood, and end it. Returns the stored log."""
    assert container.attach()
    container.start()
    for kill in kills:
        more_is_shown(container)
        kill(agent, container)
    more_is_shown(container)
    container.api.kill(container.id, "TERM")
    container.wait()
    assert agent.call("finish", container.run.pk, container.id, 30) == "ok"
    container.run.refresh_from_db()
    assert (container.run.log_holes, container.run.log_generation) == ([], 0), "nothing was mended"
    return logs.stored(container.run)


@pytest.mark.parametrize(
    "kills",
    [(restart_agent,) * 3, (kill_pump,) * 3, (restart_agent, kill_pump, kill_pump, restart_agent)],
    ids=["agent", "pump", "in-turn"],
)
def test_binary_output_has_the_same_hash_and_no_mark(engine: Engine, kills: Any) -> None:
    """The witness is the engine's own log."""
    container = Container(engine, FLOOD)
    with logs.running_agent(engine) as agent:
        log = flood(agent, container, *kills)
    witness = logs.engine_streams(container.id)[1]
    assert len(witness) > 2_000_000
    assert logs.digest(log) == logs.digest(witness)
    assert RECOVERING not in log


def test_who_is_attached_again_before_its_start_has_a_piece_of_another_name(engine: Engine, spool: Path) -> None:
    """What a pump still says of the first one is not taken for the second."""
    container = Container(engine, "echo once")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        agent.restart()
        assert container.attach()
        assert [path.name for path in (spool / str(container.run.pk)).glob("*-*")] == ["1-whole"]
        container.start()
        container.wait()
        assert agent.call("finish", container.run.pk, container.id, 30) == "ok"
    assert logs.stored(container.run) == b"once\n"


def test_a_container_goes_on_without_an_agent_and_its_log_is_whole(engine: Engine) -> None:
    """More than all buffers hold, and the end of it all, come while nobody but the pump is there."""
    container = Container(engine, f"echo first; {gate('more')}; seq 1 1000000")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"first")
        agent.kill(pump=False)
        container.open("more")
        assert container.wait() == 0
        agent.start()
        assert agent.call("finish", container.run.pk, container.id, 30) == "ok"
    log = logs.stored(container.run)
    assert log == b"first\n" + b"".join(b"%d\n" % number for number in range(1, 1000001))
    assert (container.run.log_holes, container.run.log_generation) == ([], 0)


def test_the_limit_holds_over_kills_of_the_pump(engine: Engine) -> None:
    container = Container(engine, f"head -c 900000 /dev/zero; {gate('more')}; head -c 900000 /dev/zero")
    with logs.running_agent(engine, LOG_LIMIT_BYTES="1000000") as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"\0" * 900_000)
        agent.kill_pump()
        container.open("more")
        container.wait()
        assert agent.call("finish", container.run.pk, container.id, 30) == "ok"
    log = logs.stored(container.run)
    assert log[:1_000_000] == b"\0" * 1_000_000
    assert log[1_000_000:] == b"\n[log limit reached: 800000 bytes not kept]\n"
