"""Frames cut anywhere, repaired engine logs, and joining by lengths: for all inputs that hypothesis thinks of."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.logframes import (
    ENGINE_LINE,
    NOT_RECORDED,
    STREAMS,
    Deframer,
    Join,
    NotFrames,
    Repair,
    common_prefix,
    frame,
    join,
    limit_reached,
    on_own_line,
    payload_of,
    whole_frames,
)

STAMP = b"2026-11-30T04:25:56.527695043Z "
frames = st.lists(st.tuples(st.sampled_from(STREAMS), st.binary(max_size=40)))
cuts = st.lists(st.integers(1, 30), min_size=1)


def cut_up(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes, over and over."""
    at = step = 0
    while at < len(data):
        yield data[at : at + sizes[step % len(sizes)]]
        at += sizes[step % len(sizes)]
        step += 1


def of_stream(parts: list[tuple[int, bytes]], stream: int) -> bytes:
    return b"".join(data for s, data in parts if s == stream)


@given(frames, cuts)
def test_frames_cut_anywhere_give_every_byte_in_order(parts: list[tuple[int, bytes]], sizes: list[int]) -> None:
    """dagster-io/dagster#33362: what arrives may be cut anywhere, also within a header."""
    deframer, out, streams = Deframer(), b"", {1: b"", 2: b""}
    for chunk in cut_up(b"".join(frame(*part) for part in parts), sizes):
        slices = deframer.feed(chunk)
        out += payload_of(chunk, slices)
        for stream, start, stop in slices:
            streams[stream] += chunk[start:stop]
    assert out == b"".join(data for _, data in parts)
    assert streams == {stream: of_stream(parts, stream) for stream in STREAMS}
    assert deframer.lengths == {stream: len(data) for stream, data in streams.items()}
    assert not deframer.broken


@given(frames, cuts)
def test_whole_frames_come_whole(parts: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(frame(*part) for part in parts)
    assert list(whole_frames(cut_up(data, sizes))) == parts
    assert list(whole_frames(cut_up(data[:-1], sizes))) == parts[:-1]


def test_what_is_no_frame_ends_the_reading() -> None:
    deframer = Deframer()
    data = frame(1, b"ok") + b"\0" * 64
    assert payload_of(data, deframer.feed(data)) == b"ok"
    assert deframer.broken
    assert deframer.feed(frame(1, b"more")) == []
    with pytest.raises(NotFrames):
        list(whole_frames([data]))


def engine_records(data: bytes) -> Iterator[bytes]:
    """The records that the engine's `local` driver makes of a stream, as its API gives them, less the stamp:
    without the newline that ends a line longer than ENGINE_LINE."""
    for line in data.splitlines(keepends=True) if data else []:
        body = line.removesuffix(b"\n")
        pieces = len(body) // ENGINE_LINE
        for number in range(pieces):
            yield body[number * ENGINE_LINE : (number + 1) * ENGINE_LINE]
        rest = body[pieces * ENGINE_LINE :]
        if line.endswith(b"\n"):
            yield rest if pieces else rest + b"\n"
        elif rest:
            yield rest


line_lengths = st.lists(st.sampled_from([0, 1, 5, ENGINE_LINE - 1, ENGINE_LINE, ENGINE_LINE + 1, 3 * ENGINE_LINE + 7]))


@given(line_lengths, st.booleans(), st.data())
def test_the_newlines_that_the_engine_drops_come_back(lengths: list[int], ended: bool, data: st.DataObject) -> None:
    """vectordotdev/vector#14644: lines cut at 16 KiB. All but perhaps the very last newline can be known."""
    streams = {s: b"\n".join(b"x" * n for n in lengths) + (b"\n" if ended and lengths else b"") for s in STREAMS}
    queues = {s: list(engine_records(text)) for s, text in streams.items()}
    repair, out = Repair(), {1: b"", 2: b""}
    while queues[1] or queues[2]:
        stream = data.draw(st.sampled_from([s for s in STREAMS if queues[s]]))
        out[stream] += repair.feed(stream, STAMP + queues[stream].pop(0))
    for stream in STREAMS:
        missing = b"\n" if stream in repair.uncertain and streams[stream].endswith(b"\n") else b""
        assert out[stream] + missing == streams[stream]


def test_an_engine_error_among_the_records_is_no_output() -> None:
    """moby/moby#39235: an engine error arrived in the stream as if it were the job's."""
    with pytest.raises(NotFrames):
        Repair().feed(1, b"Error grabbing logs: unexpected EOF\n")


@given(st.binary(), st.binary(), cuts, cuts)
def test_common_prefix_is_exact(one: bytes, other: bytes, left: list[int], right: list[int]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    holes = [part for chunk in cut_up(one, left) for part in (b"", chunk)]  # a source may give nothing for a while
    assert common_prefix(holes, cut_up(other, right)) == expected


@given(st.binary(max_size=60), st.data())
def test_joining_by_lengths_gives_the_stream_back(text: bytes, data: st.DataObject) -> None:
    """Whatever repeats in it: two of six floods were joined wrongly by comparing content."""
    first = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(first, len(text)))
    last = text[stop:]
    found = join(first, len(last), len(text), same_start=first, same_end=True)
    assert found == Join(first, stop)
    assert text[:first] + text[found.start : found.stop] + last == text


JOINS = [
    # first, last, log, same_start, same_end, what comes of it
    (0, 0, 0, 0, True, Join(0, 0), "nothing was printed"),
    (10, 5, 20, 10, True, Join(10, 15), "a hole of five bytes"),
    (10, 10, 20, 10, True, Join(10, 10), "no hole at all"),
    (10, 5, 20, 10, False, None, "the last piece stands elsewhere in the log"),
    (10, 15, 20, 10, True, None, "the log is shorter than what was captured"),
    (10, 5, 20, 7, True, Join(7, 15, lost=True), "the engine died with three bytes in its buffers"),
    (9_000_000, 5, 9_000_020, 7, True, None, "another text: the log was capped"),
]


@pytest.mark.parametrize(("first", "last", "log", "same_start", "same_end", "expected", "why"), JOINS)
def test_joins(
    first: int, last: int, log: int, same_start: int, same_end: bool, expected: Join | None, why: str
) -> None:
    assert join(first, last, log, same_start=same_start, same_end=same_end) == expected, why


def test_marks_stand_on_lines_of_their_own() -> None:
    assert on_own_line(NOT_RECORDED, b"x") == b"\n[some bytes not recorded]\n"
    assert on_own_line(NOT_RECORDED, b"\n") == b"[some bytes not recorded]\n"
    assert on_own_line(limit_reached(7, exact=False), b"") == b"[log limit reached: at least 7 bytes not kept]\n"
