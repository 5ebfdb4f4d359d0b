"""Charts, the receipt and the GPUs page in a real browser, on the running product with simulated GPUs."""

import json
import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, WebSocketRoute, expect

from gpus.readings import HostReading
from jobs.models import Run
from tests.rigs.browser import flawless_tab, log_in, tried_until
from tests.rigs.people import researcher, submitted
from tests.rigs.stack import Stack

BUSY = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); : ; sleep 0.02; done"


@pytest.fixture(scope="module")
def hanna(stack: Stack) -> str:
    return researcher(stack, "hanna", "geology")


@pytest.fixture
def tab(stack: Stack, browser: Browser, hanna: str) -> Iterator[Page]:
    with flawless_tab(browser, viewport={"width": 1400, "height": 900}) as page:
        page.goto(f"{stack.url}/accounts/login/")
        log_in(page, hanna)
        expect(page).to_have_url(f"{stack.url}/")
        yield page


def started(stack: Stack, script: str) -> int:
    return submitted(stack, "hanna", script, name="charted", memory_mib=2048, limit_seconds=3600, grace_seconds=1)


def test_charts_run_from_start_to_end_and_the_receipt_is_written(stack: Stack, tab: Page) -> None:
    """dstackai/dstack#2618, rackslab/Slurm-web#288: charts of a finished run, and what it used of what it held."""
    job = started(stack, BUSY)
    tab.goto(f"{stack.url}/jobs/{job}/#charts")
    expect(tab.locator('[data-figure="utilisation"] canvas')).to_be_visible(timeout=60_000)
    expect(tab.locator('[data-figure="cpu"] canvas')).to_be_visible()
    expect(tab.locator('[data-figure="cpu"] .chart-now')).not_to_be_empty()
    expect(tab.locator(".receipt")).to_contain_text("at most")
    expect(tab.locator(".receipt")).to_contain_text("busy on average")
    tab.reload()  # its end has an event more, and the readings stay
    expect(tab.locator('[data-figure="ram"] canvas')).to_be_visible()
    events = tab.locator(".chart-event")
    expect(events.first).to_contain_text("running")
    expect(events.last).to_contain_text("Run ended: completed")
    times = stack.orm(lambda: Run.objects.get(job=job))
    assert times.started_at is not None
    assert times.ended_at is not None
    answer = tab.request.get(f"{stack.url}/jobs/{job}/charts.json").json()
    at = answer["container"]["at"]
    assert times.started_at.timestamp() <= at[0] <= at[-1] <= times.ended_at.timestamp()


def test_a_time_on_the_charts_is_looked_up_in_the_log_and_closer(stack: Stack, tab: Page) -> None:
    job = started(stack, "while :; do date; sleep 0.5; done")
    tab.goto(f"{stack.url}/jobs/{job}/#charts")
    figure = tab.locator('[data-figure="cpu"] .u-over')
    expect(figure).to_be_visible(timeout=60_000)
    expect(tab.locator('[data-figure="cpu"] .chart-now')).not_to_be_empty()
    tab.evaluate("document.addEventListener('dockyard:time', (e) => (window.told ??= []).push(e.detail))")
    figure.hover()
    tried_until(tab, figure.click, tab.locator("#chart-to-log").is_visible, "a time is pinned")
    expect(tab.locator("#chart-at")).to_be_visible()
    asked: list[str] = []
    tab.on(
        "response", lambda answer: "charts.json?" in answer.url and "from=" in answer.url and asked.append(answer.url)
    )
    tried_until(tab, lambda: _drag_across(figure), lambda: asked, "a closer look")
    tab.locator('[data-last=""]').click()
    tab.locator("#chart-to-log").click()
    expect(tab.locator("#tab-log")).to_have_class("nav-link active")
    told = tab.evaluate("window.told")
    assert [detail["source"] for detail in told if detail["go"]] == ["charts"]
    assert any(not detail["go"] and detail["at"] for detail in told), "hovering is told too"
    _points_both_ways(tab)
    tab.request.post(f"{stack.url}/jobs/{job}/cancel/", headers={"X-CSRFToken": _token(tab), "Referer": stack.url})


def _drag_across(figure: Locator) -> None:
    box = figure.bounding_box()
    assert box is not None
    mouse = figure.page.mouse
    mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40, steps=4)
    mouse.up()


def _points_both_ways(tab: Page) -> None:
    """Side by side: the line that is pointed at marks its time on the charts, and that time there marks the line."""
    tab.locator("#log-split").click()
    over = tab.locator('[data-figure="utilisation"] .u-over')
    expect(over).to_be_visible()
    over.evaluate("over => over.scrollIntoView({ block: 'nearest' })")  # the charts may be drawn anew meanwhile
    top = tab.locator("#log-rows").evaluate("rows => rows.scrollTop")
    tab.locator(".log-row.is-marked").hover(force=True)
    expect(tab.locator("#chart-at")).to_be_visible()
    cursor = over.locator(".u-cursor-x:not(.u-off)")
    left = cursor.evaluate("cursor => new DOMMatrix(getComputedStyle(cursor).transform).m41")
    over.hover(position={"x": max(left, 3), "y": 20})
    expect(tab.locator(".log-row.is-pointed")).to_be_visible()
    assert tab.locator("#log-rows").evaluate("rows => rows.scrollTop") == top, "nothing was scrolled"
    assert "running" in (over.locator(".chart-flag").first.get_attribute("title") or "")


def test_gpus_are_tiles_and_a_table_and_are_found(stack: Stack, tab: Page) -> None:
    """Whoever looks for a GPU among hundreds searches and sorts."""
    tab.goto(f"{stack.url}/gpus/")
    tiles = tab.locator("article.gpu")
    expect(tiles.first).to_be_visible()
    expect(tiles.first.locator('[data-bind="utilisation"]')).not_to_have_text("–")
    count = tiles.count()
    tab.locator("[data-view=table]").click()
    rows = tab.locator("#gpu-table tbody tr")
    expect(rows).to_have_count(count)
    expect(rows.first.locator('[data-bind="temperature"]')).to_contain_text("°C")
    tab.locator("[data-sort=utilisation] button").click()
    expect(tab.locator("[data-sort=utilisation]")).to_have_attribute("aria-sort", "ascending")
    tab.locator("#gpu-search").fill("nobody has this")
    expect(rows.filter(visible=True)).to_have_count(0)
    tab.locator("#gpu-search").fill("")
    tab.reload()
    expect(rows).to_have_count(count)  # the view is remembered


def _token(tab: Page) -> str:
    cookies = tab.context.cookies()
    return next(cookie["value"] for cookie in cookies if "csrf" in cookie["name"].lower())


def test_a_host_whose_telemetry_hangs_says_so_and_keeps_its_last_values(stack: Stack, tab: Page) -> None:
    """leptonai/gpud#117: what was read last stays, and is not passed off as new."""
    lines: list[WebSocketRoute] = []
    tab.route_web_socket(re.compile("/ws/gpus/"), lambda line: lines.append(line))  # its part is played here
    tab.goto(f"{stack.url}/gpus/")
    value = tab.locator('article.gpu [data-bind="temperature"]').first
    expect(value).to_contain_text("°C")
    section = tab.locator("[data-node]").first
    name = section.get_attribute("data-node") or ""
    hung = HostReading(node=name, at=time.time(), status="hung", message="no answer for 3 s")
    lines[0].send(json.dumps({"nodes": [hung.as_dict()]}))
    expect(section.locator('[data-bind="host"]')).to_have_text("GPU telemetry does not answer")
    expect(section.locator('[data-bind="message"]')).to_have_text("no answer for 3 s")
    expect(section.locator('[data-bind="age"]')).to_be_visible()
    expect(value).to_contain_text("°C")
