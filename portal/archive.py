"""A back-up in one file: a tar whose last member, `manifest.json`, has the SHA-256 and size of every other.

Written beside its name and renamed when it is whole, so that what has the name is whole. Readable by its owner only.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

FORMAT = 1  # of the archive; a reader refuses a higher one
MANIFEST = "manifest.json"
CHUNK = 1 << 20


class Damaged(Exception):
    """The file is no whole back-up; str() says what is wrong with it, for people who know tar."""


class _Steady:
    """Exactly `size` bytes of a file that may be written to meanwhile: cut where it grew, zeros where it shrank."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()
        self.shrank = False

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            self.shrank = True
            data += bytes(wanted - len(data))
        self._left -= wanted
        self.digest.update(data)
        return data


class Writer:
    """Makes an archive: `add` each member, then `finish`; `drop` when it will not be finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        self._file = os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._members: dict[str, tuple[int, str]] = {}
        self.changed: list[str] = []  # members that shrank while they were read

    def add(self, name: str, file: IO[bytes], size: int) -> None:
        """Add so many bytes of the file."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._put(info, file)

    def add_path(self, name: str, path: Path) -> None:
        """Add a file, directory or link as it is, with its owner, rights and times. What else there may be is left."""
        info = self._tar.gettarinfo(str(path), arcname=name)
        if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            return
        if not info.isreg():
            self._tar.addfile(info)
            return
        with path.open("rb") as file:
            self._put(info, file)

    def _put(self, info: tarfile.TarInfo, file: IO[bytes]) -> None:
        steady = _Steady(file, info.size)
        self._tar.addfile(info, steady)
        self._members[info.name] = info.size, steady.digest.hexdigest()
        if steady.shrank:
            self.changed.append(info.name)

    def finish(self, about: dict[str, Any]) -> None:
        """Write the manifest, with what it says about the whole, and give the file its name."""
        manifest = {"format": FORMAT, **about, "changed": self.changed, "members": self._members}
        data = json.dumps(manifest, indent=1).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size, info.mode = len(data), 0o600
        self._tar.addfile(info, BytesIO(data))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.rename(self.path)

    def drop(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Member:
    """One member: its name, and its bytes where it is a file."""

    info: tarfile.TarInfo
    file: IO[bytes] | None

    @property
    def name(self) -> str:
        return self.info.name


class Reader:
    """Reads an archive. `manifest` is there at once; `check` reads all of it. Both raise Damaged."""

    def __init__(self, path: Path) -> None:
        try:
            self._tar = tarfile.open(path, mode="r:")  # noqa: SIM115
            names = self._tar.getnames()
            file = self._tar.extractfile(MANIFEST) if names and names[-1] == MANIFEST else None
            if file is None:
                raise Damaged(f"{MANIFEST} is missing at its end: it is not complete")
            self.manifest: dict[str, Any] = json.loads(file.read())
        except (tarfile.TarError, json.JSONDecodeError, KeyError, EOFError) as error:
            raise Damaged(str(error)) from error

    def check(self) -> None:
        """Compare every member with its checksum."""
        expected = {name: tuple(found) for name, found in self.manifest.get("members", {}).items()}
        seen: dict[str, tuple[int, str]] = {}
        for member in self.members():
            if member.file is not None:
                seen[member.name] = member.info.size, _digest(member.file)
        for name in sorted(expected.keys() | seen.keys()):
            if expected.get(name) != seen.get(name):
                raise Damaged(f"{name} is not what the manifest says")

    def members(self, folder: str = "") -> Iterator[Member]:
        """Those in this folder, in order; all but the manifest without one."""
        try:
            for info in self._tar.getmembers():
                if info.name != MANIFEST and info.name.startswith(folder):
                    yield Member(info, self._tar.extractfile(info) if info.isreg() else None)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise Damaged(str(error)) from error

    def unpack(self, member: Member, root: Path, folder: str) -> None:
        """Put a member of `folder` below `root`, with its owner and rights. Raises Damaged where it leads outside."""
        try:
            inside = member.info.replace(name=member.name.removeprefix(folder), deep=False)
            safe = tarfile.tar_filter(inside, str(root)).replace(mode=member.info.mode & 0o1777, deep=False)
            if safe.islnk():
                to = safe.linkname.removeprefix(folder)
                tarfile.tar_filter(safe.replace(name=to, deep=False), str(root))  # nor may it lead outside
                safe = safe.replace(linkname=to, deep=False)
                (root / safe.name).unlink(missing_ok=True)  # a link replaces nothing
            self._tar.extract(safe, root, numeric_owner=True, filter="fully_trusted")
        except tarfile.FilterError as error:
            raise Damaged(str(error)) from error


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while data := file.read(CHUNK):
        digest.update(data)
    return digest.hexdigest()
