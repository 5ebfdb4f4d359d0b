"""The process that NVML lives in: `python -m gpus.sampler_child <node> <parent pid>`. No Django here.

For each byte on its input it prints one reading, a line of JSON. It ends with its parent, and at the end of its input.
"""

import contextlib
import ctypes
import os
import signal
import sys

from gpus import cgroups, nvml
from gpus.readings import HostReading

_REFRESH_AFTER = 60  # readings with trouble before the library is opened or loaded afresh
_STALE = ("driver_mismatch", "error")  # the library's file may have been replaced since it was loaded
_PR_SET_PDEATHSIG = 1


def main(node: str, parent: int) -> None:
    """Answer until the parent goes."""
    _die_with(parent)
    out = _private_output()
    table = cgroups.ProcessTable()
    troubled = 0
    while os.read(0, 1):
        reading = cgroups.identify_all(nvml.read_host(node), table)
        _write(out, reading.encode().encode() + b"\n")
        troubled = troubled + 1 if _is_troubled(reading) else 0
        if troubled >= _REFRESH_AFTER:
            troubled = 0
            _refresh(reading, out)


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the parent has gone")


def _private_output() -> int:
    """The pipe under a number of its own: what a library prints goes to standard error, not between readings."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def _write(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


def _is_troubled(reading: HostReading) -> bool:
    """Whether opening the library afresh may help: it does not against errors of the memory."""
    return reading.status in _STALE or any(gpu.health != "ok" and not gpu.ecc_errors for gpu in reading.gpus)


def _refresh(reading: HostReading, out: int) -> None:
    """A lost GPU needs the library opened again; only a new program image gets rid of a stale one."""
    nvml.close()
    if reading.status in _STALE:
        os.dup2(out, 1)
        os.execv(sys.executable, [sys.executable, "-m", "gpus.sampler_child", *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
