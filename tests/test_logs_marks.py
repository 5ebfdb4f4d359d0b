"""When a log's bytes came and by which stream: noted as they are captured, and kept with what is stored."""

import struct
import time
from pathlib import Path

import pytest

from jobs import logindex
from jobs.follow import Follower
from jobs.logframes import frame
from jobs.spool import MergedReader, Spool
from tests.rigs import logs
from tests.rigs.engine import Engine
from tests.rigs.logs import Container, gate

OUT, ERR = 1, 2
BEGAN = 1_700_000_000


def _piece(spool: Spool, name: str, frames: bytes, times: list[tuple[int, float]]) -> None:
    """A piece of a spool as the capture leaves it, with its notes of (where in the piece, second)."""
    (spool.directory / name).write_bytes(frames)
    noted = b"".join(struct.pack(">Qd", *note) for note in times)
    (spool.directory / f"{name.partition('-')[0]}.times").write_bytes(noted)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_marks_of_a_spool_are_the_same_however_it_is_read(tmp_path: Path, step: int) -> None:
    Spool.create(tmp_path, 1, "c" * 64, 1 << 20)
    spool = Spool.find(tmp_path, 1, 1 << 20)
    assert spool is not None
    first = frame(OUT, b"one\n") + frame(ERR, b"two\n") + frame(OUT, b"three\n")
    _piece(spool, "0-whole", first, [(0, BEGAN + 0.9), (12, BEGAN + 2.5), (36, BEGAN + 60.0)])
    _piece(spool, "1-late", frame(OUT, b"four\n"), [(0, BEGAN + 100.0)])
    spool = Spool.find(tmp_path, 1, 1 << 20)
    assert spool is not None
    reader, text = MergedReader(spool), b""
    while data := reader.read(step):
        text += data
    reader.close()
    hole, four = text.index(b"[output"), text.index(b"four")
    assert text[:14] == b"one\ntwo\nthree\n"
    assert reader.marks.times == [(0, BEGAN), (4, BEGAN + 2), (12, BEGAN + 60), (hole, 0), (four, BEGAN + 100)]
    assert reader.marks.streams == [(0, OUT), (4, ERR), (8, OUT), (hole, 0), (four, OUT)]


def test_a_spool_without_notes_has_streams_and_no_times(tmp_path: Path) -> None:
    """One that an older version began."""
    spool = Spool.create(tmp_path, 1, "c" * 64, 1 << 20)
    (spool.directory / "0-whole").write_bytes(frame(ERR, b"words"))
    found = Spool.find(tmp_path, 1, 1 << 20)
    assert found is not None
    reader = MergedReader(found)
    assert reader.read(100) == b"words"
    assert (reader.marks.times, reader.marks.streams) == ([], [(0, ERR)])


SCRIPT = f"echo one; {gate('two')}; echo two >&2; {gate('three')}; echo three"


def _heard(container: Container, text: bytes, *, attached: bool) -> None:
    if attached:
        logs.wait_for_log(container.run, text)
    else:
        logs.engine_has(container, text)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("attached", [True, False], ids=["seen as it came", "read from the engine"])
def test_a_container_s_lines_have_times_and_streams(engine: Engine, follower: Follower, attached: bool) -> None:
    """dstackai/dstack#2926: logs had no time stamps."""
    container = Container(engine, SCRIPT)
    begin = time.time()
    assert not attached or container.attach()
    container.start()
    _heard(container, b"one", attached=attached)
    time.sleep(1.1)  # the next line comes in a later second
    container.open("two")
    _heard(container, b"two", attached=attached)  # of two streams the engine keeps no order
    container.open("three")
    container.wait()
    assert container.end(follower) == b"one\ntwo\nthree\n"
    found = logindex.notes(container.run, 0, 100)
    assert found.streams == [(0, OUT), (4, ERR), (8, OUT)]
    assert [offset for offset, _ in found.times][:2] == [0, 4]
    first, second = (at for _, at in found.times[:2])
    assert first is not None
    assert second is not None
    assert int(begin) <= first < second <= time.time()
    assert logindex.offset_of_time(container.run, second) == 4


def test_a_spool_begun_anew_counts_its_pieces_on(tmp_path: Path) -> None:
    """Else what a pump still says of the one before, say that it is closed, would be taken for the new one's."""
    older = Spool.create(tmp_path, 1, "c" * 64, 1 << 20)
    older.add_piece(whole=True)
    Spool.create(tmp_path, 1, "c" * 64, 1 << 20, first=older.next_number).add_piece(whole=True)
    found = Spool.find(tmp_path, 1, 1 << 20)
    assert found is not None
    assert [piece.path.name for piece in found.pieces] == ["1-whole"]
    assert found.add_piece(whole=False).path.name == "2-late"
