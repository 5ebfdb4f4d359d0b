"""Log bytes and files, byte for byte to standard output or a file."""

import os
import posixpath
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from portal.cli.client import LOG_CHUNK, Client, Missing, no_text
from portal.cli.failure import Failure
from portal.cli.text import _


def write_out(data: bytes) -> None:
    """To standard output as it is, at once: progress bars with `\\r` stay alive."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_log(server: Client, job: int, run: int | None, tail: int | None) -> None:
    """Print what there is of the log: a run's, by its number, or the last one's; all, or the last `tail` bytes."""
    if tail == 0:
        return
    start = -tail if tail else 0
    while True:
        data, facts = read_range(server, job, run, start)
        write_out(data)
        start = facts.start + len(data)
        if facts.is_expired:
            sys.stderr.write(_("This log is kept no longer.") + "\n")
        if not data or start >= facts.size:
            return


class LogFacts:
    """What the headers of a range tell. `run_id` is 0 while the job has no run."""

    def __init__(self, headers: Any) -> None:
        self.run_id = int(headers.get("X-Log-Run-Id", 0))
        self.generation = int(headers.get("X-Log-Generation", 0))
        self.start = int(headers.get("X-Log-Start", 0))
        self.size = int(headers.get("X-Log-Size", 0))
        self.complete = headers.get("X-Log-Complete") == "true"
        self.is_expired = headers.get("X-Log-Expired") == "true"


def read_range(server: Client, job: int, run: int | None, start: int) -> tuple[bytes, LogFacts]:
    """Bytes of the log from `start` on (from the end when negative), as many as one answer gives."""
    end = start + LOG_CHUNK if start >= 0 else None
    params = {name: value for name, value in (("run", run), ("start", start), ("end", end)) if value is not None}
    response = server.send("GET", f"/api/jobs/{job}/log", params=params)
    return response.content, LogFacts(response.headers)


def _in_url(job: int, path: str) -> str:
    """A path inside the job's folder for a URL, in which nothing may lead up and out of it. Raises Failure."""
    tidy = posixpath.normpath(path) if path else "."
    if tidy == "." or tidy.startswith("/") or tidy.split("/")[0] == "..":
        raise Missing(_("The job has no such file."), _("dockyard files %d lists them.") % job)
    try:
        return quote(tidy)
    except UnicodeEncodeError as error:
        raise no_text(error) from error


def download(server: Client, job: int, path: str, target: str) -> None:
    """Fetch one file of a job, to `target` or, for "-", to standard output. A file is whole or not there at all."""
    with server.stream(f"/api/jobs/{job}/files/{_in_url(job, path)}") as response:
        if target == "-":
            for piece in response.iter_bytes():
                write_out(piece)
            return
        part = Path(f"{target}.part")
        try:
            with part.open("wb") as file:
                for piece in response.iter_bytes():
                    file.write(piece)
            os.replace(part, target)
        except OSError as error:
            raise Failure(_("Cannot write %(path)s: %(error)s.") % {"path": target, "error": error}) from error
        finally:
            part.unlink(missing_ok=True)
    sys.stderr.write(f"{target}\n")
