"""A module of ours with a private PostgreSQL as its database, which it must know before it loads any setting."""

import os
import subprocess
import sys
from pathlib import Path

from tests.rigs.postgres import running_postgres

ROOT = Path(__file__).resolve().parent.parent


def run_on_postgres(module: str) -> int:
    """Run it to its end; its exit status. BENCH_POSTGRES_PID tells it whose memory is the database's."""
    with running_postgres() as cluster:
        pid = (cluster.data / "postmaster.pid").read_text().split()[0]
        env = {**os.environ, "DATABASE_URL": cluster.url, "BENCH_POSTGRES_PID": pid}
        return subprocess.run([sys.executable, "-m", module], cwd=ROOT, env=env, check=False).returncode
