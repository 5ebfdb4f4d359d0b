"""Compares a run's log with the bytes that its program is known to have printed. Pure."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace

from jobs.logframes import NOT_RECORDED
from tests.chaos.evidence import STOP_LINE, STOPPED, Container, Order, Run
from tests.chaos.mix import printed

INITS_WORDS = re.compile(rb"^\[WARN  tini \(1\)\] .*\n", re.MULTILINE)  # of a signal that met the program's end
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
    run = replace(run, log=INITS_WORDS.sub(b"", run.log))
    if run.holes:
        return _with_holes(order, run)
    code = run.exit_code if container.exit_code is None else container.exit_code
    if code == order.exit_code:
        return _whole(order, run.log)
    return _cut_off(order, run, code, may_lack_notes=may_lack_notes, engine_died=engine_died)


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
    order: Order, run: Run, code: int | None, *, may_lack_notes: bool, engine_died: bool
) -> Difference:  # fmt: skip
    """Of a program that was stopped: its first lines, all that it noted, and its last word if it came to that."""
    log, last = run.log, _last_word(order)
    if code == STOPPED:
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
    out, err = _printed_by(order, lines + 1)
    if _is_mixed(out, err, log, whole=False):
        return Difference()
    return _difference(out[: len(log)], log) if not err else _by_lines(out + err, log)


def _printed_by(order: Order, lines: int) -> tuple[bytes, bytes]:
    """What it prints with its first `lines`, if it prints them one by one, which may be without end; else all of it."""
    return printed(order, min(lines, order.lines) if order.form == "count" else None)


def _last_word(order: Order) -> bytes:
    return f"{order.token} {STOP_LINE}\n".encode()


def _with_holes(order: Order, run: Run) -> Difference:
    """Where bytes are told to be lost, those that are there are its own, in their order, each once.

    A hole shows as a mark on a line of its own, and tears the line before it and the line after it.
    """
    lines = run.log.splitlines(keepends=True)
    out, err = (text.splitlines(keepends=True) for text in _printed_by(order, len(lines) + HOLE_LINES))
    out += [_last_word(order)] * (order.form == "count")
    if lines.count(NOT_RECORDED) > run.holes:
        return Difference("a mark of a hole that is none", 0, len(NOT_RECORDED))
    if strange := _strange(lines, {*out, *err, NOT_RECORDED}, pieces=2 * run.holes if err else None):
        return Difference("bytes that it never printed", 0, sum(map(len, strange)))
    twice = [line for expected in (out, err) for line in _out_of_order(expected, lines)]
    return Difference("bytes twice, or in another order", 0, sum(map(len, twice))) if twice else Difference()


def _strange(lines: list[bytes], known: set[bytes], *, pieces: int | None) -> list[bytes]:
    """Lines that are not known, and no pieces that a hole has left of known ones. Of two streams, a torn line may be
    mixed with others and stand anywhere: then so many `pieces` are let pass.
    """
    odd = [(number, line) for number, line in enumerate(lines) if line not in known]
    if pieces is not None:
        return [line for _number, line in odd[pieces:]]
    return [line for number, line in odd if not (_is_beside_hole(lines, number) and _is_piece(line, known))]


def _is_beside_hole(lines: list[bytes], number: int) -> bool:
    return _is_before_hole(lines, number) or _is_after_hole(lines, number)


def _is_piece(line: bytes, known: set[bytes]) -> bool:
    return any(line.removesuffix(b"\n") in whole for whole in known)


def _is_before_hole(lines: list[bytes], number: int) -> bool:
    """A hole at the end has no mark where all that is unknown is whether the last line was ended."""
    after = lines[number + 1 : number + 2]
    return after == [NOT_RECORDED] or not (after or lines[number].endswith(b"\n"))


def _is_after_hole(lines: list[bytes], number: int) -> bool:
    return number > 0 and lines[number - 1] == NOT_RECORDED


def _out_of_order(expected: list[bytes], lines: list[bytes]) -> list[bytes]:
    """Those that come again, or after what should follow them. What is left of a torn line may look like another."""
    place = {line: number for number, line in enumerate(expected)}
    found, last = [], -1
    for number, line in enumerate(lines):
        at = place.get(line)
        if at is None:
            continue
        if at > last:
            last = at
        elif not _may_be_torn(expected, last, lines, number, place):
            found.append(line)
    return found


def _may_be_torn(
    expected: list[bytes], last: int, lines: list[bytes], number: int, place: dict[bytes, int]
) -> bool:  # fmt: skip
    """Whether it may be the beginning of the line after the `last`, before a hole, or the end of one, after a hole."""
    rest = expected[last + 1 :]
    if _is_before_hole(lines, number) and rest and rest[0].startswith(lines[number].removesuffix(b"\n")):
        return True
    if not _is_after_hole(lines, number):
        return False
    after = place.get(lines[number + 1]) if number + 1 < len(lines) else None
    return any(line.endswith(lines[number]) for line in (rest if after is None else expected[after - 1 : after]))
