"""What the benchmarks of load and the soak read from their evidence."""

import pytest

from bench._judge import Row, RunLog, Sent, Slack, Trend, compare, growing, lost, table, trend, whole
from bench._visits import LogReader

SLACKS = {"memory": Slack(more=5, share=0.1), "files": Slack(more=3)}


def test_a_trend_is_told_by_its_ends_and_its_line() -> None:
    rises = trend([(float(second), 100 + second / 60) for second in range(0, 3600, 36)])
    assert (round(rises.hourly), round(rises.growth)) == (60, 54)
    assert trend([(0.0, 7.0)]) == Trend(7.0, 7.0, 0.0)
    with pytest.raises(ValueError, match="nothing was measured"):
        trend([])


def test_one_peak_is_no_growth() -> None:
    flat = [(float(second), 100.0) for second in range(100)]
    flat[50] = (50.0, 900.0)
    assert growing({"web": trend(flat)}, share=0.1, least=1) == []


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [(100, 109, []), (100, 121, ["web"]), (10, 19, []), (10, 21, ["web"]), (100, 50, [])],
    ids=["within its share", "beyond it", "little in all", "much for a small one", "less than before"],
)
def test_what_grew_is_named(start: float, end: float, names: list[str]) -> None:
    assert growing({"web": Trend(start, end, 0)}, share=0.1, least=10) == names


@pytest.mark.parametrize(
    ("name", "base", "end", "is_back"),
    [("memory: web (MiB)", 100, 110, True), ("memory: web (MiB)", 100, 111, False), ("memory: pump", 10, 15, True),
     ("files: nodes", 130, 133, True), ("files: nodes", 130, 134, False), ("containers", 0, 1, False),
     ("Redis key: log.*", 0, 1, False), ("rows: allocations held", 0, 0, True), ("entries: spools", 7, 3, True)],
)  # fmt: skip
def test_a_measure_is_back_within_the_slack_of_its_kind(name: str, base: float, end: float, is_back: bool) -> None:
    (row,) = compare({name: base}, {name: end}, SLACKS)
    assert row.is_back is is_back
    assert table([row]).startswith("back" if is_back else "LEFT")


def test_what_was_not_there_before_is_seen_and_what_is_gone_is_back() -> None:
    rows = compare({"Redis key: a": 1.0}, {"Redis key: b": 2.0}, SLACKS)
    assert rows == [Row("Redis key: a", 1.0, 0.0, 0.0), Row("Redis key: b", 0.0, 2.0, 0.0)]
    assert [row.is_back for row in rows] == [True, False]


def test_each_way_to_lose_a_job_is_told() -> None:
    sent = [Sent(number, ends) for number, ends in enumerate(["SUCCEEDED"] * 4 + ["FAILED", "CANCELLED"], start=1)]
    states = {2: "LOST", 3: "SUCCEEDED", 4: "SUCCEEDED", 5: "SUCCEEDED", 6: "CANCELLED"}
    assert lost(sent, states, frozenset({4, 5})) == [
        "job 1 is nowhere", "job 2 is LOST, not SUCCEEDED", "job 3 has not its whole log",
        "job 5 is SUCCEEDED, not FAILED",
    ]  # fmt: skip


def test_a_log_is_whole_when_a_run_has_begun_and_none_lacks_anything() -> None:
    runs = [
        RunLog(1, has_started=True, is_complete=True, holes=0),
        RunLog(1, has_started=False, is_complete=True, holes=0),  # of a start that failed before
        RunLog(2, has_started=False, is_complete=True, holes=0),  # nothing of it ever ran
        RunLog(3, has_started=True, is_complete=True, holes=1),
        RunLog(4, has_started=True, is_complete=False, holes=0),
        RunLog(4, has_started=True, is_complete=True, holes=0),
        RunLog(5, has_started=True, is_complete=True, holes=0),
    ]
    assert whole(runs) == {1, 5}


def _piece(run: int, generation: int, offset: int, data: bytes) -> bytes:
    return run.to_bytes(8, "big") + generation.to_bytes(2, "big") + offset.to_bytes(8, "big") + data


def test_a_reader_of_a_log_tells_gaps_and_doubles_and_begins_anew_with_a_generation() -> None:
    reader = LogReader()
    head = {"run": 7, "generation": 0, "end": 200_005}
    assert reader.begin(head) == {"follow": {"run": 7, "generation": 0, "offset": 5}}
    assert reader.piece(_piece(7, 0, 5, b"four")) == ""
    assert reader.piece(_piece(7, 0, 10, b"x")) == "run 7: 10 came, 9 was due"
    assert reader.piece(_piece(7, 0, 10, b"x")) == "run 7: 10 came, 11 was due"
    assert reader.piece(_piece(7, 1, 3, b"new")) == ""
    assert reader.piece(_piece(6, 0, 0, b"of the run before")) == ""
    assert reader.next == 6
