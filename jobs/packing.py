"""How a segment rests: gzip members of PIECE raw bytes each, one behind another: a range is read by few of them. Pure.

The file is an ordinary gzip file. The sizes of its members, kept beside it, tell where each begins.
"""

import gzip
from collections.abc import Sequence

PIECE = 256 * 1024
WORTH = 4096  # bytes: a smaller segment is left as it is
_LEVEL = 6


def pack(data: bytes) -> tuple[bytes, list[int]]:
    """The packed bytes and the sizes of their members; empty sizes: it is not worth it, keep `data`."""
    if len(data) < WORTH:
        return data, []
    members = [gzip.compress(data[at : at + PIECE], _LEVEL, mtime=0) for at in range(0, len(data), PIECE)]
    packed = b"".join(members)
    return (packed, [len(member) for member in members]) if len(packed) < 0.9 * len(data) else (data, [])


def place(sizes: Sequence[int], start: int, stop: int) -> tuple[int, int, int]:
    """Which packed bytes hold the raw bytes [start, stop): their offset, their length, and how many raw bytes of what
    they unpack to come before `start`.
    """
    first, last = start // PIECE, -(-stop // PIECE)
    return sum(sizes[:first]), sum(sizes[first:last]), start - first * PIECE


def unpack(data: bytes, skip: int, length: int) -> bytes:
    """`length` raw bytes of whole members, without the first `skip`."""
    return gzip.decompress(data)[skip : skip + length]
