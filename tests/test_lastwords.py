"""What the end of a log tells beyond an exit code."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jobs.lastwords import command_in, read, said_by_shell
from jobs.states import EndReason

NVML_GONE = b"step 7\nFailed to initialize NVML: Unknown Error\n"
OOM = b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\n", 127, EndReason.COMMAND_NOT_FOUND),
        (b"[FATAL tini (7)] exec /etc/passwd failed: Permission denied\n", 126, EndReason.COMMAND_NOT_EXECUTABLE),
        (b"[FATAL tini (7)] exec /run failed: Exec format error\n", 126, EndReason.ARCHITECTURE),
        (b"epoch 3\n" + OOM, 1, EndReason.CUDA_OOM),
        (NVML_GONE, 1, EndReason.GPU_ACCESS_LOST),
    ],
)
def test_known_last_words_give_a_better_reason(end: bytes, code: int, reason: EndReason) -> None:
    """codalab/codalab-worksheets#2736, NVIDIA/nvidia-docker#1730, dstackai/dstack#2860."""
    found = read(end, code, has_gpus=True)
    assert found is not None
    assert found[0] is reason


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (b"sh: nope: not found\n", 1),
        (b"cat: nope: No such file or directory\n", 127),
        (b"/bin/sh: line 1: cd: nope: No such file or directory\n", 126),
        (b"pyhton: not found\n", 127),
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\nand more\n", 127),
        (b"[FATAL tini (7)] exec /bin/nope failed: No such file or directory\n", 1),
        (b"", 1),
    ],
)
def test_other_words_leave_the_exit_code(end: bytes, code: int) -> None:
    assert read(end, code, has_gpus=True) is None


def test_a_job_without_gpus_lost_none() -> None:
    assert read(NVML_GONE, 1, has_gpus=False) is None


SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner.sh").write_text("true\npyhton train.py\n")
    (tmp_path / "plain.sh").write_text("true\n")
    (tmp_path / "first_line").write_text("#!/bin/pyhton\n")
    os.chmod(tmp_path / "first_line", 0o755)
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(("script", "command"), [
    ("pyhton train.py", "pyhton"), ("set -e\necho begun\npyhton train.py\n", "pyhton"), ("./nope.sh", "./nope.sh"),
    ("./first_line", "./first_line"), (". ./inner.sh", "pyhton"), ("dash inner.sh", "pyhton"),
    ("bash inner.sh", "pyhton"),
    ("eval pyhton", "pyhton"), ("exec pyhton", "pyhton"), ("env pyhton", "pyhton"), ("timeout 9 pyhton", "pyhton"),
    ("nohup pyhton", "pyhton"), ("echo 1 | xargs pyhton", "pyhton"), ("nope || true; pyhton", "pyhton"),
])  # fmt: skip
def test_a_shell_that_finds_no_command_is_understood(shell: list[str], script: str, command: str, folder: Path) -> None:
    assert ended(shell, script, folder) == (127, EndReason.COMMAND_NOT_FOUND, command)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize("script", ["./plain.sh", "/tmp"])
def test_a_shell_that_cannot_run_a_command_is_understood(shell: list[str], script: str, folder: Path) -> None:
    assert ended(shell, script, folder) == (126, EndReason.COMMAND_NOT_EXECUTABLE, script)


def ended(shell: list[str], script: str, folder: Path) -> tuple[int, EndReason | None, str]:
    """The exit code of the script, and what the shell's own words tell: the reason, and the command."""
    done = subprocess.run(
        [*shell, "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False
    )
    reason, words = read(done.stdout, done.returncode, has_gpus=False) or (None, "")
    assert said_by_shell(words)
    return done.returncode, reason, command_in(words)


@pytest.mark.parametrize(("words", "command"), [
    ('OCI runtime create failed: exec: "train": executable file not found in $PATH: unknown', "train"),
    ("crun: executable file `train` not found in $PATH: No such file or directory", "train"),
    ("[FATAL tini (7)] exec /bin/nope failed: No such file or directory", "/bin/nope"),
    ("zsh:1: command not found: pyhton", "pyhton"), ("No command specified", ""), ("", ""),
])  # fmt: skip
def test_the_command_that_could_not_be_run_is_named(words: str, command: str) -> None:
    assert command_in(words) == command
