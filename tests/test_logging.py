"""Every process writes one kind of line, which names the job, run and request that it is about."""

import io
import json
import logging
import logging.config
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from jobs import queues
from jobs.plain import INVISIBLE
from jobs.states import RunState
from portal import logs
from tests import factories


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the console gets, as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.KnownIds())
    handler.setFormatter(logs.Json())
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_names_what_it_is_about(written: io.StringIO) -> None:
    log = logging.getLogger("jobs.test")
    with logs.about(run=9):
        logs.know(job=7)
        log.warning("the engine said %s", "no")
        with logs.about(run=10):
            log.warning("another")
        log.warning("own", extra={"run": 11})
    log.warning("nobody's")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    first, second, own, nobodys, failed = lines(written)
    assert {name: first[name] for name in ("level", "logger", "message", "job", "run")} == {
        "level": "WARNING", "logger": "jobs.test", "message": "the engine said no", "job": 7, "run": 9,
    }  # fmt: skip
    assert first["time"].endswith("Z")
    assert (second["run"], second["job"]) == (10, 7)
    assert (own["run"], own["job"]) == (11, 7)
    assert "run" not in nobodys
    assert "ValueError: broken" in failed["exception"]


def test_text_has_the_same_ids() -> None:
    record = logging.LogRecord("jobs.test", logging.INFO, __file__, 1, "said", None, None)
    with logs.about(run=9, job=7):
        logs.KnownIds().filter(record)
    assert logs.Text().format(record).endswith("INFO jobs.test: said [job=7 run=9]")


def test_no_line_can_be_forged_or_drive_a_terminal(caplog: Any) -> None:
    """Whoever logs what a stranger sent need not think of it."""
    sent = "/a\n2026-11-30 forged \x1b[2J\x9b\u202e\u2028é"
    try:
        raise ValueError(sent)
    except ValueError:
        logging.getLogger("jobs.test").exception("no page about %s", sent, extra={"fields": {"path": sent}})
    record = caplog.records[-1]
    text, found = logs.Text().format(record), logs.Json().format(record)
    first, *trace = text.split("\n")
    assert first.endswith(r"no page about /a\n2026-11-30 forged \x1b[2J\x9b\u202e\u2028é")
    assert trace[0].startswith("Traceback")
    assert [line for line in [first, *trace, found] if INVISIBLE.search(line)] == []
    assert json.loads(found)["path"] == sent


@pytest.mark.any_database
@pytest.mark.django_db
def test_a_request_is_followed_by_its_id(settings: Any, client: Client, written: io.StringIO, caplog: Any) -> None:
    settings.LOG_REQUESTS = True
    caplog.set_level(logging.INFO, "portal.requests")
    answer = client.get("/jobs/12345/?q=secret", headers={"X-Request-ID": "front-42"})
    assert answer.headers["X-Request-ID"] == "front-42"
    mine = [line for line in lines(written) if line.get("request") == "front-42"]
    [line] = [line for line in mine if line["logger"] == "portal.requests"]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/jobs/12345/", 302)
    assert "secret" not in written.getvalue()
    made = client.get("/healthz", headers={"X-Request-ID": "a b\tc"}).headers["X-Request-ID"]
    assert made.isalnum()
    client.get("/jobs/a%0A2026-11-30 forged")
    forged = [line for line in lines(written) if line["logger"] == "portal.requests"][-1]
    assert forged["path"] == "/jobs/a\ufffd2026-11-30 forged"
    client.get("/accounts/password/reset/key/3-abcdef-0123/")
    assert "abcdef" not in written.getvalue()


@pytest.mark.any_database
@pytest.mark.django_db(transaction=True)
def test_what_a_task_writes_names_job_and_run(
    alice: Any, written: io.StringIO, caplog: Any, settings: Any, tmp_path: Path
) -> None:
    """rq: the id of an RQ job tells nobody which job it was for."""
    caplog.set_level(logging.WARNING)
    settings.DOCKER_HOST = f"unix://{tmp_path}/no-engine.sock"
    run = factories.make_run(factories.make_job(alice), factories.make_node(), state=RunState.PLACED)
    queues.connection.cache_clear()
    queues.send_launch("alpha", run.pk)
    queues.Worker([queues.queue("node.alpha")], connection=queues.connection()).work(burst=True, logging_level="ERROR")
    told = [line for line in lines(written) if line["logger"] == "jobs.launch"]
    assert {(line.get("job"), line.get("run")) for line in told} == {(run.job_id, run.pk)}


def test_the_setting_chooses_the_form() -> None:
    script = "import django; django.setup(); import logging; logging.getLogger('uvicorn.error').warning('up')"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings", "LOG_FORMAT": "json"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        cwd=django_settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stderr)["message"] == "up"
