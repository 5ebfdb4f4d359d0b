"""What is typed into the form outlives its session, in a real browser: all of it but the values of secrets."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests import factories
from tests.rigs.browser import flawless_tab, log_in
from tests.rigs.stack import Stack

NOTICE = "What you typed before is here again."


@pytest.fixture(scope="module")
def frank(stack: Stack) -> str:
    def make() -> str:
        return factories.make_user("frank", teams=(factories.make_team("robotics", gpus=4),)).username

    return stack.orm(make)


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    with flawless_tab(browser, viewport={"width": 1400, "height": 1000}) as page:
        yield page


def fill_in(tab: Page) -> None:
    tab.locator("[name=name]").fill("precious work")
    tab.locator("[name=script]").fill("echo one\necho two")
    tab.locator("[name=env-0-name]").fill("PLAIN")
    tab.locator("[name=env-0-value]").fill("visible")
    tab.locator("[name=env-1-name]").fill("TOKEN")
    tab.locator("[name=env-1-secret]").check()
    tab.locator("[name=env-1-value]").fill("hunter2")
    tab.locator("[name=priority]").select_option("0")


def fill_in_what_can_start(stack: Stack, tab: Page, user: str) -> None:
    tab.goto(f"{stack.url}/jobs/new/")
    log_in(tab, user)
    fill_in(tab)
    tab.locator("[name=image]").fill("busybox:latest")
    tab.locator("[name=gpus]").fill("0")
    tab.locator("[name=limit]").fill("10")


def expect_it_all_back(tab: Page) -> None:
    expect(tab.get_by_text(NOTICE)).to_be_visible()
    expect(tab.locator("[name=name]")).to_have_value("precious work")
    expect(tab.locator("[name=script]")).to_have_value("echo one\necho two")
    expect(tab.locator("[name=env-0-value]")).to_have_value("visible")
    expect(tab.locator("[name=env-1-name]")).to_have_value("TOKEN")
    expect(tab.locator("[name=env-1-secret]")).to_be_checked()
    expect(tab.locator("[name=env-1-value]")).to_have_value("")
    expect(tab.locator("[name=priority]")).to_have_value("0")


def test_a_form_sent_after_its_session_ended_is_there_again_after_the_log_in(
    stack: Stack, tab: Page, frank: str
) -> None:
    tab.goto(f"{stack.url}/jobs/new/")
    log_in(tab, frank)
    fill_in(tab)
    assert "hunter2" not in tab.evaluate("JSON.stringify(sessionStorage)")
    tab.context.clear_cookies(name="sessionid")
    tab.locator("#job-form button.btn-primary").click()
    log_in(tab, frank)
    expect_it_all_back(tab)
    tab.get_by_role("button", name="Discard").click()
    expect(tab.locator("[name=name]")).to_have_value("")
    expect(tab.get_by_text(NOTICE)).to_have_count(0)


def test_a_form_sent_without_any_cookies_is_led_back_to(stack: Stack, tab: Page, frank: str) -> None:
    tab.goto(f"{stack.url}/jobs/new/")
    log_in(tab, frank)
    fill_in(tab)
    expect(tab.locator("#preview .verdict")).to_be_visible()
    tab.context.clear_cookies()
    tab.locator("#preview").evaluate("panel => panel.closest('form').dispatchEvent(new Event('input'))")
    expect(tab.locator("#preview")).to_contain_text("Your session is over")
    tab.locator("#job-form button.btn-primary").click()
    tab.get_by_role("link", name="Back to the form").click()
    log_in(tab, frank)
    expect_it_all_back(tab)


def test_a_job_that_was_taken_in_leaves_no_draft(stack: Stack, tab: Page, frank: str) -> None:
    fill_in_what_can_start(stack, tab, frank)
    tab.route("**/*.js", lambda route: route.abort())  # as for one who leaves the job's page before its scripts ran
    tab.locator("#job-form button.btn-primary").click()
    expect(tab.locator(".job-number")).to_be_visible()
    tab.unroute("**/*.js")
    tab.goto(f"{stack.url}/jobs/new/")
    expect(tab.locator("[name=name]")).to_have_value("")


def test_whatever_comes_back_says_so(stack: Stack, tab: Page, frank: str) -> None:
    """By a link, by the browser's Back, by a reload, and in the form that a link had filled in."""
    tab.goto(f"{stack.url}/jobs/new/?gpus=0")
    log_in(tab, frank)
    fill_in(tab)
    tab.locator("nav a[href='/queue/']").first.click()
    expect(tab.locator("h1")).to_contain_text("Queue")
    tab.locator("a[href='/jobs/new/']").first.click()
    expect_it_all_back(tab)
    tab.locator("nav a[href='/queue/']").first.click()
    expect(tab.locator("h1")).to_contain_text("Queue")
    tab.go_back()
    expect_it_all_back(tab)
    tab.reload()
    expect_it_all_back(tab)
    expect(tab.get_by_text(NOTICE)).to_have_count(1)
    tab.get_by_role("button", name="Discard").click()
    expect(tab.locator("[name=name]")).to_have_value("")


def test_what_was_taken_in_does_not_come_back_by_the_browser(stack: Stack, tab: Page, frank: str) -> None:
    fill_in_what_can_start(stack, tab, frank)
    tab.locator("[name=env-1-value]").fill("hunter2")
    tab.locator("#job-form button.btn-primary").click()
    expect(tab.locator(".job-number")).to_be_visible()
    tab.go_back()
    expect(tab.locator("#job-form")).to_be_visible()
    expect(tab.locator("[name=name]")).to_have_value("")
    expect(tab.locator("[name=env-1-value]")).to_have_value("")
    expect(tab.get_by_text(NOTICE)).to_have_count(0)
