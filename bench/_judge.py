"""What is read from measures of a running product: whether something grows, and whether all is back to its base."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

Point = tuple[float, float]  # seconds, value


@dataclass(frozen=True)
class Trend:
    """A measure over time: what it was at first and at last, and by how much it rises in an hour, as a line fits it."""

    start: float
    end: float
    hourly: float

    @property
    def growth(self) -> float:
        return self.end - self.start


def trend(points: Sequence[Point]) -> Trend:
    """Start and end are means of a tenth of the points each, since one moment alone says little."""
    if not points:
        raise ValueError("nothing was measured")
    some = max(len(points) // 10, 1)
    start, end = (fmean(value for _at, value in part) for part in (points[:some], points[-some:]))
    return Trend(start, end, 3600 * _slope(points))


def _slope(points: Sequence[Point]) -> float:
    """Of the line through the points that is nearest to them, a second."""
    middle_at, middle = (fmean(column) for column in zip(*points, strict=True))
    wide = sum((at - middle_at) ** 2 for at, _value in points)
    return sum((at - middle_at) * (value - middle) for at, value in points) / wide if wide else 0.0


def growing(trends: Mapping[str, Trend], *, share: float, least: float) -> list[str]:
    """The names of those that grew by more than `share` of their start and by more than `least`."""
    return [name for name, found in trends.items() if found.growth > max(share * found.start, least)]


class Slack(NamedTuple):
    """How far a measure may end above its base: by `more`, or by a share of the base if that is more."""

    more: float = 0.0
    share: float = 0.0

    def of(self, base: float) -> float:
        return max(self.more, self.share * base)


@dataclass(frozen=True)
class Row:
    """One measure before and after; `is_back` when it is no higher than its slack allows."""

    name: str
    base: float
    end: float
    slack: float

    @property
    def is_back(self) -> bool:
        return self.end <= self.base + self.slack


def compare(base: Mapping[str, float], end: Mapping[str, float], slacks: Mapping[str, Slack]) -> list[Row]:
    """A row for whatever was there before or after. Slacks are by the part of a name before its colon; else none."""
    names = [*base, *(name for name in end if name not in base)]
    return [_row(name, base.get(name, 0.0), end.get(name, 0.0), slacks) for name in names]


def _row(name: str, base: float, end: float, slacks: Mapping[str, Slack]) -> Row:
    return Row(name, base, end, slacks.get(name.partition(":")[0], Slack()).of(base))


def table(rows: Iterable[Row]) -> str:
    """As people read it."""
    return "\n".join(
        f"{'back' if row.is_back else 'LEFT'}  {row.name:46} {row.base:9.1f} {row.end:9.1f}  +{row.slack:.1f} allowed"
        for row in rows
    )


class RunLog(NamedTuple):
    """One run of a job. `has_started`: there was a container; what ended before has a complete log of nothing."""

    job: int
    has_started: bool
    is_complete: bool
    holes: int


def whole(runs: Iterable[RunLog]) -> frozenset[int]:
    """The jobs of which a run has started, and no run's log lacks anything."""
    begun, torn = set(), set()
    for run in runs:
        if run.has_started:
            begun.add(run.job)
        if run.holes or not run.is_complete:
            torn.add(run.job)
    return frozenset(begun - torn)


class Sent(NamedTuple):
    """A job that was taken in: its number, and how it was to end."""

    job: int
    ends: str  # state


def lost(sent: Iterable[Sent], states: Mapping[int, str], complete: frozenset[int]) -> list[str]:
    """What became otherwise of jobs that were taken in: gone, ended otherwise, or without the whole of their log."""
    found = []
    for job, ends in sent:
        state = states.get(job)
        if state is None:
            found.append(f"job {job} is nowhere")
        elif state != ends:
            found.append(f"job {job} is {state}, not {ends}")
        elif ends != "CANCELLED" and job not in complete:
            found.append(f"job {job} has not its whole log")
    return found
