"""From the spool to storage: what fails on the way is tried again, and what waits is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from jobs.logframes import frame
from jobs.models import LogSegment, Run
from jobs.ship import Shipment
from jobs.spool import PieceWriter, Spool
from tests.rigs import logs

pytestmark = pytest.mark.django_db(transaction=True)


class Captured:
    """The output of a run, as it is captured and shipped."""

    def __init__(self, root: Path) -> None:
        self.run = logs.make_run()
        self.spool = Spool.create(root, self.run.pk, "a container", 1 << 20)
        self._writer = PieceWriter(self.spool, self.spool.add_piece(whole=True))
        self.shipment = Shipment(self.run.pk, self.spool)

    def print(self, data: bytes) -> None:
        self._writer.write(memoryview(frame(1, data)))


@pytest.fixture
def lose_an_answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have the line to the database die just after the next segment's row is stored."""
    save = LogSegment.save
    dying: list[bool] = []

    def stored(self: LogSegment, **options: Any) -> None:
        save(self, **options)
        if dying:
            dying.clear()
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(LogSegment, "save", stored)
    return lambda: dying.append(True)


def test_a_segment_whose_answer_was_lost_is_there_once(
    spool: Path, settings: Any, lose_an_answer: Callable[[], None]
) -> None:
    """While the run goes on, and as it ends; more was printed meanwhile."""
    settings.LOG_SEGMENT_BYTES = 100
    captured = Captured(spool)
    run, shipment = captured.run, captured.shipment
    captured.print(b"a" * 150)
    lose_an_answer()
    with pytest.raises(OperationalError):
        shipment.step()
    captured.print(b"b" * 90)
    shipment.step()
    assert logs.stored(run) == b"a" * 150 + b"b" * 90
    captured.print(b"c" * 150)
    lose_an_answer()
    with pytest.raises(OperationalError):
        shipment.step()
    captured.print(b"d" * 20)
    shipment.ship_rest()
    shipment.out.complete(dropped=0)
    run = Run.objects.get(pk=run.pk)
    assert (run.log_complete, logs.stored(run)) == (True, b"a" * 150 + b"b" * 90 + b"c" * 150 + b"d" * 20)
    assert list(run.segments.values_list("offset", "length")) == [(0, 150), (150, 90), (240, 150), (390, 20)]
