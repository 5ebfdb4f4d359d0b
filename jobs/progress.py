"""How far a program says that it is, found in what it prints. Pure.

Known: the marker `::dockyard progress=120/500` (or `=24%`), tqdm's and Keras's bars, `step 120/500`, `Epoch [3/10]`,
`batch 7 of 90`, and percentages that stand at a line's start or beside a word such as "progress" or "done".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MARKER = "::dockyard "
MOST_COUNTERS = 16
MOST_SAMPLES = 40
_SILENT = 30.0  # seconds, and some of its usual gaps: then a counter that came often is a thing of the past
_INNER = ("step", "batch", "iteration", "iter", "bar")

_NUMBER = r"(\d{1,15}(?:\.\d{1,6})?)"
_SCALED = r"(\d{1,12}(?:\.\d{1,4})?)([kKMGT]?)"
_CLOCK = r"(?:\d{1,6}:)?\d{1,2}:\d\d|\?"
_TQDM = re.compile(
    rf"(?:^|(.{{0,60}}?): )\s{{0,3}}\d{{1,3}}%\|[^|]{{0,300}}\| ?{_SCALED}/{_SCALED} \[(?:{_CLOCK})<({_CLOCK})"
)
_KERAS = re.compile(r"^\s{0,8}(\d{1,12})/(\d{1,12})\s{1,4}(?:\[[=>.]|[━╸])")
_WORDS = (
    "step|epoch|iteration|iter|batch|round|episode|sample|file|chunk|trial|fold|task|item|image|video|game|generation"
)
_OF = re.compile(
    rf"(?i)\b({_WORDS})(?:e?s)?\b\s{{0,2}}[:#=]?\s{{0,4}}[\[(]?\s{{0,4}}"
    r"(\d{1,12})\s{0,2}(?:/|of)\s{0,2}(\d{1,12})"
)
_PERCENT = re.compile(
    r"(?i)(?:^[\s\[(]{0,4}|\b(?:progress|completed?|finished|done|processed|downloaded|downloading|training)\b[^%\d]{0,20})"
    r"(\d{1,3}(?:\.\d{1,4})?)\s?%"
)
_PERCENT_THEN = re.compile(r"(?i)(\d{1,3}(?:\.\d{1,4})?)\s?%\s{1,2}(?:complete|completed|done|finished|processed)\b")
_MARKED = re.compile(rf"\bprogress={_NUMBER}(?:/{_NUMBER}|(%))?(?=[\s,;]|$)")
_SCALES = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Count:
    """One reading: `done` of `total`, of what `label` says; `left` in seconds where the program itself says it."""

    label: str
    done: float
    total: float
    left: float | None = None
    group: str = ""  # what tells one bar from another of the same label

    @property
    def fraction(self) -> float:
        return self.done / self.total


@dataclass(frozen=True)
class Progress:
    """What is shown: a share of 1, what is counted, and how many seconds it should still take; None: not known yet."""

    fraction: float
    label: str
    done: float
    total: float
    left: float | None
    at: float


def counts(line: str) -> list[Count]:
    """What one line, without colours, says of progress; nothing for a line that counts nothing."""
    if line.startswith(MARKER):
        return _valid([_marked(line)])
    if "%|" in line and (found := _TQDM.search(line)):
        text, done, done_scale, total, total_scale, left = found.groups()
        done_of = float(done) * _SCALES[done_scale], float(total) * _SCALES[total_scale]
        return _valid([Count("bar", *done_of, left=_seconds(left), group=f"{_plain(text or '')} {total}{total_scale}")])
    if "/" in line and (bar := _KERAS.search(line)):
        return _valid([Count("step", float(bar[1]), float(bar[2]), group="keras")])
    if ("/" in line or " of " in line) and (words := _OF.findall(line)):
        return _valid([Count(word.lower(), float(done), float(total)) for word, done, total in words[:4]])
    percent = "%" in line and (_PERCENT.search(line) or _PERCENT_THEN.search(line))
    return _valid([Count("percent", float(percent[1]), 100)]) if percent else []


def _marked(line: str) -> Count | None:
    found = _MARKED.search(line)
    if found is None:
        return None
    done, total, percent = found.groups()
    return Count("marker", float(done), float(total) if total else 100 if percent else 1)


def _valid(found: Iterable[Count | None]) -> list[Count]:
    return [count for count in found if count and count.total > 0 and count.done <= count.total]


def _seconds(clock: str) -> float | None:
    if clock == "?":
        return None
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)


def _plain(text: str) -> str:
    """A bar's name without the numbers in it, which count up."""
    return re.sub(r"\d+", "#", text.strip())[-40:]


@dataclass
class _Counter:
    """The readings of one thing that is counted."""

    last: Count
    at: float
    readings: int = 0
    falls: int = 0  # how often it began anew
    samples: list[tuple[float, float]] = field(default_factory=list)  # (seconds, fraction), thinned out

    def add(self, count: Count, at: float) -> None:
        if count.done < self.last.done:
            self.falls += 1
            self.samples.clear()
        self.last, self.at = count, at
        self.readings += 1
        sample(self.samples, at, count.fraction)

    def is_past(self, now: float) -> bool:
        """Whether it came often and comes no more."""
        if self.readings < 3 or not self.samples:
            return False
        gap = (self.at - self.samples[0][0]) / self.readings
        return now - self.at > _SILENT + 5 * gap

    def left(self) -> float | None:
        return self.last.left if self.last.left is not None else seconds_left(self.samples)


def sample(samples: list[tuple[float, float]], at: float, fraction: float) -> None:
    """Keep a reading; of many, every other one is let go."""
    if samples and samples[-1][1] == fraction:
        return
    samples.append((at, fraction))
    if len(samples) > MOST_SAMPLES:
        del samples[1:-1:2]


def seconds_left(samples: list[tuple[float, float]]) -> float | None:
    """By the speed of the later half of the time; None before two readings."""
    if len(samples) < 2:
        return None
    last_at, last = samples[-1]
    middle = (samples[0][0] + last_at) / 2
    at, fraction = next(found for found in reversed(samples[:-1]) if found[0] <= middle)
    if last <= fraction or last_at <= at:
        return None
    return (1 - last) * (last_at - at) / (last - fraction)


class ProgressFinder:
    """Reads lines and says how far the whole is: the marker's word first, else what takes longest."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._whole: list[tuple[float, float]] = []  # readings of an outer counter joined with its inner one

    def feed(self, line: str, at: float) -> bool:
        """One line, without its end and its colours, that came at `at`, in seconds. True if it told something."""
        found = counts(line)
        for count in found:
            key = (count.label, count.group)
            counter = self._counters.pop(key, None) or _Counter(count, at)
            counter.add(count, at)
            self._counters[key] = counter  # the last heard of comes last
        while len(self._counters) > MOST_COUNTERS:
            del self._counters[next(iter(self._counters))]
        return bool(found)

    def progress(self) -> Progress | None:
        """How far it is, by all that was read; None when nothing was told."""
        if not self._counters:
            return None
        now = max(counter.at for counter in self._counters.values())
        marked = self._counters.get(("marker", ""))
        chosen = marked or self._longest(now)
        inner = None if chosen is marked else self._inner(chosen, now)
        return self._joined(chosen, inner) if inner else _shown(chosen)

    def _longest(self, now: float) -> _Counter:
        """The counter with most time left; one that is done only when all are."""
        live = [counter for counter in self._counters.values() if not counter.is_past(now)]
        open_ones = [counter for counter in live if counter.last.done < counter.last.total]
        epochs = [counter for counter in open_ones if counter.last.label == "epoch"]
        if epochs and not self._spans_epochs(epochs[-1], now):
            return epochs[-1]
        return max(open_ones or live[-1:], key=lambda counter: (counter.left() or 0, counter.at))

    def _spans_epochs(self, epoch: _Counter, now: float) -> bool:
        """Whether a step counter goes on over the ends of epochs: then it is the finer measure."""
        return bool(epoch.samples) and epoch.samples[-1][1] > epoch.samples[0][1] and any(
            counter.last.label in _INNER and not counter.falls and not counter.is_past(now)
            and counter.last.done < counter.last.total and counter.samples
            and counter.samples[0][0] < epoch.samples[-1][0] < counter.at
            for counter in self._counters.values()
        )  # fmt: skip

    def _inner(self, outer: _Counter, now: float) -> _Counter | None:
        """The steps of an epoch that is under way."""
        if outer.last.label != "epoch":
            return None
        found = [
            counter for counter in self._counters.values()
            if counter is not outer and counter.last.label in _INNER and counter.at >= outer.at
            and not counter.is_past(now)
        ]  # fmt: skip
        return found[-1] if found else None

    def _joined(self, outer: _Counter, inner: _Counter) -> Progress:
        """Epochs, counted from 1, with the steps of the one that is under way."""
        fraction = min((max(outer.last.done - 1, 0) + inner.last.fraction) / outer.last.total, 1)
        if self._whole and fraction < self._whole[-1][1] - 0.5 / outer.last.total:
            self._whole.clear()
        sample(self._whole, inner.at, fraction)
        left = seconds_left(self._whole)
        return Progress(fraction, outer.last.label, outer.last.done, outer.last.total, left, inner.at)


def _shown(counter: _Counter) -> Progress:
    last = counter.last
    return Progress(last.fraction, last.label, last.done, last.total, counter.left(), counter.at)
