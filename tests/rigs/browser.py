"""What tests do with a real browser: log in, and fail for any error of a page's own scripts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests import factories

AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"


def log_in(page: Page, name: str) -> None:
    """Fill in the log-in page that is open, and send it."""
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill(factories.PASSWORD)
    page.locator("main button[type=submit]").click()


def storage_of(browser: Browser, url: str, name: str) -> Any:
    """The storage of a browser in which this person has logged in."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/accounts/login/")
    log_in(page, name)
    expect(page).to_have_url(f"{url}/")
    state = context.storage_state()
    context.close()
    return state


@contextlib.contextmanager
def flawless_tab(browser: Browser, **options: Any) -> Iterator[Page]:
    """A tab in which any error of a script fails the test."""
    context = browser.new_context(**options)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def faults_of(page: Page) -> list[Any]:
    """What is wrong with a page: rules of accessibility that it breaks, each with the first place, and whether it
    scrolls sideways. For a context that bypasses the content policy."""
    page.evaluate(AXE.read_text())
    found: list[Any] = page.evaluate("axe.run().then(result => result.violations.map(v => [v.id, v.nodes[0].html]))")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("scrolls sideways")
    return found
