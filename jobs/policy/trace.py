"""Read a trace and a list of nodes from CSV, our own columns or openb's. Pure: lines in, tasks and nodes out.

Our columns: `submitted` and `gpus` must be there, all others may be missing or empty.
  job (a number of its own), user, team, image, name
  submitted (seconds, or ISO 8601), seconds (how long it runs; empty: it never ends), limit (seconds; empty: none)
  gpus, gpu_milli (the share of a lone GPU, in thousandths), gpu_model (several by |), gpu_memory_mib
  cpu_milli, memory_mib, priority (0 to 3), least_gpus (elastic), preemptible and movable (0 or 1), grace (seconds)
openb's columns: cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, creation_time, deletion_time, scheduled_time.
Nodes: sn (a name), cpu_milli, memory_mib, gpu (how many), model, and gpu_memory_mib where known.
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from jobs.policy.replay import Task
from jobs.policy.view import WHOLE, Gpu, Node, Waiting

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # where times are seconds since a begin that nobody tells
SLOTS = 1000  # of a GPU: openb's shares are in thousandths
T = TypeVar("T")


class BadTrace(Exception):
    """What is wrong and where. `column` "" for the whole line.

    Codes: EMPTY, NO_COLUMN, NO_NAME, NOT_A_NUMBER, TOO_SMALL, NOT_A_TIME, TWICE, TOO_MANY_CELLS, NOT_TEXT.
    """

    def __init__(self, code: str, *, line: int, column: str = "", value: str = "") -> None:
        super().__init__(code, line, column, value)
        self.code, self.line, self.column, self.value = code, line, column, value


@dataclass(frozen=True)
class Trace:
    """Tasks in the file's order, and the names behind their numbers."""

    tasks: list[Task]
    users: dict[int, str]
    teams: dict[int, str]


@dataclass(frozen=True)
class _Row:
    """One line, by column."""

    line: int
    cells: Mapping[str, str]

    def text(self, column: str, usual: str = "") -> str:
        return self.cells.get(column) or usual

    def number(self, column: str, usual: int | None = None, *, least: int = 0) -> int:
        value = self.cells.get(column, "")
        if not value and usual is not None:
            return usual
        found = self._read(column, float, "NOT_A_NUMBER")
        if found != int(found):
            raise self.bad("NOT_A_NUMBER", column)
        if found < least:
            raise self.bad("TOO_SMALL", column)
        return int(found)

    def seconds(self, column: str) -> float | None:
        if not self.cells.get(column):
            return None
        found = self._read(column, float, "NOT_A_NUMBER")
        if found < 0:
            raise self.bad("TOO_SMALL", column)
        return found

    def time(self, column: str) -> datetime:
        value = self.cells.get(column, "")
        try:
            return EPOCH + timedelta(seconds=float(value))
        except (ValueError, OverflowError):
            found = self._read(column, datetime.fromisoformat, "NOT_A_TIME")
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def _read(self, column: str, read: Callable[[str], T], code: str) -> T:
        try:
            found = read(self.cells.get(column, ""))
        except (ValueError, OverflowError):
            raise self.bad(code, column) from None
        if isinstance(found, float) and not abs(found) < 1e15:  # also what is no number
            raise self.bad(code, column)
        return found

    def bad(self, code: str, column: str) -> BadTrace:
        return BadTrace(code, line=self.line, column=column, value=self.cells.get(column, ""))


@dataclass
class _Names:
    """Names to numbers, from 1 in the order they appear."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def by_number(self) -> dict[int, str]:
        return {number: name for name, number in self.numbers.items()}


def read_trace(lines: Iterable[str], *, timed: bool = True) -> Trace:
    """The tasks of a trace. With `timed` False they need no times, and never end. Raises BadTrace."""
    users, teams, tasks = _Names(), _Names(), list[Task]()
    seen: set[int] = set()
    for row in _rows(lines):
        openb = "num_gpu" in row.cells
        task = _openb(row, len(tasks) + 1, timed=timed) if openb else _own(row, users, teams, len(tasks) + 1, timed)
        if task.job.id in seen:
            raise row.bad("TWICE", "job")
        seen.add(task.job.id)
        tasks.append(task)
    return Trace(tasks, users.by_number() or {1: "openb"}, teams.by_number() or {1: "openb"})


def read_nodes(lines: Iterable[str]) -> list[Node]:
    """The hosts of a list. Raises BadTrace."""
    found, names = list[Node](), set[str]()
    for row in _rows(lines):
        _need(row, ("sn", "gpu", "cpu_milli", "memory_mib"))
        name = row.text("sn")
        if not name or name in names:
            raise row.bad("TWICE" if name else "NO_NAME", "sn")
        names.add(name)
        found.append(_node(name, row))
    return found


def host(name: str, *, gpus: int, model: str = "GPU", memory_mib: int | None = None, millicpus: int, ram: int) -> Node:
    """An idle host with GPUs of one model, each shared by thousandths."""
    cards = tuple(
        Gpu(uuid=f"{name}/{index}", index=index, model=model, memory_mib=memory_mib, slots=SLOTS)
        for index in range(gpus)
    )
    return Node(name=name, millicpus=millicpus, memory_mib=ram, gpus=cards)


def _node(name: str, row: _Row) -> Node:
    return host(
        name, gpus=row.number("gpu"), model=row.text("model", "GPU"),
        memory_mib=row.number("gpu_memory_mib", 0) or None, millicpus=row.number("cpu_milli"),
        ram=row.number("memory_mib"),
    )  # fmt: skip


def _rows(lines: Iterable[str]) -> Iterable[_Row]:
    reader = csv.DictReader(lines, strict=True)
    try:
        if not reader.fieldnames:
            raise BadTrace("EMPTY", line=1)
        names = [name.strip().lstrip("\ufeff") for name in reader.fieldnames]
        reader.fieldnames = names
        for cells in reader:
            if None in cells:
                raise BadTrace("TOO_MANY_CELLS", line=reader.line_num)
            yield _Row(reader.line_num, {name: (value or "").strip() for name, value in cells.items()})
    except (csv.Error, UnicodeDecodeError):
        raise BadTrace("NOT_TEXT", line=reader.line_num + 1) from None


def _own(row: _Row, users: _Names, teams: _Names, number: int, timed: bool) -> Task:
    _need(row, ("gpus", "submitted") if timed else ("gpus",))
    gpus, limit = row.number("gpus"), row.seconds("limit")
    job = Waiting(
        id=row.number("job", number), user=users.number(row.text("user", "-")),
        team=teams.number(row.text("team", "-")), priority=row.number("priority", 1), gpus=gpus,
        queued_at=row.time("submitted") if timed else _turn(number),
        gpu_milli=_share(row, gpus), gpu_model=row.text("gpu_model"), gpu_memory_mib=row.number("gpu_memory_mib", 0),
        millicpus=row.number("cpu_milli", 0), memory_mib=row.number("memory_mib", 0),
        limit_seconds=None if limit is None else max(round(limit), 1),
        least_gpus=row.number("least_gpus", least=1) if row.text("least_gpus") else None,
    )  # fmt: skip
    return Task(
        job=job, seconds=row.seconds("seconds") if timed else None, image=row.text("image"), name=row.text("name"),
        preemptible=bool(row.number("preemptible", 0)), movable=bool(row.number("movable", 0)),
        grace_seconds=row.number("grace", 30),
    )  # fmt: skip


def _openb(row: _Row, number: int, *, timed: bool) -> Task:
    _need(row, ("creation_time", "deletion_time") if timed else ())
    gpus = row.number("num_gpu")
    job = Waiting(
        id=number, user=1, team=1, priority=1, gpus=gpus,
        queued_at=row.time("creation_time") if timed else _turn(number), gpu_milli=_share(row, gpus),
        gpu_model=row.text("gpu_spec"), millicpus=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"), limit_seconds=None,
    )  # fmt: skip
    return Task(job=job, seconds=_openb_seconds(row) if timed else None, image="", name="")


def _openb_seconds(row: _Row) -> float:
    """From when it was scheduled, else created, to its deletion."""
    begin = row.time("scheduled_time" if row.text("scheduled_time") else "creation_time")
    return max((row.time("deletion_time") - begin).total_seconds(), 0.0)


def _share(row: _Row, gpus: int) -> int:
    """Counts only where there is one GPU."""
    share = row.number("gpu_milli", WHOLE)
    if gpus != 1 or share == 0:
        return WHOLE
    return min(share, WHOLE)


def _need(row: _Row, columns: Iterable[str]) -> None:
    for column in columns:
        if column not in row.cells:
            raise BadTrace("NO_COLUMN", line=1, column=column)


def _turn(number: int) -> datetime:
    """One after the other, where there are no times."""
    return EPOCH + timedelta(seconds=number)
