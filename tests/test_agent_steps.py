"""What an agent does now and then: when it comes again; and what it makes of what the engine tells."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs import finish as finishing
from jobs.agent import Agent
from jobs.containers import EngineUnavailable, Event


def test_a_look_that_failed_comes_again_with_the_next_sign_of_life(settings: Any) -> None:
    """Else a host that once said that its disk was full takes no job for minutes after there is room again."""
    settings.NODE_HEARTBEAT = 0.0
    agent, looks = Agent(), []

    def look() -> None:
        looks.append("look")
        if len(looks) < 3:
            raise EngineUnavailable("it is being restarted")

    def tick() -> None:
        for _number in range(5):
            agent._step("the host's facts", 3600, look)

    thread = threading.Thread(target=tick)  # as the agent's own, without a connection to the database at first
    thread.start()
    thread.join()
    assert len(looks) == 3


def test_an_exit_code_that_the_engine_told_is_known_until_the_end_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is killed then says 255 (containerd's UnknownExitStatus): a job that succeeded had failed."""
    agent, seen = Agent(), []

    def finish(run_id: int, _logs: Any, engine: finishing.EngineLife) -> bool:
        seen.append((run_id, engine.exit_code()))
        if len(seen) == 1:
            raise EngineUnavailable("it was killed")
        return True

    monkeypatch.setattr(finishing, "finish", finish)
    monkeypatch.setattr(agent, "finish", lambda run_id: None)
    agent._heed(7, Event("die", 7, datetime.now(UTC), 0))
    with pytest.raises(EngineUnavailable):
        agent._finish(7)
    agent._finish(7)
    assert seen == [(7, 0), (7, 0)]
    assert agent.exit_codes == {}
