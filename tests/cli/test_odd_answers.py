"""Whatever answers at the server's address, and whatever was typed: one sentence and status 2, never a trace."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import pytest

from portal.cli import app, change, client, follow, logs, order, request
from portal.cli.failure import EXIT_FAILURE

assert change, order  # their commands are added by being imported
JSON = {"Content-Type": "application/json"}
# (status, or None for bytes that are no HTTP; headers; body)
ANSWERS: list[tuple[int | None, dict[str, str], bytes]] = [
    *((200, JSON, body) for body in (
        b"null", b"[]", b"{}", b'"x"', b"[" * 5000, b"9" * 5000, b"\xff\xfe", b'{"jobs": [',
        b'{"jobs":null,"queued":null,"nodes":null,"levels":null,"files":null,"events":null,"teams":null,"job":null}',
        b'{"jobs":[1],"queued":[null],"held":[],"later":[],"nodes":[{}],"levels":[{}],"files":[3],"teams":[{}],"next":1}',
    )),
    (200, {"Content-Type": "text/html"}, b"<html>"), (204, {}, b""), (302, {}, b""), (302, {"Location": "/login"}, b""),
    (301, {"Location": "http://[::1"}, b""), (500, {}, b"<html>"), (422, JSON, b'{"errors":[{"field":1}]}'),
    (422, JSON, b'{"errors":"x"}'), (401, JSON, b"[]"), (404, {}, b"no"), (200, {"Content-Encoding": "gzip"}, b"x"),
    (200, JSON | {"Content-Length": "1000"}, b"{}"), (200, {"X-Log-Run-Id": "x"}, b"bytes"), (None, {}, b""),
    (None, {}, b"what?\r\n\r\n"), (None, {}, b"HTTP/1.1 999999 x\r\n\r\n"),
]  # fmt: skip
COMMANDS = [
    ["ps"], ["show", "1"], ["why", "1"], ["gpus"], ["queue"], ["quota"], ["cancel", "1"], ["hold", "1", "2"],
    ["logs", "1"], ["logs", "-f", "1"], ["wait", "1"], ["files", "1"], ["get", "1", "a", "-o", "/nowhere/a"],
    ["submit", "-i", "a", "--", "true"], ["submit", "-i", "a", "--preview"], ["login", "--token", "t"], ["logout"],
    ["move", "1"], ["extend", "1", "1h"], ["amend", "1", "--gpus", "1"], ["fairshare"], ["reorder", "1", "up"],
]  # fmt: skip
# Commands whose own output a good-looking answer may be: bytes of a log, an answer without a body.
CONTENT = ({"logs", "get", "logout"}, {200, 204})
NO_TEXT = "\udcff"  # an argument's byte that is no UTF-8, as Python has it


class Garbage(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Any = ANSWERS[0]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.close_connection = True
        status, headers, body = self.answer
        if status is not None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def garbage() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Garbage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _alone(garbage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name, value in {
        "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "DOCKYARD_URL": garbage, "DOCKYARD_TOKEN": "dky_x",
        "DOCKYARD_PATIENCE": "1s",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "RETRY_DELAYS", ())
    monkeypatch.setattr(follow, "RECONNECT_DELAYS", (0.05,))
    monkeypatch.setattr(follow, "POLL_PERIOD", 0.05)


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The command in this process; its exit status. Whatever it does not catch fails the test with its trace."""
    monkeypatch.setattr("sys.argv", ["dockyard", *words])
    try:
        app.run()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def test_answers_that_make_no_sense_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    pairs = [*product(ANSWERS, (["ps"], ["submit", "-i", "a"])), *product(ANSWERS[:3], COMMANDS)]
    for answer, words in pairs:
        monkeypatch.setattr(Garbage, "answer", answer)
        status = run(words, monkeypatch)
        said = capsys.readouterr().err
        fine = words[0] in CONTENT[0] and answer[0] in CONTENT[1] and status == 0
        if not fine and (status != EXIT_FAILURE or not said.startswith("dockyard: ")):
            wrong.append((words, answer, status, said))
    assert wrong == []


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "--search", NO_TEXT], ["submit", "-i", NO_TEXT], ["submit", "-i", "a", "-e", f"A={NO_TEXT}"],
        ["get", "1", NO_TEXT], ["priority", "1", NO_TEXT], ["login", "http://" + "a" * 300, "--token", "x"],
        ["login", "http://[::1", "--token", "x"], ["login", "--token", "ü"], ["submit", "-i", "a", "--share", "nan"],
        ["submit", "-i", "a", "--start-after", "in 9999999999d"], ["submit", "-i", "a", "--limit", "9" * 400],
        ["submit", "-i", "a", "--memory", "1e999"], ["submit", "-i", "a", "-g", "9" * 5000],
        ["amend", "1", "-c", "inf"], ["--lang", NO_TEXT, "ps"], ["show", "9" * 5000],
        ["wait", "1", "--patience", "9" * 50 + "d"],
    ],
)  # fmt: skip
def test_words_that_make_no_sense_are_told_in_a_sentence(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Garbage, "answer", (404, JSON, b'{"errors":[{"field":"","message":"No."}]}'))
    assert run(words, monkeypatch) == EXIT_FAILURE
    assert capsys.readouterr().err.strip()


def test_a_defect_of_ours_is_no_answer_that_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before an answer came there is none to blame, and while bytes are read none says that a number is not finite."""

    def broken(*_args: Any, **_named: Any) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(Garbage, "answer", (200, {}, b"bytes"))
    monkeypatch.setattr(logs, "write_out", broken)
    assert run(["get", "1", "a", "-o", "-"], monkeypatch) == EXIT_FAILURE
    assert "(ValueError: ours)" in capsys.readouterr().err
    monkeypatch.setattr(request, "body", broken)
    with pytest.raises(ValueError, match="ours"):
        run(["submit", "-i", "a"], monkeypatch)


def test_a_proxy_that_is_none_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://proxy")
    assert run(["login", "http://far.example", "--token", "x"], monkeypatch) == EXIT_FAILURE
    said = capsys.readouterr().err
    assert said.startswith("dockyard: Cannot reach Dockyard at http://far.example (")
    assert "nonsense://proxy" in said
