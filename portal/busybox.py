"""A container image without a registry: Debian's static busybox as a tar, for `docker import`. Pure but for reading it.

The demo and the tests build their images from it; nothing else does.
"""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files\n",
}
_DIRECTORIES = {"tmp": 0o1777, "root": 0o700, "var": 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755, "srv": 0o755}


def busybox_path() -> Path:
    """The host's static busybox. Raises FileNotFoundError with what to install where there is none."""
    found = shutil.which("busybox")
    if found is None:
        raise FileNotFoundError("there is no busybox on PATH; install the Debian package busybox-static")
    return Path(found)


def busybox_tar(files: Mapping[str, str] | None = None) -> bytes:
    """A root file system with every busybox applet and `files` ({path: text}, executable) as an uncompressed tar."""
    binary = busybox_path()
    applets = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in _DIRECTORIES.items():
            _add_directory(tar, name, mode)
        _add_file(tar, "bin/busybox", binary.read_bytes(), 0o755)
        for applet in applets:
            if applet != "busybox":
                _add_link(tar, f"bin/{applet}", "busybox")
        for name, text in _FILES.items():
            _add_file(tar, name, text.encode(), 0o644)
        for name, text in (files or {}).items():
            _add_file(tar, name.lstrip("/"), text.encode(), 0o755)
    return buffer.getvalue()


def _add_directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)
