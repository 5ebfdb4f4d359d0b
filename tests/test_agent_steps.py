"""What an agent does now and then: when it comes again."""

import threading
from typing import Any

from jobs.agent import Agent
from jobs.containers import EngineUnavailable


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
