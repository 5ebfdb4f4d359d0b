"""The look for known vulnerabilities: every pinned package is asked about, and no network is no failure."""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.processes import free_port

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "audit"


class Database(BaseHTTPRequestHandler):
    """Knows of one vulnerability, and keeps what it was asked."""

    asked: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        self.asked.extend(queries)
        sick = self.server.sick  # type: ignore[attr-defined]
        found = [{"vulns": [{"id": "GHSA-test"}]} if q["package"]["name"] == sick else {} for q in queries]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": found}).encode())

    def log_message(self, *_args: Any) -> None:
        pass


def audit(url: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPT], env={**os.environ, "OSV_URL": url}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("sick", "status"), [("django", 1), ("", 0)])
def test_what_is_known_of_a_pinned_package_fails_the_look(sick: str, status: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Database) as server:
        server.sick = sick  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = audit(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert done.returncode == status
    assert ("GHSA-test" in done.stdout) == bool(sick)
    names = {(q["package"]["ecosystem"], q["package"]["name"]) for q in Database.asked}
    assert {("PyPI", "django"), ("PyPI", "ruff"), ("npm", "esbuild")} <= names


def test_without_a_network_it_says_so_and_is_skipped() -> None:
    done = audit(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 75
    assert "was not reached" in done.stdout
