"""What tests do with a real browser: log in, and fail for any error of a page's own scripts."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests import factories
from tests.rigs.processes import wait_until

PATIENCE = 120_000  # milliseconds: a busy machine loads and paints late
AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"


def new_tab(browser: Browser, **options: Any) -> Page:
    """A page in a context of its own, which waits as long as a busy machine may take."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    return context.new_page()


def log_in(page: Page, name: str) -> None:
    """Fill in the log-in page that is open, and send it."""
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill(factories.PASSWORD)
    page.locator("main button[type=submit]").click()


def storage_of(browser: Browser, url: str, name: str) -> Any:
    """The storage of a browser in which this person has logged in."""
    page = new_tab(browser)
    page.goto(f"{url}/accounts/login/")
    log_in(page, name)
    expect(page).to_have_url(f"{url}/")
    state = page.context.storage_state()
    page.context.close()
    return state


def copied_by(page: Page, button: str) -> str:
    """What a click on this button puts on the empty clipboard. Its check mark is gone too soon to be waited for."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('')")
    page.locator(button).click()
    return str(page.wait_for_function("navigator.clipboard.readText()").json_value())


def tried_until(page: Page, act: Callable[[], object], seen: Callable[[], object], what: str) -> None:
    """Act again and again, as a person would, until that is seen to work: what is pointed at may be drawn anew, or be
    pushed elsewhere, in the middle of it."""

    def tried() -> object:
        act()
        page.wait_for_timeout(500)
        return seen()

    wait_until(tried, what)


@contextlib.contextmanager
def flawless_tab(browser: Browser, **options: Any) -> Iterator[Page]:
    """A tab in which any error of a script fails the test."""
    page = new_tab(browser, **options)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.context.close()
    assert errors == []


def faults_of(page: Page) -> list[Any]:
    """What is wrong with a page: rules of accessibility that it breaks, each with the first place, and whether it
    scrolls sideways. For a context that bypasses the content policy."""
    page.evaluate(AXE.read_text())
    found: list[Any] = page.evaluate("axe.run().then(result => result.violations.map(v => [v.id, v.nodes[0].html]))")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("scrolls sideways")
    return found
