"""A job while it runs: what its output tells appears on its page, and that page and the GPUs page stay accessible."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from jobs import control
from jobs.models import Job
from tests.rigs.browser import faults_of, flawless_tab, storage_of
from tests.rigs.people import researcher, submitted
from tests.rigs.processes import wait_until
from tests.rigs.stack import Stack

STEPS = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo step $i/600 loss=0.$((999-i)); sleep 0.45; done"


@pytest.fixture(scope="module")
def greta(stack: Stack, browser: Browser) -> Any:
    """The storage of a browser in which she has logged in."""
    return storage_of(browser, stack.url, researcher(stack, "greta", "glaciers"))


def _wait_for_numbers(page: Page, address: str) -> None:
    """They are written a few seconds apart, and asked for a few seconds apart; a page that opens has them at once."""
    wait_until(lambda: page.request.get(address).json()["series"], "the numbers")


def test_progress_and_numbers_appear_as_a_job_prints_them_on_accessible_pages(
    stack: Stack, browser: Browser, greta: Any
) -> None:
    job = submitted(stack, "greta", STEPS)
    looks: tuple[dict[str, Any], ...] = (
        {"viewport": {"width": 1400, "height": 900}},
        {"viewport": {"width": 380, "height": 900}, "color_scheme": "dark"},
    )
    for look in looks:
        with flawless_tab(browser, storage_state=greta, bypass_csp=True, **look) as page:
            page.goto(f"{stack.url}/jobs/{job}/")
            expect(page.locator("#output-progress")).to_contain_text("of 600")
            _wait_for_numbers(page, f"{stack.url}/jobs/{job}/metrics.json")
            page.reload()
            expect(page.locator("#metrics .metric")).to_contain_text("loss")
            expect(page.locator("#job-use .gpu-mini [data-bind=utilisation]")).not_to_have_text("–")
            if page.locator("#log-split").is_visible():
                page.locator("#log-split").click()
                expect(page.locator('[data-figure="cpu"] canvas')).to_be_visible()
            found = {"job": faults_of(page)}
            page.goto(f"{stack.url}/gpus/")
            expect(page.locator("article.gpu").first).to_be_visible()
            expect(page.locator(f'article.gpu a[href="/jobs/{job}/"]').first).to_be_visible()
            assert {**found, "gpus": faults_of(page)} == {"job": [], "gpus": []}
    stack.orm(lambda: control.cancel(Job.objects.get(pk=job), None))
