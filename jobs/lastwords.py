"""What the end of a log tells of a failure that exit codes do not tell. Pure."""

import re

from jobs.states import EndReason

BYTES = 4096  # of the log's end that are looked at

# tini, which is every container's first process, on a command that it could not run.
_TINI = re.compile(rb"^\[FATAL tini \(\d+\)\] exec .{1,500}? failed: (?P<why>[^\r\n]{1,200})\s*\Z", re.MULTILINE)
_TINI_REASONS = (
    (b"Exec format error", EndReason.ARCHITECTURE),
    (b"Permission denied", EndReason.COMMAND_NOT_EXECUTABLE),
    (b"", EndReason.COMMAND_NOT_FOUND),
)
_CUDA_OOM = re.compile(rb"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED")


def read(end: bytes, exit_code: int) -> tuple[EndReason, str] | None:
    """A better reason than the exit code, and the words that gave it; None when the code is all there is."""
    if exit_code in (126, 127) and (match := _TINI.search(end)):
        reason = next(reason for words, reason in _TINI_REASONS if words in match["why"])
        return reason, match[0].decode(errors="replace").strip()
    if match := _CUDA_OOM.search(end):
        return EndReason.CUDA_OOM, match[0].decode()
    return None
