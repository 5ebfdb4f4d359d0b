"""The timeline in a browser: what runs is a block that leads to its job, and time moves by keyboard and wheel."""

from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from gpus.models import GPU, Node
from jobs.models import Allocation, AllocationSlot, Job, Run, Team
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories
from tests.rigs.browser import new_tab
from tests.rigs.stack import Stack


@pytest.fixture
def ran(stack: Stack) -> int:
    """A job that ran for an hour on the first GPU, until a quarter of an hour ago. Returns its id."""

    def make() -> int:
        if not User.objects.filter(username="tina").exists():
            factories.make_user("tina", teams=(Team.objects.get_or_create(name="maps")[0],))
        tina, node = User.objects.get(username="tina"), Node.objects.get(name="alpha")
        end = timezone.now() - timedelta(minutes=15)
        times = {"started_at": end - timedelta(hours=1), "ended_at": end}
        job = factories.make_job(tina, name="seen in time", state=JobState.SUCCEEDED, **times)
        run = Run.objects.create(job=job, node=node, number=1, state=RunState.ENDED, end_reason=EndReason.COMPLETED,
                                 log_complete=True, **times)  # fmt: skip
        allocation = Allocation.objects.create(
            run=run, node=node, user=tina, team=job.team, gpus=1, gpu_milli=1000, millicpus=1, memory_mib=1,
            created_at=times["started_at"], released_at=end,
        )  # fmt: skip
        AllocationSlot.objects.create(allocation=allocation, gpu=GPU.objects.filter(node=node).first(), released_at=end)
        return int(Job.objects.get(pk=job.pk).pk)

    return stack.orm(make)


@pytest.fixture
def tab(browser: Browser, stack: Stack, ran: int) -> Iterator[Page]:
    page = new_tab(browser, viewport={"width": 1400, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{stack.url}/accounts/login/")
    page.locator("input[name=login]").fill("tina")
    page.locator("input[name=password]").fill(factories.PASSWORD)
    page.locator("main button[type=submit]").click()
    expect(page).to_have_url(f"{stack.url}/")
    yield page
    page.context.close()
    assert errors == []


def window(page: Page) -> tuple[float, float]:
    """The window of time that the address tells."""
    asked = parse_qs(urlsplit(page.url).query)
    return float(asked["from"][0]), float(asked["to"][0])


def test_time_moves_by_keyboard_and_a_block_leads_to_its_job(stack: Stack, tab: Page, ran: int) -> None:
    tab.goto(f"{stack.url}/timeline/?job={ran}")
    expect(tab.locator("#timeline-body")).to_be_visible()
    tab.locator("#timeline-table summary").click()
    expect(tab.locator(f"#timeline-rows tr[data-href='/jobs/{ran}/']")).to_be_visible()
    begin, end = window(tab)
    tab.locator("#timeline-body").focus()
    with tab.expect_response("**/timeline/data.json*"):
        tab.keyboard.press("-")
    expect(tab).not_to_have_url(f"{stack.url}/timeline/?from={begin:.0f}&to={end:.0f}")
    wider = window(tab)
    assert wider[1] - wider[0] == pytest.approx(2 * (end - begin), rel=0.01)
    with tab.expect_response("**/timeline/data.json*"):
        tab.keyboard.press("ArrowLeft")
    tab.wait_for_function("begin => Number(new URLSearchParams(location.search).get('from')) < begin", arg=wider[0])
    tab.goto(f"{stack.url}/timeline/?job={ran}")
    expect(tab.locator("#timeline-body")).to_be_visible()
    canvas = tab.locator(".timeline-row", has_text="alpha").locator("canvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] / 2, "y": 32})  # the host's first lane, amid its run
    expect(tab).to_have_url(f"{stack.url}/jobs/{ran}/")
