"""Compares a run's log with the bytes that its program is known to have printed. Pure."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.evidence import STOP_LINE, STOPPED, Container, Order, Run
from tests.chaos.mix import printed

HOLE_LINES = 10_000  # of a slow job, that a hole may have swallowed at most


@dataclass(frozen=True)
class Difference:
    """`what` is wrong, "" when nothing is; how many bytes are missing, and how many are there that should not be."""

    what: str = ""
    missing: int = 0
    surplus: int = 0


def compare(
    order: Order, run: Run, container: Container | None, *, may_lack_notes: bool = False, engine_died: bool = False
) -> Difference:
    """`engine_died`: the program may have been cut off anywhere; `may_lack_notes`: its disk was full for a while."""
    if container is None or not container.has_run:
        return Difference("printed without having run", 0, len(run.log)) if run.log else Difference()
    if container.exit_code == order.exit_code:
        return _with_holes(order, run.log) if run.holes else _whole(order, run.log)
    if run.holes:
        return _with_holes(order, run.log)
    return _cut_off(order, run, container, may_lack_notes=may_lack_notes, engine_died=engine_died)


def _whole(order: Order, log: bytes) -> Difference:
    out, err = printed(order)
    if not err:
        return _difference(out, log)
    return Difference() if _is_mixed(out, err, log, whole=True) else _by_lines(out + err, log)


def _is_mixed(out: bytes, err: bytes, log: bytes, *, whole: bool) -> bool:
    """Whether it is both streams, each in its order, mixed in any way, as who reads two pipes gets them; or begins so.

    Followed by all ways at once: which are few, as the streams soon differ. A way is how much of `out` it has taken.
    """
    ways = {0}
    for place, byte in enumerate(log):
        ways = {way + 1 for way in ways if way < len(out) and out[way] == byte} | {
            way for way in ways if place - way < len(err) and err[place - way] == byte
        }
    return len(out) in ways and len(log) == len(out) + len(err) if whole else bool(ways)


def _difference(expected: bytes, log: bytes) -> Difference:
    if hashlib.sha256(expected).digest() == hashlib.sha256(log).digest():
        return Difference()
    return _by_lines(expected, log)


def _by_lines(expected: bytes, log: bytes) -> Difference:
    ours, theirs = Counter(expected.splitlines(keepends=True)), Counter(log.splitlines(keepends=True))
    missing, surplus = _size(ours - theirs), _size(theirs - ours)
    return Difference("other bytes" if missing or surplus else "another order", missing, surplus)


def _size(lines: "Counter[bytes]") -> int:
    return sum(len(line) * count for line, count in lines.items())


def _cut_off(
    order: Order, run: Run, container: Container, *, may_lack_notes: bool, engine_died: bool
) -> Difference:  # fmt: skip
    """Of a program that was stopped: its first lines, all that it noted, and its last word if it came to that."""
    log, last = run.log, f"{order.token} {STOP_LINE}\n".encode()
    if container.exit_code == STOPPED:
        if not log.endswith(last):
            return Difference("its last word is missing", len(last), 0)
        log = log.removesuffix(last)
    lines = log.count(b"\n")
    found = _beginning(order, log, lines, exact=not engine_died)
    if found.what or not order.noted:
        return found
    if lines < (run.noted or 0):
        absent = len(printed(order, run.noted)[0]) - len(log)
        return Difference(f"{run.noted} lines were noted, {lines} are there", absent, 0)
    if lines > (run.noted or 0) + 1 and not may_lack_notes:
        return Difference(f"{run.noted or 0} lines were noted, {lines} are there")
    return Difference()


def _beginning(order: Order, log: bytes, lines: int, *, exact: bool) -> Difference:
    """Whether it begins as it must. `exact`: it ends with a line, too."""
    if exact and log and not log.endswith(b"\n"):
        return Difference("cut off within a line", 1, 0)
    out, err = printed(order, lines + 1 if order.form == "count" else None)
    if _is_mixed(out, err, log, whole=False):
        return Difference()
    return _difference(out[: len(log)], log) if not err else _by_lines(out + err, log)


def _with_holes(order: Order, log: bytes) -> Difference:
    """Where bytes are told to be lost, those that are there are in their order, each once."""
    enough = log.count(b"\n") + HOLE_LINES if order.form == "count" else None
    for whole in printed(order, enough):
        place = {line: number for number, line in enumerate(whole.splitlines(keepends=True))}
        found = [line for line in log.splitlines(keepends=True) if line in place]
        twice = [line for line, after in pairwise(found) if place[after] <= place[line]]
        if twice:
            return Difference("bytes twice, or in another order", 0, sum(map(len, twice)))
    return Difference()
