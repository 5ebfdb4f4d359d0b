"""The queue board in a real browser: one's own jobs change places by keyboard and by drag, under a list that lives."""

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from jobs import control
from jobs.models import Cluster, Job
from jobs.request import JobRequest
from jobs.submit import submit
from portal.models import User
from tests import factories
from tests.rigs.browser import new_tab
from tests.rigs.engine import BUSYBOX
from tests.rigs.stack import Stack


@pytest.fixture
def waiting(stack: Stack) -> Iterator[list[int]]:
    """Three jobs of fiona that may not start as long as all starts are paused."""

    def make() -> list[int]:
        fiona = User.objects.filter(username="fiona").first()
        fiona = fiona or factories.make_user("fiona", teams=(factories.make_team("optics-queue"),))
        request = JobRequest(
            name="later", image=BUSYBOX, script="true", memory_mib=64, shm_mib=16, limit_seconds=60,
        )  # fmt: skip
        team = fiona.teams.get()
        Cluster.objects.filter(pk=Cluster.get().pk).update(paused=True)
        return [submit(request, owner=fiona, team=team, submission=uuid.uuid4()).pk for _ in range(3)]

    def cancel() -> None:
        for job in Job.objects.filter(owner__username="fiona"):
            control.cancel(job, User.objects.get(username="fiona"))
        Cluster.objects.update(paused=False)

    yield stack.orm(make)
    stack.orm(cancel)


@pytest.fixture
def tab(browser: Browser, stack: Stack, waiting: list[int]) -> Iterator[Page]:
    page = new_tab(browser, viewport={"width": 1400, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{stack.url}/accounts/login/")
    page.locator("input[name=login]").fill("fiona")
    page.locator("input[name=password]").fill(factories.PASSWORD)
    page.locator("main button[type=submit]").click()
    expect(page).to_have_url(f"{stack.url}/")
    yield page
    page.context.close()
    assert errors == []


def expect_order(page: Page, *ids: int) -> None:
    rows = page.locator("tr[data-line]")
    for at, pk in enumerate(ids):
        expect(rows.nth(at)).to_have_attribute("data-job", str(pk))


def test_own_jobs_change_places_by_keyboard_and_by_drag(stack: Stack, tab: Page, waiting: list[int]) -> None:
    first, second, third = waiting
    tab.goto(f"{stack.url}/queue/")
    expect_order(tab, first, second, third)
    tab.locator(f"#up-{third}").focus()
    tab.keyboard.press("Enter")
    expect_order(tab, first, third, second)
    expect(tab.locator(f"#up-{third}")).to_be_focused()
    tab.keyboard.press("Enter")
    expect_order(tab, third, first, second)
    tab.locator(f"tr[data-job='{second}'] .grip").drag_to(tab.locator(f"tr[data-job='{third}']"))
    expect_order(tab, second, third, first)
    expect(tab).to_have_url(f"{stack.url}/queue/")


PRESS = """document.addEventListener("htmx:afterSwap", () => setTimeout(() => {
  const button = document.getElementById("up-%d");
  button.focus();
  button.click();
}), {once: true})"""


def test_a_button_works_in_place_as_soon_as_it_is_there(stack: Stack, tab: Page, waiting: list[int]) -> None:
    """Also in a list that was replaced this very moment: without its script the page would be loaded anew."""
    first, second, third = waiting
    tab.add_init_script(PRESS % third)
    tab.goto(f"{stack.url}/queue/")
    expect_order(tab, first, third, second)
    expect(tab.locator(f"#up-{third}")).to_be_focused()
