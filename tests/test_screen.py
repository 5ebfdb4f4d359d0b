"""What a terminal would show of a log's bytes: the browser's own code, run by Node.js on tables of bytes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "static" / "src"
SCRIPT = """
import { readFileSync } from "node:fs";
const { Screen } = await import(process.argv[1]);
const told = [];
for (const pieces of JSON.parse(readFileSync(0))) {
  const screen = new Screen(100);
  for (const piece of pieces) screen.feed(Uint8Array.from(piece));
  const links = (line) => (line.runs ?? []).map((run) => run.link).filter(Boolean);
  told.push(screen.lines.map((line) => ({ ...line, text: line.text, links: links(line) })));
}
process.stdout.write(JSON.stringify(told));
"""

Lines = list[dict[str, Any]]


def _shown(*logs: tuple[bytes, ...]) -> list[Lines]:
    """The lines of each log, which comes in pieces."""
    given = json.dumps([[list(piece) for piece in pieces] for pieces in logs])
    arguments = ["node", "--input-type=module", "-e", SCRIPT, (SOURCES / "screen.js").as_uri()]
    done = subprocess.run(arguments, input=given, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[Lines] = json.loads(done.stdout)
    return found


TABLE: list[tuple[str, bytes, list[str]]] = [
    ("lines", b"a\nb\n", ["a", "b", ""]),
    ("a bar is its last state", b"\rload 9%\rload 10%\nx", ["load 10%", "x"]),
    ("a shorter state covers its part", b"abcdef\rXY\n", ["XYcdef", ""]),
    ("erasing to the end of the line", b"abcdef\r\x1b[KXY", ["XY"]),
    ("two bars by moving up", b"one\ntwo\n\x1b[2A\rONE!\n\x1b[B", ["ONE!", "two", ""]),
    ("erasing below", b"one\ntwo\n\x1b[2A\x1b[Jnew", ["new", "", ""]),
    ("backspaces", b"abc\b\bX", ["aXc"]),
    ("tabs stop at every eighth column", b"a\tb", ["a       b"]),
    ("wide characters take two columns", "漢字ab\r\x1b[2CX".encode(), ["漢X ab"]),
    ("modes, titles and bells are left out", b"\x1b[?25l\x1b[2J\x1b]0;owned\x07x\x07", ["x"]),
    ("a title that never ends hides nothing", b"\x1b]0;never ends\nnext", ["^[]0;never ends", "next"]),
    ("bytes that are no text are seen", b"\x00\xff\x7f|", ["^@\ufffd^?|"]),
    ("what would turn the line around is seen", "a\u202eb".encode(), ["a\ufffdb"]),
    ("script is text", b"<script>alert(1)</script>", ["<script>alert(1)</script>"]),
]


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "byte by byte"])
def test_bytes_are_shown_as_a_terminal_would(cut: int) -> None:
    """clearml/clearml#181, wandb/wandb#1265, mathieu-lemay/pipeline-runner#88, dkron-io/dkron#921"""
    pieces = [tuple(bytes([byte]) for byte in data) if cut else (data,) for _, data, _ in TABLE]
    for (reason, _, expected), lines in zip(TABLE, _shown(*pieces), strict=True):
        assert [line["text"] for line in lines] == expected, reason


def test_every_line_knows_where_its_bytes_begin() -> None:
    ascii_, accents, split = _shown((b"a\nbc\n",), ("é\nb\n".encode(),), (b"\xc3", b"\xa9", b"\nx"))
    assert [(line["at"], line["n"]) for line in ascii_] == [(100, 0), (102, 1), (105, 2)]
    assert [line["at"] for line in accents] == [100, 103, 105]
    assert [line["text"] for line in split] == ["é", "x"]
    assert split[1]["at"] == 103


def test_only_links_to_the_web_are_links() -> None:
    marked = b"\x1b]8;;%s\x07here\x1b]8;;\x07"
    web, script = _shown((marked % b"https://example.org/",), (marked % b"javascript:alert(1)",))
    assert web[0]["links"] == ["https://example.org/"]
    assert script[0]["links"] == []
    assert script[0]["text"] == "here"


def test_a_line_without_end_is_cut_and_never_lost() -> None:
    """vectordotdev/vector#14644"""
    [lines] = _shown((b"x" * 40_000 + b"\r" + b"y" * 5,))
    assert sum(len(line["text"]) for line in lines) == 40_000
    assert max(line["cols"] for line in lines) == 16_384
    assert lines[-1]["text"].startswith("yyyyyx")
