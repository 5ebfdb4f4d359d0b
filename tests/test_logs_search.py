"""What is kept beside a log's bytes and found by it: lines, times, streams; and the search in all of it."""

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs import log_views, logindex, logmarks, logsearch, tail
from jobs.logmarks import Marks
from jobs.models import LogSegment, Run
from jobs.segments import SegmentWriter
from tests import factories
from tests.rigs import logs

OUT, ERR = 1, 2
BEGAN = 1_700_000_000
HOSTILE = "(a+)+(a|aa)*$x"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.sampled_from([0, OUT, ERR]))), st.data())
def test_packed_marks_say_what_was_noted(steps: list[tuple[int, int, int]], data: Any) -> None:
    marks, offset, now = Marks(), 10, BEGAN
    said: dict[int, tuple[int, int]] = {}
    for length, seconds, stream in steps:
        now += seconds
        marks.note(offset, now, stream)
        said.update(dict.fromkeys(range(offset, offset + length), (now, stream)))
        offset += length
    start = data.draw(st.integers(10, offset))
    found = logmarks.unpack(logmarks.pack(marks.between(start, offset), start), start)
    for at in range(start, offset):
        assert (_at(found.times, at), _at(found.streams, at)) == said[at]


def _at(marks: list[tuple[int, int]], offset: int) -> int:
    return [value for start, value in marks if start <= offset][-1]


def _write(parts: list[tuple[bytes, int, int]], *, segment: int = 40, run: Run | None = None) -> Run:
    """A run whose log has these (bytes, seconds after it began, stream), cut into segments of so many bytes."""
    run = run or logs.make_run()
    writer = SegmentWriter(run.pk, 0)
    for data, seconds, stream in parts:
        writer.marks.note(writer.end, BEGAN + seconds, stream)
        writer.pending += data
        if len(writer.pending) >= segment:
            writer.cut()
    writer.complete(dropped=0)
    run.refresh_from_db()
    return run


LINES = [(f"line {number}\n".encode(), 10 * number, ERR if number % 3 == 2 else OUT) for number in range(30)]


@pytest.mark.django_db
def test_lines_times_and_streams_are_found_by_offset() -> None:
    """dstackai/dstack#2926"""
    run = _write(LINES)
    starts = [sum(len(data) for data, _, _ in LINES[:number]) for number in range(30)]
    assert LogSegment.objects.filter(run=run).count() > 3
    assert [logindex.offset_of_line(run, number) for number in range(30)] == starts
    assert [logindex.line_of(run, start) for start in starts] == list(range(30))
    assert logindex.offset_of_line(run, 31) is None
    assert [logindex.offset_of_time(run, BEGAN + 10 * number) for number in range(30)] == starts
    assert logindex.offset_of_time(run, BEGAN + 101) == starts[11]
    found = logindex.notes(run, starts[4], starts[7])
    assert found.line == 4
    assert found.times == [(starts[number], BEGAN + 10 * number) for number in (4, 5, 6)]
    assert found.streams == [(starts[4], OUT), (starts[5], ERR), (starts[6], OUT)]


@pytest.mark.django_db
def test_a_log_of_an_older_version_is_counted_when_asked_and_has_no_times() -> None:
    run = _write(LINES)
    LogSegment.objects.filter(run=run).update(lines=None, marks=None)
    assert logindex.offset_of_line(run, 20) == sum(len(data) for data, _, _ in LINES[:20])
    assert not LogSegment.objects.filter(run=run, lines=None).exists()
    assert logindex.offset_of_time(run, BEGAN) is None
    assert logindex.notes(run, 0, 50).times == [(0, None)]


@pytest.mark.django_db
def test_what_is_not_stored_yet_is_found_too() -> None:
    run = logs.make_run()
    marks = Marks()
    marks.note(0, BEGAN, OUT)
    marks.note(6, BEGAN + 5, ERR)
    tail.push(run.pk, 0, 12, b"first\nneedle", logmarks.pack(marks, 0), entries=1)
    assert logindex.offset_of_line(run, 1) == 6
    assert logindex.offset_of_time(run, BEGAN + 5) == 6
    assert logindex.offset_of_time(run, BEGAN + 500) == 12
    assert logindex.notes(run, 0, 12).streams == [(0, OUT), (6, ERR)]
    assert [hit["at"] for hit in _hits(run, "needle")] == [6]


def _hits(run: Run, pattern: str, *, regex: bool = False, case: bool = False, start: int = 0) -> list[dict[str, Any]]:
    expression = logsearch.compiled(pattern, regex=regex, case=case)
    return [said for said in logsearch.search(run, expression, start) if "text" in said]


@pytest.mark.django_db
def test_hits_are_lines_as_people_see_them() -> None:
    """Colours do not part words, and each state of a bar is a line of its own."""
    log = "one\n\x1b[31mER\x1b[0mROR: é needle\nthree\n\rload 1%\rload 2%\nlast".encode()
    run = _write([(log, 0, OUT)])
    [hit] = _hits(run, "error: é N")
    assert hit["text"] == "ERROR: é needle"
    assert (hit["at"], hit["line"], hit["from"], hit["to"]) == (4, 1, 0, 10)
    assert (hit["before"], hit["after"]) == (["one"], ["three"])
    assert _hits(run, "error", case=True) == []
    assert [hit["text"] for hit in _hits(run, r"load \d", regex=True)] == ["load 1%", "load 2%"]
    assert [log[hit["at"] :][:7] for hit in _hits(run, r"^load", regex=True)] == [b"load 1%", b"load 2%"]
    assert [hit["text"] for hit in _hits(run, "e$", regex=True)] == ["one", "ERROR: é needle", "three"]
    assert _hits(run, r"one\s+ER", regex=True) == [], "nothing is found across lines"
    assert [hit["text"] for hit in _hits(run, "x*", regex=True)][-1] == "last"


@pytest.mark.django_db
def test_a_search_that_found_enough_goes_on_where_it_ended() -> None:
    run = _write([(b"a needle\n" * 450, 0, OUT)])
    found, start, more = [], 0, True
    while more:
        told = list(logsearch.search(run, logsearch.compiled("needle", regex=False, case=False), start))
        found += [said["at"] for said in told if "text" in said]
        start, more = told[-1]["at"], told[-1]["more"]
    assert found == [9 * number for number in range(450)]


@pytest.mark.django_db
def test_long_lines_and_cut_characters_are_searched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logsearch, "BLOCK", 100)
    monkeypatch.setattr(logsearch, "LONGEST", 1000)
    run = _write([("é".encode() * 3000 + b" needle " + "😀x".encode() * 2000, 0, OUT)])
    [hit] = _hits(run, "needle")
    assert "needle" in hit["text"]
    assert len(_hits(run, "😀x")) > 1


@pytest.mark.django_db
def test_a_hostile_expression_takes_no_more_than_its_text_is_long() -> None:
    run = _write([(b"a" * 5000 + b"\n", 0, OUT)] * 40)
    assert _hits(run, HOSTILE, regex=True) == []


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "(?<=a)b", "", "x" * 1001])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(logsearch.BadPattern):
        logsearch.compiled(pattern, regex=True, case=False)


# --- over HTTP ---


@pytest.fixture
def found(client: Client) -> tuple[Client, Run]:
    run = _write(LINES)
    client.force_login(run.job.owner)
    return client, run


def _told(answer: Any) -> list[dict[str, Any]]:
    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return [json.loads(line) for line in async_to_sync(read)().splitlines()]


@pytest.mark.django_db(transaction=True)
def test_a_page_finds_lines_times_and_text(found: tuple[Client, Run]) -> None:
    client, run = found
    url = f"/jobs/{run.job_id}/log"
    assert client.get(f"{url}/find?run={run.pk}&line=2").json() == {"offset": 7}
    assert client.get(f"{url}/find?run={run.pk}&line=99").json() == {"offset": None}
    assert client.get(f"{url}/find?run={run.pk}&time={BEGAN}").json() == {"offset": 0}
    assert client.get(f"{url}/find?run={run.pk}&time=nonsense").json() == {"offset": 0}
    notes = client.get(f"{url}/notes?run={run.pk}&start=0&end=14").json()
    assert notes["times"] == [[0, BEGAN], [7, BEGAN + 10]]
    answer = client.get(f"{url}/search?run={run.pk}&q=line+7")
    told = _told(answer)
    assert [said["text"] for said in told if "text" in said] == ["line 7"]
    assert told[-1] == {"done": True, "at": run.log_bytes, "more": False}
    refused = client.get(f"{url}/search?run={run.pk}&q=(&regex=1")
    assert refused.status_code == 400
    assert "expression" in refused.json()["error"]


@pytest.mark.django_db
def test_strangers_learn_nothing_of_a_log(found: tuple[Client, Run]) -> None:
    """xuxueli/xxl-job#3983"""
    client, run = found
    client.force_login(factories.make_user("mallory", teams=(factories.make_team("others"),)))
    for what in ("search?q=line", "find?line=1", "notes?start=0&end=9"):
        assert client.get(f"/jobs/{run.job_id}/log/{what}").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_reader_has_so_many_searches_and_no_more(found: tuple[Client, Run]) -> None:
    client, run = found
    begun = [log_views._begin(run.job.owner_id) for _ in range(3)]
    assert begun == [True, True, False]
    answer = client.get(f"/jobs/{run.job_id}/log/search?q=line")
    assert [list(said) for said in _told(answer)] == [["error"]]
    for _ in range(2):
        log_views._end(run.job.owner_id)
    assert log_views._begin(run.job.owner_id)
    log_views._end(run.job.owner_id)
