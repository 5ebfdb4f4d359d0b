"""Readings as lines of a chart: minutes and seconds in one row, parted where nothing was read, thinned. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Point = tuple[Any, ...]  # at, in seconds since 1970, then the values by name; None: not known
Line = dict[str, list[Any]]  # "at" and every name, each of one length
MASKS = frozenset({"throttle"})  # values that are sets of bits

_BETWEEN = 0.001  # seconds before a point that a row of nulls is put


def points(rows: Iterable[Mapping[str, Any]], names: Sequence[str], shift: float = 0.0) -> list[Point]:
    """Rows that have `at` and values by name, as points; `shift` is added to their time."""
    return [(row["at"] + shift, *(row.get(name) for name in names)) for row in rows]


def line(
    minutes: list[Point], seconds: list[Point], names: Sequence[str], *, apart: float, minutes_apart: float, most: int
) -> Line:
    """Both in one row, of at most about `most` points: means over equal times where there would be more, so that a
    peak of seconds shows only in a shorter window. Points further apart than `apart` (samples) or `minutes_apart`
    (minutes) seconds are not continuous, and parted by a row of nulls."""
    pieces = _parted([(point, minutes_apart) for point in minutes], [(point, apart) for point in seconds])
    thin = [_thinned(piece, names, _width(pieces, most)) for piece in pieces]
    gap = (None,) * len(names)
    rows = [p for i, piece in enumerate(thin) for p in ([(piece[0][0] - _BETWEEN, *gap)] if i else []) + piece]
    columns = list(zip(*rows, strict=True)) or [()] * (len(names) + 1)
    return {name: list(column) for name, column in zip(("at", *names), columns, strict=True)}


def _parted(minutes: list[tuple[Point, float]], seconds: list[tuple[Point, float]]) -> list[list[Point]]:
    """The points, each with how far it may be from the one before, in pieces; the first second follows a minute."""
    pieces: list[list[Point]] = []
    step = minutes[-1][1] if minutes else 0.0
    for number, (point, most) in enumerate([*minutes, *seconds]):
        if not pieces or point[0] - pieces[-1][-1][0] > (step if number == len(minutes) else most):
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _width(pieces: list[list[Point]], most: int) -> float:
    """How much time becomes one point; 0: none is thinned."""
    if sum(map(len, pieces)) <= most:
        return 0.0
    room = max(most - 2 * len(pieces), 1)  # every piece may begin and end in the midst of one, and is parted by one
    return max(sum(float(piece[-1][0] - piece[0][0]) for piece in pieces) / room, _BETWEEN)


def _thinned(piece: list[Point], names: Sequence[str], width: float) -> list[Point]:
    if not width:
        return piece
    first = piece[0][0]
    return [_mean(list(group), names) for _bucket, group in groupby(piece, lambda point: (point[0] - first) // width)]


def _mean(group: list[Point], names: Sequence[str]) -> Point:
    columns = list(zip(*group, strict=True))
    named = zip(names, columns[1:], strict=True)
    values = (_joined([value for value in column if value is not None], name in MASKS) for name, column in named)
    return round(sum(columns[0]) / len(group), 3), *values


def _joined(known: list[Any], is_mask: bool) -> Any:
    if not known:
        return None
    if is_mask:
        mask = 0
        for value in known:
            mask |= value
        return mask
    return round(sum(known) / len(known), 2)
