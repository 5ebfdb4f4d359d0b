"""What the end of a log tells of a failure that exit codes do not tell. Pure."""

import re

from jobs.states import EndReason

BYTES = 4096  # of the log's end that are looked at
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # what shells, and whatever runs commands as they do, end with

# tini, which is every container's first process, on a command that it could not run.
_TINI = re.compile(
    r"^\[FATAL tini \(\d+\)\] exec (?P<name>.{1,500}?) failed: (?P<why>[^\r\n]{1,200})\s*\Z", re.MULTILINE
)
_TINI_REASONS = (
    ("Exec format error", EndReason.ARCHITECTURE),
    ("Permission denied", EndReason.COMMAND_NOT_EXECUTABLE),
    ("", EndReason.COMMAND_NOT_FOUND),
)
# dash "/bin/sh: 1: x: not found", bash "run.sh: line 1: x: command not found", busybox "/bin/sh: x: not found", zsh
# "zsh:1: command not found: x", coreutils "timeout: failed to run command 'x': No such file or directory".
_SPEAKER = r"^(?:\S*sh|\S+(?=: (?:line )?\d+: )|env|nohup|timeout|nice|stdbuf|xargs|setsid)(?::(?: line)? ?\d+)?: "
_NAMED = (
    r"(?:\S+: )?(?:line \d+: )?(?:failed to run command |can't execute |cannot run )?"
    r"['\"‘`]?(?P<name>[^\s:'\"’`]{1,200})['\"’]?: "
)
_SHELL = {
    NOT_FOUND: re.compile(
        rf"{_SPEAKER}(?:command not found: (?P<last>\S{{1,200}})|{_NAMED}(?:(?:command )?not found"
        r"|No such file or directory|cannot execute: required file not found))\s*$",
        re.MULTILINE,
    ),
    NOT_EXECUTABLE: re.compile(
        rf"{_SPEAKER}(?:permission denied: (?P<last>\S{{1,200}})|{_NAMED}(?:Permission denied|Is a directory"
        r"|.{0,40}Exec format error|\S{1,200} ?bad interpreter.{0,100}))\s*$",
        re.MULTILINE,
    ),
}
_SHELL_REASONS = {NOT_FOUND: EndReason.COMMAND_NOT_FOUND, NOT_EXECUTABLE: EndReason.COMMAND_NOT_EXECUTABLE}
_ENGINE = re.compile(r"exec(?:: |utable file )[\"'`](?P<name>[^\"'`]{1,500})[\"'`]")
# What NVML says in a container whose devices were taken from its cgroup (NVIDIA/nvidia-container-toolkit#48).
_NVML_GONE = re.compile(r"Failed to initialize NVML: Unknown Error")
# What CUDA says of a GPU whose hardware is broken, or that answers no program any more; errors of programs themselves,
# such as an illegal access, are none of these.
_GPU_FAULT = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"
    r"|CUDA_ERROR_NVLINK_UNCORRECTABLE|CUDA_ERROR_HARDWARE_STACK_ERROR|hardware stack error"
    r"|GPU has fallen off the bus|CUDA-capable device\(s\) is/are busy or unavailable"
    r"|no CUDA-capable device is detected|CUDA(?: error:)? unknown error|CUDA_ERROR_UNKNOWN"
    r"|CUDA driver initialization failed"
)
_CUDA_OOM = re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED")


def read(end: bytes, exit_code: int, *, has_gpus: bool) -> tuple[EndReason, str] | None:
    """A better reason than the exit code, and the words that gave it; None when the code is all there is."""
    text = end.decode(errors="replace").replace("\r\n", "\n")
    if exit_code in _SHELL and (match := _TINI.search(text)):
        reason = next(reason for words, reason in _TINI_REASONS if words in match["why"])
        return reason, match[0].strip()
    if exit_code in _SHELL and (found := list(_SHELL[exit_code].finditer(text))):
        return _SHELL_REASONS[exit_code], found[-1][0].strip()
    if match := _CUDA_OOM.search(text):
        return EndReason.CUDA_OOM, match[0]
    if has_gpus and (match := _GPU_FAULT.search(text)):
        return EndReason.GPU_FAULT, match[0]
    if has_gpus and (match := _NVML_GONE.search(text)):
        return EndReason.GPU_ACCESS_LOST, match[0]
    return None


def said_by_shell(words: str) -> bool:
    """Whether the words are a shell's (or such a program's) about a command that it did not find or could not run."""
    return any(pattern.search(words) for pattern in _SHELL.values())


def command_in(words: str) -> str:
    """The command that these words of a shell, of tini or of the engine could not run; empty when they name none."""
    for pattern in (*_SHELL.values(), _TINI, _ENGINE):
        if match := pattern.search(words):
            named = match.groupdict()
            return named["name"] or named.get("last") or ""
    return ""
