"""A job's page in a real browser on the running product: live log and state, and what happens when the line is cut."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from jobs import control, logstore
from jobs.extend import extend
from jobs.models import Job, Run
from jobs.states import Wish
from portal.models import User
from tests import factories
from tests.rigs.browser import copied_by, flawless_tab, log_in, new_tab, storage_of
from tests.rigs.people import GATE, open_gate, researcher, submitted
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack

ROWS = "#log-rows"
BARS = r"""
i=0; while [ $i -lt 60 ]; do i=$((i+1)); printf '\rloading %d%%' $i; sleep 0.1; done; echo
until [ -e go ]; do sleep 0.1; done
printf '\033[31mred\033[0m \303'; sleep 1; printf '\251 done\n'
printf '<script>alert(1)</script> \033]8;;javascript:alert(1)\007bad\033]8;;\007 \033]0;owned\007\n'
printf 'no newline at the end'
"""
NUMBERS = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo n=$i; sleep 0.1; done"


@pytest.fixture(scope="module")
def erin(stack: Stack) -> str:
    return researcher(stack, "erin", "optics")


@pytest.fixture(scope="module")
def signed_in(stack: Stack, browser: Browser, erin: str) -> Any:
    """The storage of a browser in which she has logged in."""
    return storage_of(browser, stack.url, erin)


@pytest.fixture
def tab(browser: Browser, signed_in: Any) -> Iterator[Page]:
    with flawless_tab(browser, storage_state=signed_in, viewport={"width": 1400, "height": 900}) as page:
        yield page


def _log_of(page: Page, stack: Stack, job: int) -> bytes:
    answer = page.request.get(f"{stack.url}/jobs/{job}/log/download")
    assert answer.ok
    return answer.body()


def test_a_job_is_watched_from_its_queue_to_its_end(tab: Page, stack: Stack, erin: str, artifacts: Path) -> None:
    """dagucloud/dagu#462, mathieu-lemay/pipeline-runner#88, moby/moby#43860, dkron-io/dkron#921"""
    job = submitted(stack, erin, BARS, name="<b>bars</b>")
    tab.goto(f"{stack.url}/jobs/{job}/")
    rows = tab.locator(ROWS)
    expect(rows).to_contain_text(re.compile(r"loading \d+%"))
    expect(tab.locator("#job-head .state")).to_have_text("running")
    tab.screenshot(path=artifacts / "job-running.png")
    open_gate(stack, job)
    expect(rows).to_contain_text("no newline at the end")
    expect(tab.locator("#job-head .state")).to_have_text("succeeded")
    expect(rows).to_contain_text("red é done")
    expect(rows).to_contain_text("<script>alert(1)</script> bad")
    text = rows.inner_text()
    assert text.count("loading") == 1, "a bar is one line, with its last value"
    assert "loading 60%" in text
    assert "\ufffd" not in text
    assert tab.locator("#log-rows :is(script, img, a)").count() == 0
    expect(tab.locator("h1")).to_contain_text("<b>bars</b>")
    expect(tab).to_have_title(re.compile("bars"))
    data = _log_of(tab, stack, job)
    assert data.startswith(b"\rloading 1%\rloading 2%")
    assert data.endswith(b"no newline at the end")
    tab.screenshot(path=artifacts / "job-ended.png")


def test_a_cut_line_is_shown_and_made_up_for_without_a_reload(tab: Page, stack: Stack, erin: str) -> None:
    """ansible/awx#15342, ansible/awx#13059, ansible/awx#8930"""
    job = submitted(stack, erin, NUMBERS)
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator(ROWS)).to_contain_text("n=5")
    stack.kill("web")
    expect(tab.locator("#offline-banner")).to_be_visible(timeout=60_000)
    expect(tab.locator(".live-word")).to_have_text("offline")
    stack.start("web")
    stack.wait_ready("web")
    expect(tab.locator("#offline-banner")).to_be_hidden(timeout=60_000)
    expect(tab.locator("#job-head .state")).to_have_text("succeeded")
    expect(tab.locator(ROWS)).to_contain_text("n=300")
    assert copied_by(tab, "#log-copy").split() == [f"n={number}" for number in range(1, 301)]


LONG = 'awk \'BEGIN { for (i = 0; i < 600; i++) printf "%04d ", i; print "" }\''


def test_long_lines_that_are_not_wrapped_are_as_long_as_they_are(tab: Page, stack: Stack, erin: str) -> None:
    """Also those that come later; and what is copied has no break that was not printed, wrapped or not."""
    words = " ".join(f"{number:04d}" for number in range(600))
    job = submitted(stack, erin, f"{LONG}; echo short; {GATE}; {LONG} | tr 0 x")
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator(ROWS)).to_contain_text("short")
    expect(tab.locator("#job-head .state")).to_have_text("running")  # else that is announced next
    assert [line.strip() for line in copied_by(tab, "#log-copy").splitlines()] == [words, "short"]
    expect(tab.locator("#announcer")).to_have_text("Copied")
    tab.locator("#log-wrap").click()
    expect(tab.locator(f"{ROWS} .log-row").first).to_contain_text("0599")
    open_gate(stack, job)
    expect(tab.locator("#job-head .state")).to_have_text("succeeded")
    expect(tab.locator(f"{ROWS} .log-row").nth(2)).to_contain_text("x599")
    copied = [line.strip() for line in copied_by(tab, "#log-copy").splitlines()]
    assert copied == [words, "short", words.replace("0", "x")]
    tab.locator("#log-wrap").click()
    expect(tab.locator(f"{ROWS} .log-row").first).not_to_contain_text("0599")
    expect(tab.locator(ROWS)).to_contain_text("x599")


def test_a_browser_without_sockets_polls(browser: Browser, signed_in: Any, stack: Stack, erin: str) -> None:
    job = submitted(stack, erin, "sleep 3; echo first; sleep 4; echo second")
    page = new_tab(browser, storage_state=signed_in)
    page.route_web_socket(re.compile("/ws/"), lambda socket: socket.close(code=1011))
    page.goto(f"{stack.url}/jobs/{job}/")
    for text in ("first", "second"):
        expect(page.locator(ROWS)).to_contain_text(text)
    expect(page.locator("#job-head .state")).to_have_text("succeeded")
    page.context.close()


def test_the_cancel_button_asks_and_then_stops(tab: Page, stack: Stack, erin: str) -> None:
    """dstackai/dstack#4285"""
    script = "trap 'echo BYE; exit 0' TERM; echo up; while true; do sleep 0.2; done"
    job = submitted(stack, erin, script, grace_seconds=120)
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator(ROWS)).to_contain_text("up")
    expect(tab.locator("#job-head .state")).to_have_text("running")  # its buttons come with that
    questions: list[str] = []
    tab.once("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("#job-head .state")).to_have_text("cancelled")
    expect(tab.locator(ROWS)).to_contain_text("BYE")
    assert "SIGTERM" in questions[0]
    assert stack.orm(lambda: Job.objects.get(pk=job).end_reason) == "STOPPED_BY_USER"


def test_an_end_that_is_told_while_the_page_renews_itself_is_shown(tab: Page, stack: Stack, erin: str) -> None:
    """The answer that is on its way knows nothing of it yet, and nothing more is told of a job that has ended."""
    job = submitted(stack, erin, f"trap '{GATE}; exit 0' TERM; echo up; while :; do sleep 0.1; done", grace_seconds=120)
    told: list[str] = []
    tab.on("websocket", lambda socket: socket.on("framereceived", lambda data: told.append(str(data))))
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator(ROWS)).to_contain_text("up")
    expect(tab.locator("#job-head .state")).to_have_text("running")
    held: list[tuple[Route, APIResponse]] = []
    tab.route("**/?part=head", lambda route: held.append((route, route.fetch())), times=1)
    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), None))
    wait_until(lambda: seen_after_a_moment(tab, held), "the page renews itself")
    open_gate(stack, job)
    ended = '"state":"CANCELLED"'
    wait_until(lambda: seen_after_a_moment(tab, [text for text in told if ended in text]), "it is told of the end")
    [(route, answer)] = held
    route.fulfill(response=answer)
    expect(tab.locator("#job-head .state")).to_have_text("cancelled")


def test_what_is_typed_into_a_form_stays_when_the_page_renews_itself(tab: Page, stack: Stack, erin: str) -> None:
    """Else "2h" becomes the "1h" of before at the moment in which it is sent."""
    job = submitted(stack, erin, "echo up; exec sleep 600", grace_seconds=1, limit_seconds=3600)
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator("#job-head .state")).to_have_text("running")
    tab.locator("#act-extend").click()
    tab.locator("#extend-asked").fill("2h")
    version = tab.locator("#job-head").get_attribute("data-version")
    stack.orm(lambda: extend(Job.objects.get(pk=job), User.objects.get(username=erin), 60))
    expect(tab.locator("#job-head")).not_to_have_attribute("data-version", str(version))
    expect(tab.locator("#extend-asked")).to_have_value("2h")
    expect(tab.locator("#extend-asked")).to_be_focused()
    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), None))


def seen_after_a_moment(tab: Page, found: list[Any]) -> bool:
    """In which the browser's events are heard."""
    tab.wait_for_timeout(50)
    return bool(found)


TWICE = "if [ -e begun ]; then echo the second run; else touch begun; echo the first run; fi; exec sleep 600"


def test_a_second_run_can_be_chosen_on_a_page_that_is_open(tab: Page, stack: Stack, erin: str) -> None:
    """The page opened when there was one run only; its log goes on with the next, and the first stays to be read."""
    job = submitted(stack, erin, TWICE, grace_seconds=1)
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator(ROWS)).to_contain_text("the first run")
    expect(tab.locator("#log-run")).to_be_hidden()
    stack.orm(lambda: control.wish(Run.objects.get(job=job), Wish.PREEMPT, None))
    expect(tab.locator(ROWS)).to_contain_text("the second run")
    expect(tab.locator("#log-run")).to_be_visible()
    expect(tab.locator("#log-run option:checked")).to_have_text("Run 2")
    tab.locator("#log-run").select_option(label="Run 1")
    expect(tab.locator(ROWS)).to_contain_text("the first run")
    expect(tab.locator(ROWS)).not_to_contain_text("the second run")
    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), None))
    expect(tab.locator("#job-head .state")).to_have_text("cancelled")
    expect(tab.locator("#log-run option:checked")).to_have_text("Run 1")
    expect(tab.locator(ROWS)).to_contain_text("the first run")


def test_a_log_that_is_kept_no_longer_is_told_in_its_place(tab: Page, stack: Stack, erin: str) -> None:
    job = submitted(stack, erin, "echo long ago", gpus=0)
    tab.goto(f"{stack.url}/jobs/{job}/")
    expect(tab.locator("#job-head .state")).to_have_text("succeeded")
    stack.orm(lambda: logstore.forget(Run.objects.get(job=job).segments.all()))
    tab.reload()
    expect(tab.locator("#log-empty")).to_have_text("This log is kept no longer.")
    expect(tab.locator("#log-lost")).to_be_hidden()


def test_two_pages_show_each_its_own_log(browser: Browser, signed_in: Any, stack: Stack, erin: str) -> None:
    """dstackai/dstack#1814"""
    jobs = [submitted(stack, erin, f"for i in 1 2 3 4 5 6; do echo job {name}; sleep 0.5; done") for name in "ab"]
    pages = [new_tab(browser, storage_state=signed_in) for _job in jobs]
    for page, job in zip(pages, jobs, strict=True):
        page.goto(f"{stack.url}/jobs/{job}/")
    for page, mine, other in zip(pages, "ab", "ba", strict=True):
        expect(page.locator("#job-head .state")).to_have_text("succeeded")
        expect(page.locator(ROWS)).to_contain_text(f"job {mine}")
        expect(page.locator(ROWS)).not_to_contain_text(f"job {other}")
        page.context.close()


def test_logging_out_elsewhere_ends_the_live_page(tab: Page, stack: Stack, browser: Browser) -> None:
    def make() -> str:
        return factories.make_user("gone", teams=(factories.make_team("optics"),)).username

    name = stack.orm(make)
    job = submitted(stack, name, "sleep 60", gpus=0)
    page = new_tab(browser)
    page.goto(f"{stack.url}/accounts/login/")
    log_in(page, name)
    page.goto(f"{stack.url}/jobs/{job}/")
    expect(page.locator(".live-word")).to_have_text("live")

    def deactivate() -> None:
        from portal.models import User

        user = User.objects.get(username=name)
        user.is_active = False
        user.save()

    stack.orm(deactivate)
    expect(page.locator("#offline-banner")).to_contain_text("signed out")
    assert page.request.get(f"{stack.url}/jobs/{job}/status.json", max_redirects=0).status == 302
    page.context.close()
