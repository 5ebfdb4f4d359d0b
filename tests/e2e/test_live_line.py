"""What happens to those who watch when the line, the web process, Redis, or a host is gone, or a proxy in the way."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from jobs import logstore
from jobs.models import Job, Run
from tests import factories
from tests.rigs.browser import flawless_tab
from tests.rigs.front import PASSES, REFUSES, SWALLOWS, Front, running_front
from tests.rigs.people import GATE, open_gate, submitted
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer
from tests.rigs.stack import Stack
from tests.rigs.watcher import Watcher

BANNER = "#offline-banner"
ROWS = "#log-rows"
LINES = "while [ $i -lt $1 ]; do i=$((i+1)); echo line $i is watched; [ $((i % 40)) = 0 ] && sleep 0.1; done"
FLOOD = f"i=0; set 2000; {LINES}; {GATE}; set 4000; {LINES}"
COUNT = "i=0; while :; do i=$((i+1)); echo n=$i; sleep 0.1; done"


@pytest.fixture(scope="session")
def nora(stack: Stack) -> dict[str, str]:
    """A researcher of her own team, signed in: her session's cookie."""

    def make() -> str:
        user = factories.make_user("nora", teams=(factories.make_team("acoustics", gpus=4),))
        client = Client()
        client.force_login(user)
        return str(client.cookies[settings.SESSION_COOKIE_NAME].value)

    return {"name": settings.SESSION_COOKIE_NAME, "value": stack.orm(make)}


@pytest.fixture
def front(stack: Stack) -> Iterator[Front]:
    with running_front(stack.port) as running:
        yield running


@pytest.fixture
def tab(browser: Browser, nora: dict[str, str], stack: Stack) -> Iterator[Page]:
    with flawless_tab(browser, viewport={"width": 1400, "height": 900}) as page:
        page.context.add_cookies([{**nora, "domain": "127.0.0.1", "path": "/"}])  # type: ignore[list-item]
        yield page


def _submit(stack: Stack, script: str) -> int:
    return submitted(stack, "nora", script, name="watched")


def _run_of(stack: Stack, job: int) -> int:
    """The job's run, once there is one."""

    def find() -> int | None:
        return Run.objects.filter(job=job).values_list("pk", flat=True).first()

    return wait_until(lambda: stack.orm(find) or 0, f"job {job} has a run")


def _cancel(stack: Stack, job: int) -> None:
    from jobs import control

    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), Job.objects.get(pk=job).owner))


def test_watchers_lose_and_repeat_nothing_when_web_and_redis_are_killed(
    stack: Stack, redis_server: RedisServer, nora: dict[str, str]
) -> None:
    """ansible/awx#13059, gliderlabs/logspout#244, ansible/awx#15342"""
    job = _submit(stack, FLOOD)
    run = _run_of(stack, job)
    watchers = [Watcher(stack.url, f"{nora['name']}={nora['value']}", job, run) for _ in range(5)]
    for watcher in watchers:
        watcher.start()
    wait_until(lambda: all(watcher.next > 5_000 for watcher in watchers), "all have the beginning")
    stack.kill("web")
    stack.start("web")
    stack.wait_ready("web")
    open_gate(stack, job)
    redis_server.restart()
    for watcher in watchers:
        watcher.join(200)
    log = stack.orm(lambda: b"".join(logstore.stream(Run.objects.get(pk=run))))
    assert log.count(b"\n") == 4000
    assert [watcher.trouble for watcher in watchers] == [[]] * 5
    assert {watcher.hash.hexdigest() for watcher in watchers} == {hashlib.sha256(log).hexdigest()}
    assert all(watcher.connections >= 2 for watcher in watchers)


@pytest.mark.parametrize("sockets", [REFUSES, SWALLOWS])
def test_a_page_goes_on_where_a_proxy_lets_no_sockets_through(
    tab: Page, stack: Stack, front: Front, artifacts: Path, sockets: str
) -> None:
    """websockets/ws#536, sevdokimov/log-viewer#163"""
    front.sockets = sockets
    job = _submit(stack, COUNT)
    tab.goto(f"{front.url}/jobs/{job}/")
    expect(tab.locator("#job-head .state")).to_have_text("running")
    expect(tab.locator(ROWS)).to_contain_text(re.compile(r"n=\d+"))
    expect(tab.locator(BANNER)).to_contain_text("no live connection")
    tab.screenshot(path=artifacts / f"line-{sockets}.png")
    front.sockets = PASSES
    expect(tab.locator(BANNER)).to_be_hidden(timeout=60_000)
    expect(tab.locator(".live-word")).to_have_text("live")
    _cancel(stack, job)
    expect(tab.locator("#job-head .state")).to_have_text("cancelled")


def test_pages_say_that_no_news_come_and_that_they_come_again(
    tab: Page, stack: Stack, redis_server: RedisServer, artifacts: Path
) -> None:
    tab.goto(f"{stack.url}/gpus/")
    expect(tab.locator(".live-word")).to_have_text("live")
    redis_server.stop()
    try:
        expect(tab.locator(BANNER)).to_contain_text("no live news")
        tab.screenshot(path=artifacts / "line-no-redis.png")
    finally:
        redis_server.start()
    expect(tab.locator(BANNER)).to_be_hidden()


def test_a_silent_host_is_named_until_it_is_heard_again(tab: Page, stack: Stack, artifacts: Path) -> None:
    tab.goto(f"{stack.url}/")
    expect(tab.locator(".live-word")).to_have_text("live")
    expect(tab.locator(BANNER)).to_be_hidden()
    stack.stop("node")
    try:
        expect(tab.locator(BANNER)).to_contain_text("alpha")
        tab.screenshot(path=artifacts / "line-silent-host.png")
    finally:
        stack.start("node")
        stack.wait_ready("node")
    expect(tab.locator(BANNER)).to_be_hidden(timeout=60_000)
