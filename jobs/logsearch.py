"""Search in a log of any size, also one that still grows: hits are told as they are found.

The one door to re2, whose time is linear in the text whatever the expression, and which lets other threads run
meanwhile. What is searched is what people see: without colours, and with each state of a `\\r` bar as a line.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import re2

from jobs import logindex, logstore
from jobs.models import Run

MOST_HITS = 200  # of one search; another goes on where it ended
MOST_PATTERN = 1000  # characters
BLOCK = 1 << 20
LONGEST = 64 << 10  # bytes; a longer line is searched in pieces
CLIP = 200  # characters shown on either side of what was found
_MEMORY = 16 << 20  # of a compiled expression
_PROGRESS = 8  # blocks between two tellings
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[ -/]*[0-Z\\`-~])")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BadPattern(Exception):
    """No expression that can be searched for; the message says why."""


@dataclass(frozen=True)
class Hit:
    """One line: `at` is the offset of its first byte, `line` the newlines before it.

    `start` and `end` say where in the line what was found is, in UTF-16 units; `text` lacks the first `cut` of them.
    """

    at: int
    line: int
    text: str
    start: int
    end: int
    cut: int
    before: list[str]
    after: list[str]

    def said(self) -> dict[str, Any]:
        said = asdict(self)
        return {"from": said.pop("start"), "to": said.pop("end"), **said}


def compiled(pattern: str, *, regex: bool, case: bool) -> Any:
    """The expression, to be found within lines. Raises BadPattern."""
    if not pattern or len(pattern) > MOST_PATTERN:
        raise BadPattern("too long" if pattern else "empty")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_nl = True
    options.case_sensitive = case
    written = pattern if regex else re2.escape(pattern)
    try:
        return re2.compile(f"(?m:{written})".encode(), options)
    except re2.error as error:
        raise BadPattern(_why(error)) from error


def _why(error: Exception) -> str:
    why = error.args[0] if error.args else ""
    return why.decode(errors="replace") if isinstance(why, bytes) else str(why)


def search(run: Run, expression: Any, start: int = 0) -> Iterator[dict[str, Any]]:
    """Search from an offset to the end as it is now.

    Yields each hit as `Hit.said`; now and then {"at", "end"}: how far it has come; at last {"done", "at", "more"}.
    """
    end, hits = logstore.size(run), 0
    state = _Lines(at=start, line=logindex.line_of(run, start) if start else 0)
    for number, block in enumerate(_blocks(run, start, end)):
        if number % _PROGRESS == 0:
            yield {"at": state.at, "end": end}
        for hit in state.hits(expression, block):
            yield hit.said()
            hits += 1
            if hits >= MOST_HITS:
                yield {"done": True, "at": state.next_at, "more": True}
                return
    yield {"done": True, "at": end, "more": False}


def _blocks(run: Run, start: int, end: int) -> Iterator[bytes]:
    """The bytes [start, end) in blocks that end with a line, or with LONGEST bytes of one."""
    held = b""
    while start < end and (data := logstore.read(run, start, min(start + BLOCK, end))):
        start += len(data)
        held += data
        cut = held.rfind(b"\n") + 1 or (held.rfind(b"\r") + 1 if len(held) > LONGEST else 0)
        if not cut and len(held) > LONGEST:
            cut = len(held)
        if cut:
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


@dataclass
class _Lines:
    """Where a search is: the offset and the line of the block to come, and the last line of the block before."""

    at: int
    line: int
    next_at: int = 0  # behind the last hit
    last: list[bytes] = field(default_factory=list)

    def hits(self, expression: Any, block: bytes) -> Iterator[Hit]:
        """The lines of a block in which it is found, each once."""
        plain = block.replace(b"\r", b"\n") if b"\r" in block else block
        seen = _ESCAPES.sub(b"", plain) if b"\x1b" in plain else plain
        place = _Place(block, plain, seen)
        at = 0
        while at < len(seen) and (found := expression.search(seen, at)):
            first = seen.rfind(b"\n", 0, found.start()) + 1
            stop = seen.find(b"\n", found.end())
            stop = len(seen) if stop < 0 else stop
            raw = place.raw(first)
            self.next_at = self.at + place.raw(stop + 1)
            yield self._hit(seen, found, first, stop, raw, place)
            at = stop + 1
        self.at += len(block)
        self.line += block.count(b"\n")
        self.last = [seen[seen.rfind(b"\n", 0, len(seen) - 1) + 1 :]]

    def _hit(self, seen: bytes, found: Any, first: int, stop: int, raw: int, place: "_Place") -> Hit:
        head, text = _text(seen[first : found.start()]), _text(found.group())
        rest = _text(seen[found.end() : min(stop, found.end() + 4 * CLIP)])
        cut = max(0, len(head) - CLIP)
        return Hit(
            at=self.at + raw, line=self.line + place.lines(raw), text=(head[cut:] + text + rest)[: 4 * CLIP],
            start=_units(head), end=_units(head + text), cut=_units(head[:cut]),
            before=[_clip(line) for line in ([_before(seen, first)] if first else self.last)],
            after=[_clip(seen[stop + 1 :].split(b"\n", 1)[0])] if stop + 1 < len(seen) else [],
        )  # fmt: skip


class _Place:
    """From places in what is searched to those in the log; asked in ascending order."""

    def __init__(self, block: bytes, plain: bytes, seen: bytes) -> None:
        self._block, self._plain, self._seen = block, plain, seen
        self._at = self._raw = 0  # the same line's beginning in both
        self._counted = self._lines = 0

    def raw(self, at: int) -> int:
        """Where the line that begins at `at` begins in the log's block."""
        if self._seen is self._plain:
            return min(at, len(self._block))
        for _ in range(self._seen.count(b"\n", self._at, at)):
            self._raw = self._plain.index(b"\n", self._raw) + 1
        self._at = at
        return self._raw if at <= len(self._seen) else len(self._block)

    def lines(self, raw: int) -> int:
        """Newlines of the block before it."""
        self._lines += self._block.count(b"\n", self._counted, raw)
        self._counted = raw
        return self._lines


def _before(seen: bytes, first: int) -> bytes:
    return seen[seen.rfind(b"\n", 0, first - 1) + 1 : first - 1]


def _clip(line: bytes) -> str:
    return _text(line[: 8 * CLIP])[: 2 * CLIP].rstrip("\n")


def _text(data: bytes) -> str:
    return _UNSEEN.sub("\ufffd", data.decode(errors="replace"))


def _units(text: str) -> int:
    """Its length as browsers count."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
