"""How long pages take over a year of jobs: as a user and as an admin, from the real web process, on both databases.

`PAGES_DATA` names a folder that keeps the databases for the next time. `PAGES_JOBS`, `PAGES_EVENTS`,
`PAGES_SQLITE_JOBS` and `PAGES_REQUESTS` make it smaller.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench._report import report, say
from tests.rigs.postgres import Postgres

LIMIT_MS = 100.0
Found = dict[str, dict[str, dict[str, Any]]]  # by person, by page


def number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Where the databases are: kept where asked for."""
    kept = os.environ.get("PAGES_DATA")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="dky-pages-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def one(url: str, jobs: int, events: int) -> Found:
    """The measures on one database."""
    command = [sys.executable, "-m", "bench._pages_one", *map(str, (jobs, events, number("PAGES_REQUESTS", 200)))]
    done = subprocess.run(command, env={**os.environ, "DATABASE_URL": url}, stdout=subprocess.PIPE, check=True)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def on_postgres(root: Path) -> Found:
    cluster = Postgres(root=root / "postgres")
    try:
        cluster.start()
        return one(cluster.url, number("PAGES_JOBS", 1_000_000), number("PAGES_EVENTS", 5_000_000))
    finally:
        cluster.stop()


def on_sqlite(root: Path) -> Found:
    jobs = number("PAGES_SQLITE_JOBS", 200_000)
    return one(f"sqlite:///{root / 'pages.sqlite3'}", jobs, 5 * jobs)


def main() -> None:
    with folder() as root:
        wanted = os.environ.get("PAGES_ON", "postgres sqlite").split()
        found = {name: {"postgres": on_postgres, "sqlite": on_sqlite}[name](root) for name in wanted}
    rows = [(page["p95_ms"], name, who, title) for name, people in found.items()
            for who, pages in people.items() for title, page in pages.items()]  # fmt: skip
    worst = max(rows)
    say(f"worst: {worst[3]} as {worst[2]} on {worst[1]}")
    report("pages", figure=worst[0], reference=LIMIT_MS, ratio=worst[0] / LIMIT_MS, unit="ms, p95 of the slowest page",
           detail=found)  # fmt: skip


if __name__ == "__main__":
    main()
