"""The lab, and what every test in it must leave: no container, no held GPU."""

from collections.abc import Iterator

import pytest

from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack
from tests.way.lab import Lab


@pytest.fixture
def lab(stack: Stack, engine: Engine) -> Iterator[Lab]:
    lab = Lab(stack, engine)
    yield lab
    lab.cancel_all()
    wait_until(lambda: not lab.containers(), "no container is left")
    assert lab.held_slots() == 0
