"""From the spool to storage: what fails on the way is tried again, and what waits is told."""

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from jobs import pump, tail
from jobs.logframes import frame
from jobs.models import LogSegment, Run
from jobs.pumplink import PumpIntake, PumpLink
from jobs.ship import Shipment, Shipper
from jobs.spool import PieceWriter, Spool
from tests.rigs import logs
from tests.rigs.processes import wait_until

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

    def print_unanswered(data: bytes) -> None:
        captured.print(data)
        lose_an_answer()
        with pytest.raises(OperationalError):
            shipment.step()

    print_unanswered(b"a" * 150)
    captured.print(b"b" * 90)
    shipment.step()
    assert logs.stored(run) == b"a" * 150 + b"b" * 90
    print_unanswered(b"c" * 150)
    captured.print(b"d" * 20)
    shipment.ship_rest()
    shipment.out.complete(dropped=0)
    run = Run.objects.get(pk=run.pk)
    assert (run.log_complete, logs.stored(run)) == (True, b"a" * 150 + b"b" * 90 + b"c" * 150 + b"d" * 20)
    assert list(run.segments.values_list("offset", "length")) == [(0, 150), (150, 90), (240, 150), (390, 20)]


def test_what_nobody_can_read_yet_is_told_while_the_run_lives(spool: Path) -> None:
    """It was told at the end alone, when storage or the database had been away for hours."""
    link = PumpLink(spool, lambda _: None, lambda _: None)
    link.connect()
    link.start()
    try:
        captured = Spool.create(spool, 7, "a container", 1 << 20)
        ours, container = socket.socketpair()
        piece = captured.add_piece(whole=True)
        link.add(PumpIntake(7, captured, piece, [ours.detach(), *pump.make_pipe()]))
        shipment = Shipment(7, captured)
        with container:
            for printed in (60_000, 70_000):
                container.sendall(frame(1, b"x" * printed))
            wait_until(lambda: shipment.behind[0] == 130_000, "all that was captured")
    finally:
        link.stop()
        pump.end(spool)


def test_output_after_a_long_silence_has_not_waited_that_long(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr("jobs.ship.time", SimpleNamespace(monotonic=lambda: clock["now"]))
    captured, shipper = Captured(spool), Shipper()
    run, shipment = captured.run, captured.shipment
    shipper.add(shipment)
    shipper._note_dirty()
    captured.print(b"early\n")
    wait_until(lambda: not tail.is_resting(), "Redis asked again")
    shipment.step()
    clock["now"] += 3600
    assert shipment.behind == (0, 0)
    captured.print(b"late\n")
    shipper.touch(run.pk)
    clock["now"] += 20
    assert shipment.behind == (5, 20)
