"""What the end of a log tells beyond an exit code."""

import pytest

from jobs.lastwords import read
from jobs.states import EndReason

OOM = b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\n", 127, EndReason.COMMAND_NOT_FOUND),
        (b"[FATAL tini (7)] exec /etc/passwd failed: Permission denied\n", 126, EndReason.COMMAND_NOT_EXECUTABLE),
        (b"[FATAL tini (7)] exec /run failed: Exec format error\n", 126, EndReason.ARCHITECTURE),
        (b"epoch 3\n" + OOM, 1, EndReason.CUDA_OOM),
    ],
)
def test_known_last_words_give_a_better_reason(end: bytes, code: int, reason: EndReason) -> None:
    """codalab/codalab-worksheets#2736."""
    found = read(end, code)
    assert found is not None
    assert found[0] is reason


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (b"sh: nope: not found\n", 127),
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\nand more\n", 127),
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\n", 1),
        (b"", 1),
    ],
)
def test_other_words_leave_the_exit_code(end: bytes, code: int) -> None:
    assert read(end, code) is None
