"""The log of a job's page in a real browser: logs of any size, floods, what is found in them, and by keyboard alone."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from jobs import control
from jobs.models import Job
from jobs.segments import SegmentWriter
from tests import factories
from tests.rigs.browser import copied_by, flawless_tab, storage_of
from tests.rigs.people import researcher, submitted
from tests.rigs.stack import Stack

FLOOD_SECONDS = 600 if os.environ.get("SOAK") else 5
MOST_NODES = 5000
MOST_HEAP = 150 << 20  # bytes of JavaScript's heap, however much was printed
BEGAN = 1_764_500_000
OUT, ERR = 1, 2
LINE = b"%08d step loss=0.5 a line of an epoch that says little but is of some length, as they are\n"

Part = tuple[bytes, int, int]  # what was printed, seconds after BEGAN, stream


@pytest.fixture(scope="module")
def flora(stack: Stack) -> str:
    return researcher(stack, "flora", "botany")


@pytest.fixture(scope="module")
def signed_in(stack: Stack, browser: Browser, flora: str) -> Any:
    return storage_of(browser, stack.url, flora)


@pytest.fixture
def tab(browser: Browser, signed_in: Any) -> Iterator[Page]:
    with flawless_tab(browser, storage_state=signed_in, viewport={"width": 1400, "height": 900}) as page:
        yield page


def _printed(stack: Stack, owner: str, parts: Iterable[Part]) -> int:
    """A job that has ended and printed this. Returns its number."""

    def make() -> int:
        from portal.models import User

        run = factories.make_ended_run(User.objects.get(username=owner), datetime.fromtimestamp(BEGAN, UTC))
        writer = SegmentWriter(run.pk, 0)
        for data, seconds, stream in parts:
            writer.marks.note(writer.end, BEGAN + seconds, stream)
            writer.write(data)
        writer.complete(dropped=0)
        return run.job_id

    return stack.orm(make)


def _lines(count: int, *, of: int = 2000) -> Iterator[Part]:
    """So many numbered lines; `of` a second."""
    for first in range(0, count, of):
        yield b"".join(LINE % number for number in range(first, min(first + of, count))), first // of, OUT


def _open(page: Page, stack: Stack, job: int, text: str) -> None:
    page.goto(f"{stack.url}/jobs/{job}/")
    expect(page.locator("#log-rows")).to_contain_text(text)


def _nodes(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def _scroll(page: Page, by: int, there: Callable[[int], bool]) -> None:
    """Scroll by so many pixels again and again, until the first number in sight will do."""
    deadline = time.monotonic() + 200
    while not there(_first_number(page)):
        assert time.monotonic() < deadline, _first_number(page)
        page.evaluate(f"document.getElementById('log-rows').scrollBy(0, {by})")
        page.wait_for_timeout(30)


def _first_number(page: Page) -> int:
    rows = "[...document.querySelectorAll('.log-row')].map(row => parseInt(row.textContent))"
    return int(page.wait_for_function(f"{rows}.filter(Number.isFinite).map(String)[0]").json_value())


@pytest.fixture(scope="module")
def big(stack: Stack, flora: str) -> int:
    """A job that printed 100 MB."""
    return _printed(stack, flora, [*_lines(1_100_000), (b"\x1b[31mTHE\x1b[0m END\n", 600, ERR)])


def test_a_log_of_a_hundred_megabytes_opens_at_its_end_at_once(
    tab: Page, stack: Stack, big: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """concourse/concourse#470, microsoft/pai#5119, screwdriver-cd/screwdriver#2871: it took the tab down."""
    begin = time.monotonic()
    tab.goto(f"{stack.url}/jobs/{big}/", wait_until="commit")
    expect(tab.locator("#log-rows")).to_contain_text("THE END")
    with capsys.disabled():
        print(f" 100 MB shown after {time.monotonic() - begin:.2f} s ", end="")
    assert _nodes(tab) < MOST_NODES
    assert tab.evaluate("performance.getEntriesByType('resource').filter(e => e.transferSize > 2e6).length") == 0


def test_all_of_a_log_is_scrolled_through_by_ranges(tab: Page, stack: Stack, big: int) -> None:
    """concourse/concourse#6722"""
    _open(tab, stack, big, "THE END")
    _scroll(tab, -8000, lambda number: number < 1_080_000)
    expect(tab.locator("#log-follow")).to_have_attribute("aria-pressed", "false")
    tab.locator("#log-place").fill("550001")
    tab.keyboard.press("Enter")
    expect(tab.locator(".log-row.is-marked")).to_contain_text("00550000 step")
    tab.locator("#log-place").fill("25%")
    tab.keyboard.press("Enter")
    expect(tab.locator(".log-row.is-marked")).to_contain_text(re.compile("002[67]"))
    _scroll(tab, 8000, lambda number: number > 300_000)
    rows = tab.evaluate("[...document.querySelectorAll('.log-row')].map(row => parseInt(row.textContent))")
    assert rows == list(range(rows[0], rows[0] + len(rows))), "no line is missing or shown twice"
    assert _nodes(tab) < MOST_NODES


def test_the_log_is_read_by_keyboard_alone(tab: Page, stack: Stack, big: int) -> None:
    _open(tab, stack, big, "THE END")
    rows = tab.locator("#log-rows")
    rows.focus()
    tab.keyboard.press("Home")
    expect(rows).to_contain_text("00000000 step")
    tab.keyboard.press("End")
    expect(rows).to_contain_text("THE END")
    tab.keyboard.press("f")
    expect(tab.locator("#log-follow .log-follow-word")).to_have_text("Paused")
    tab.keyboard.press("z")
    expect(tab.locator("#log")).to_have_class(re.compile("is-full"))
    tab.keyboard.press("Escape")
    expect(tab.locator("#log")).not_to_have_class(re.compile("is-full"))
    tab.keyboard.press("/")
    expect(tab.locator("#log-query")).to_be_focused()
    tab.keyboard.type("00123456")
    tab.keyboard.press("Enter")
    expect(tab.locator("#log-found-count")).to_have_text("Found: 1")
    tab.keyboard.press("Enter")
    expect(tab.locator(".log-row.is-marked")).to_contain_text("00123456 step")
    tab.keyboard.press("Escape")
    expect(tab.locator("#log-found")).to_be_hidden()
    expect(rows).to_be_focused()
    tab.keyboard.press(":")
    expect(tab.locator("#log-place")).to_be_focused()
    tab.keyboard.type("no place\n")
    expect(tab.locator("#log-place-said")).to_contain_text("Say a line")
    tab.keyboard.press("Escape")
    tab.keyboard.press("?")
    expect(tab.locator("#keys-help")).to_contain_text("In a job's log")


def test_a_search_goes_through_all_of_the_log_and_leads_to_each_hit(tab: Page, stack: Stack, big: int) -> None:
    """dstackai/dstack#2926"""
    _open(tab, stack, big, "THE END")
    tab.locator("#log-regex").click()
    tab.locator("#log-query").fill(r"^000\d0000 |the\s+end")
    tab.locator("#log-query").press("Enter")
    expect(tab.locator("#log-found-count")).to_have_text("Found: 11")
    expect(tab.locator("#log-hits li").nth(3)).to_contain_text("00030000 step")
    expect(tab.locator("#log-hits li").nth(3)).to_contain_text("00029999 step")
    tab.locator("#log-hits button").nth(3).click()
    expect(tab.locator(".log-row.is-marked")).to_contain_text("00030000 step")
    expect(tab.locator(".log-row.is-marked mark")).to_have_text("00030000 ")
    tab.locator("#log-next").click()
    expect(tab.locator(".log-row.is-marked")).to_contain_text("00040000 step")
    assert _nodes(tab) < MOST_NODES
    tab.locator("#log-query").fill("(")
    tab.locator("#log-query").press("Enter")
    expect(tab.locator("#log-found-count")).to_contain_text("no regular expression")


def test_times_streams_and_line_numbers_are_shown_on_request(tab: Page, stack: Stack, flora: str) -> None:
    """dstackai/dstack#2926: no time stamps."""
    parts = [(f"said {number}\n".encode(), 60 * number, ERR if number == 3 else OUT) for number in range(6)]
    job = _printed(stack, flora, parts)
    _open(tab, stack, job, "said 5")
    expect(tab.locator(".log-note")).to_have_count(0)
    tab.locator("#log-margins").click()
    for name in ("time", "number", "stream"):
        tab.locator(f"#log-{name}").click()
    row = tab.locator(".log-row").nth(3)
    expect(row.locator(".log-note-number")).to_have_text("4")
    expect(row.locator(".log-note-stream")).to_have_text("err")
    shown = tab.evaluate(f"new Date({BEGAN + 180}000).toTimeString().slice(0, 8)")
    expect(row.locator(".log-note-time")).to_have_text(shown)
    tab.locator("#log-place").fill(tab.evaluate(f"new Date({BEGAN + 240}000).toTimeString().slice(0, 8)"))
    tab.locator("#log-place").press("Enter")
    expect(tab.locator(".log-row.is-marked .log-text")).to_have_text("said 4")


HOSTILE = (
    b"<img src=x onerror=alert(1)> \x1b]8;;javascript:alert(1)\x07bad\x1b]8;;\x07 \x1b]8;;http://ok.example/\x07good"
    b"\x1b]8;;\x07 see https://example.org/a?b=c.\n\x1b]0;" + b"x" * 1_000_000 + b"\nafter the garbage\n"
)


def test_hostile_output_is_text_and_links_are_safe(tab: Page, stack: Stack, flora: str) -> None:
    """dkron-io/dkron#921, cvquesty/openvox-gui#26, rundeck/rundeck#2068"""
    job = _printed(stack, flora, [(HOSTILE, 0, OUT)])
    _open(tab, stack, job, "after the garbage")
    tab.locator("#log-top").click()
    expect(tab.locator("#log-rows")).to_contain_text("<img src=x onerror=alert(1)> bad good")
    links = tab.locator("#log-rows a")
    assert [links.nth(at).get_attribute("href") for at in range(links.count())] == [
        "http://ok.example/", "https://example.org/a?b=c",
    ]  # fmt: skip
    assert links.first.get_attribute("rel") == "noopener noreferrer nofollow"
    assert tab.locator("#log-rows :is(img, script)").count() == 0
    expect(tab).to_have_title(re.compile(f"#{job}"))


def test_what_is_selected_is_copied_as_it_was_printed(tab: Page, stack: Stack, flora: str) -> None:
    """Also what has left the screen since the selection began, and without breaks that were not printed."""
    job = _printed(stack, flora, [*_lines(300), (b"w" * 500 + b"\nlast\n", 1, OUT)])
    _open(tab, stack, job, "last")
    tab.locator("#log-top").click()
    expect(tab.locator("#log-rows")).to_contain_text("00000000 step")
    select = "getSelection().setBaseAndExtent({0}, 0, {0}, 0)".format(
        "[...document.querySelectorAll('.log-row')].find(row => row.textContent.startsWith('00000002'))"
    )
    tab.evaluate(select)
    tab.evaluate("getSelection().modify('extend', 'forward', 'character')")
    tab.evaluate("document.getElementById('log-rows').scrollTop = 1e6")
    expect(tab.locator("#log-rows")).to_contain_text("last")
    tab.evaluate(
        "getSelection().extend([...document.querySelectorAll('.log-text')].find(e => e.textContent === 'last'), 1)"
    )
    copied = copied_by(tab, "#log-copy").split("\n")
    assert copied[0].startswith("00000002 step")
    assert copied[-2:] == ["w" * 500, "last"]
    assert len(copied) == 300


FLOOD = "i=0; while :; do i=$((i+1)); head -c 200000 /dev/zero | tr '\\0' x | fold -w 99; echo mark $i; done"


@pytest.mark.soak
@pytest.mark.timeout(FLOOD_SECONDS + 300)
def test_a_flood_leaves_the_tab_small_and_at_the_end(
    tab: Page, stack: Stack, flora: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """microsoft/pai#5119, ansible/awx#9085"""

    job = submitted(stack, flora, FLOOD, name="flood", gpus=0, limit_seconds=FLOOD_SECONDS + 300)
    _open(tab, stack, job, "xxxx")
    session = tab.context.new_cdp_session(tab)
    heaps = []
    for _ in range(max(FLOOD_SECONDS // 5, 2)):
        tab.wait_for_timeout(1000 * FLOOD_SECONDS // max(FLOOD_SECONDS // 5, 2))
        session.send("HeapProfiler.collectGarbage")
        heaps.append(session.send("Runtime.getHeapUsage")["usedSize"])
        assert _nodes(tab) < MOST_NODES
    with capsys.disabled():
        print(f" heap {heaps[0] >> 20} to {heaps[-1] >> 20} MiB after {tab.inner_text('#log-size')} ", end="")
    assert max(heaps) < MOST_HEAP
    expect(tab.locator("#log-follow")).to_have_attribute("aria-pressed", "true")
    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), None))
    expect(tab.locator("#job-head .state")).to_have_text("cancelled")
    left = "(rows => rows.scrollHeight - rows.scrollTop - rows.clientHeight)(document.getElementById('log-rows'))"
    tab.wait_for_function(f"{left} < 40")
