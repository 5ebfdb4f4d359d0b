"""How much of a log is on its way to one browser: never more than WINDOW bytes that it has not shown. Pure."""

import struct
from dataclasses import dataclass

WINDOW = 256 * 1024
PIECE = 128 * 1024
_HEADER = struct.Struct(">QHQ")


@dataclass
class LogWindow:
    """One browser's reading of one generation of one run's log. Offsets in bytes from the run's first."""

    run: int
    generation: int
    sent: int  # the next byte to send
    acked: int

    @classmethod
    def starting(cls, run: int, generation: int, offset: int) -> "LogWindow":
        return cls(run=run, generation=generation, sent=offset, acked=offset)

    def ack(self, offset: int) -> None:
        """The browser has shown everything before `offset`. Nonsense can only shrink what it gets."""
        self.acked = min(max(self.acked, offset), self.sent)

    def piece(self, end: int) -> int:
        """How many bytes may be sent now, of a log that reaches to `end`."""
        return max(0, min(PIECE, WINDOW - (self.sent - self.acked), end - self.sent))

    def frame(self, data: bytes) -> bytes:
        """`data`, the bytes at `sent`, as a frame; they count as sent."""
        packed = frame(self.run, self.generation, self.sent, data)
        self.sent += len(data)
        return packed


def frame(run: int, generation: int, offset: int, data: bytes) -> bytes:
    """The bytes of a run's log at `offset`, as they are sent to a browser."""
    return _HEADER.pack(run, generation, offset) + data
