"""One file with all that an installation has to keep: database, logs, files, and workspaces where asked.

It may be made while jobs run: the database is that of one moment, and each segment of a log that it names is there.
Not in it: what Redis holds, output that was not shipped yet, and the keys (DATA_DIR/secret_key, SECRETS_KEY).
"""

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.storage import Storage, storages

from jobs import logstore
from portal import databasedump
from portal.archive import Writer
from portal.readiness import applied_migrations

DATABASE, LOGS, FILES, WORKSPACES = "database/", "logs/", "files/", "workspaces/"
_SEGMENTS = 'SELECT name, packed IS NULL, run_id, generation, "offset", length FROM jobs_logsegment ORDER BY id'
_KEY_ROUNDS = 200_000
Segment = tuple[Any, ...]  # name, whether it is raw, run, generation, offset, length


@dataclass(frozen=True)
class Made:
    """What was backed up: so many members by kind, of log segments those that were gone, and what changed meanwhile."""

    path: Path
    size: int
    counts: Counter[str]
    missing: int
    changed: int


def backup(target: Path, *, with_logs: bool = True, with_workspaces: bool = False) -> Made:
    """Make a back-up named `target`, or in that folder under a name with the time. Raises databasedump.Failed."""
    at = datetime.now(UTC)
    path = target / f"dockyard-{settings.INSTALLATION}-{at:%Y%m%dT%H%M%SZ}.tar" if target.is_dir() else target
    writer = Writer(path)
    try:
        counts, missing = _fill(writer, with_logs=with_logs, with_workspaces=with_workspaces)
        writer.finish({**about(), "made_at": at.isoformat(), "counts": counts, "missing_segments": missing})
    except BaseException:
        writer.drop()
        raise
    return Made(path, path.stat().st_size, counts, missing, len(writer.changed))


def about() -> dict[str, Any]:
    """What a restore looks at first."""
    return {
        "installation": settings.INSTALLATION, "database": databasedump.kind(), "key": fingerprint(),
        "migrations": sorted(applied_migrations()),
    }  # fmt: skip


def fingerprint() -> str:
    """Tells one SECRETS_KEY from another, and nothing more of it."""
    return hashlib.pbkdf2_hmac("sha256", settings.SECRETS_KEY.encode(), b"dockyard backup", _KEY_ROUNDS).hex()[:32]


def _fill(writer: Writer, *, with_logs: bool, with_workspaces: bool) -> tuple[Counter[str], int]:
    counts: Counter[str] = Counter()
    folder = tempfile.TemporaryDirectory(prefix=".dockyard-backup-", dir=writer.path.parent)
    with folder as place, databasedump.dumped(Path(place)) as (dump, query):
        with dump.open("rb") as file:
            writer.add(f"{DATABASE}{dump.name}", file, dump.stat().st_size)
        segments = list(query(_SEGMENTS)) if with_logs else []
    counts["logs"] = sum(_add_segment(writer, *segment) for segment in segments)
    counts["files"] = sum(1 for _ in _add_files(writer))
    if with_workspaces:
        counts["workspaces"] = sum(1 for _ in _add_tree(writer, Path(settings.WORKSPACE_ROOT)))
    return counts, len(segments) - counts["logs"]


def _add_segment(writer: Writer, name: str, is_raw: bool, *place: int) -> bool:
    """A segment as its row was copied; what was packed since is made of what there is now.

    False when its log has expired or was replaced meanwhile.
    """
    data = _bytes_of(storages["logs"], name)
    if data is None and is_raw:
        data = logstore.raw_bytes(*place)
    return _add(writer, f"{LOGS}{name}", data)


def _add(writer: Writer, name: str, data: bytes | None) -> bool:
    if data is None:
        return False
    writer.add(name, BytesIO(data), len(data))
    return True


def _bytes_of(storage: Storage, name: str) -> bytes | None:
    try:
        with storage.open(name) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def _add_files(writer: Writer) -> Iterator[str]:
    storage = storages["default"]
    for name in walk(storage.listdir):
        if _add(writer, f"{FILES}{name}", _bytes_of(storage, name)):
            yield name


def walk(listdir: Callable[[str], tuple[list[str], list[str]]], folder: str = "") -> Iterator[str]:
    """The names of all files of a storage."""
    try:
        folders, names = listdir(folder)
    except FileNotFoundError:
        return
    yield from (f"{folder}{name}" for name in sorted(names))
    for name in sorted(folders):
        yield from walk(listdir, f"{folder}{name}/")


def _add_tree(writer: Writer, root: Path) -> Iterator[Path]:
    """All below it, links as links; what vanishes meanwhile is left out."""
    for folder, folders, names in os.walk(root):
        for name in sorted([*folders, *names]):
            path = Path(folder, name)
            try:
                writer.add_path(f"{WORKSPACES}{path.relative_to(root)}", path)
            except (FileNotFoundError, PermissionError):
                continue
            yield path
