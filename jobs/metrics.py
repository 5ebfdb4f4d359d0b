"""Numbers that a program prints of itself, such as `loss=0.31`, as series over time. Pure.

Known: the marker `::dockyard loss=0.31 acc=0.9`, JSON lines, a Python dict as trainers print it, `name=value`, and
`name: value` for names that are usual for measures.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jobs.plain import storable
from jobs.progress import MARKER

MOST_SERIES = 12
MOST_POINTS = 240
_NAME = r"[A-Za-z_][A-Za-z0-9_./@-]{0,39}"
_NUMBER = r"[-+]?(?:\d{1,15}(?:\.\d{0,17})?|\.\d{1,17})(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)"
_EQUAL = re.compile(rf"(?<![\w./@-])({_NAME})\s?=\s?({_NUMBER})(?=[\s,;|)\]}}%]|$)")
_COLON = re.compile(rf"(?<![\w./@-])[\"']?({_NAME})[\"']?\s?:\s?({_NUMBER})(?=[\s,;|)\]}}%]|$)")
_USUAL = re.compile(
    r"(?i)(?:^|[_./ -])(?:loss|acc|accuracy|lr|learning_rate|f1|auc|auroc|bleu|rouge\w*|ppl|perplexity|reward|return|"
    r"score|mse|mae|rmse|psnr|ssim|iou|miou|m?ap|map50|grad_norm|precision|recall|error|err|wer|cer|kl|entropy|fid|"
    r"throughput|tokens_per_second|samples_per_second|dice|top1|top5)(?:$|[_./ @-])"
)
_NO_MEASURE = re.compile(
    "(?i)pid|port|seed|rank|world_size|local_rank|[ug]id|time|timestamp|ts|date|year|id|job|run|version|total|size|code|"
    "status|epochs?|steps?|global_step|iter|iteration|batch|progress|(?:num_)?workers|gpus|threads"
)
_STEPS = ("step", "global_step", "iteration", "iter", "epoch")


@dataclass
class Series:
    """One number over time: points of (seconds, step or None, value); of many, every other one is let go."""

    points: list[tuple[float, float | None, float]] = field(default_factory=list)
    apart: float = 0.0  # seconds between two points, at least

    def add(self, at: float, step: float | None, value: float) -> None:
        """Keep a point; one that comes too soon after the last but one takes the last one's place."""
        if self.apart and self.points[-1][0] - self.points[-2][0] < self.apart:
            self.points[-1] = (at, step, value)
            return
        self.points.append((at, step, value))
        if len(self.points) > MOST_POINTS:
            self.apart = max(2 * self.apart, 2 * (at - self.points[0][0]) / MOST_POINTS)
            del self.points[1:-1:2]

    @property
    def is_measure(self) -> bool:
        """Whether it moves: a number that is always the same is a setting."""
        return len(self.points) >= 2 and len({value for _, _, value in self.points}) > 1


class MetricsFinder:
    """Reads lines and keeps the series of the first MOST_SERIES names. `changes` counts what it took in."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self.changes = 0

    def feed(self, line: str, at: float, step: float | None = None) -> None:
        """One line, without its end and its colours; `step` is what the program counted last."""
        found = dict(values(line))
        if not found:
            return
        own = next((found[name] for name in _STEPS if name in found), step)
        for name, value in found.items():
            if not _NO_MEASURE.fullmatch(name) and math.isfinite(value):
                self._take(name, at, own, value)

    def _take(self, name: str, at: float, step: float | None, value: float) -> None:
        if name not in self._series and len(self._series) >= MOST_SERIES and not self._forget_still():
            return
        self._series.setdefault(name, Series()).add(at, step, value)
        self.changes += 1

    def _forget_still(self) -> bool:
        """Make room: the oldest name that was only ever one value goes."""
        for name, series in self._series.items():
            if len(series.points) > 2 and not series.is_measure:
                del self._series[name]
                return True
        return False

    def as_json(self) -> list[dict[str, Any]]:
        """[{name, points: [[seconds, step|null, value], …]}] of those that move, six digits each."""
        return [
            {"name": name, "points": [[round(at, 2), step, float(f"{value:.6g}")] for at, step, value in series.points]}
            for name, series in self._series.items() if series.is_measure
        ]  # fmt: skip

    def restore(self, kept: list[dict[str, Any]]) -> None:
        """Go on where `as_json` stopped."""
        for row in kept:
            self._series[row["name"]] = Series([(at, step, value) for at, step, value in row["points"]])


def values(line: str) -> Iterator[tuple[str, float]]:
    """The named numbers in one line."""
    if line.startswith("{") and line.endswith("}"):
        found = _of_json(line)
        if found is not None:
            yield from found
            return
        yield from _pairs(_COLON, line)
        return
    if "=" in line:
        yield from _pairs(_EQUAL, line)
    if ":" in line and not line.startswith(MARKER):
        yield from ((name, value) for name, value in _pairs(_COLON, line) if _USUAL.search(name))


def _pairs(pattern: re.Pattern[str], line: str) -> Iterator[tuple[str, float]]:
    for name, number in pattern.findall(line):
        yield name, float(number)


def _of_json(line: str) -> list[tuple[str, float]] | None:
    """The numbers of a JSON object; None when it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    numbers = {name[:40]: value for name, value in row.items() if type(value) in (int, float) and abs(value) < 1e300}
    return [(storable(name), float(value)) for name, value in numbers.items()]
