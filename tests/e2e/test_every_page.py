"""Every page that there is, as an admin sees it: what a checker of accessibility finds, and whether it fits the screen.

The addresses are those of the table in `tests.test_walk`, which fails when one is missing from it.
"""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page

from jobs.models import WhatIf
from jobs.segments import SegmentWriter
from jobs.states import JobState
from tests import factories
from tests.rigs.browser import faults_of, new_tab, storage_of
from tests.rigs.stack import Stack
from tests.test_walk import WEB

ACCOUNT = ("accounts/password/change/", "accounts/logout/")  # of the library's tree, in our look
SIGNED_OUT = ("accounts/login/", "accounts/password/reset/")
TABS = ("#charts", "#files", "#request", "#events", "#container")
INKS = b"\x1b[3%dmink\x1b[0m \x1b[4%dmground\x1b[0m \x1b[38;5;%dmof 256\x1b[0m\n"
LOG = b"".join(INKS % (n % 8, n % 8, n) for n in range(40))


@pytest.fixture(scope="module")
def world(stack: Stack) -> dict[str, int]:
    """An admin's user with an ended job that printed in all colours, one that waits, and a question; their numbers."""

    def make() -> dict[str, int]:
        team = factories.make_team("glass", gpus=4)
        admin = factories.make_user("iris", teams=(team,), is_staff=True, is_superuser=True)
        waiting = factories.make_job(admin, gpus=4, state=JobState.HELD, held_by_user=True)
        run = factories.make_ended_run(admin, timezone.now() - timedelta(hours=2), exit_code=1)
        writer = SegmentWriter(run.pk, 0)
        writer.write(LOG)
        writer.complete(dropped=0)
        question = WhatIf.objects.create(asked_by=admin, days=1, state=WhatIf.State.FAILED, message="nothing to replay")
        return {"job": run.job_id, "waiting": waiting.pk, "whatif": question.pk}

    return stack.orm(make)


@pytest.fixture(scope="module")
def as_admin(stack: Stack, browser: Browser, world: dict[str, int]) -> Any:
    return storage_of(browser, stack.url, "iris")


def _addresses(world: dict[str, int]) -> Iterator[str]:
    """What the table says that an admin may get. Those that answer with no page are sorted out by their answers."""
    for pattern, rules in WEB.items():
        if "GET" in rules and not pattern.startswith("api/") and "<path" not in pattern and "log" not in pattern:
            number = world["whatif" if pattern.startswith("whatif/") else "job"]
            yield re.sub(r"<int:\w+>", str(number), pattern).replace("<slug:name>", os.environ["NODE_NAME"])
    yield f"jobs/{world['waiting']}/"
    yield from (f"jobs/{world['job']}/{tab}" for tab in TABS)
    yield from ACCOUNT


def _visited(page: Page, stack: Stack, path: str, artifacts: Path, look: str) -> list[Any] | None:
    """The faults of a page; None for what is none."""
    answer = page.request.get(f"{stack.url}/{path}")
    if answer.status != 200 or "text/html" not in answer.headers["content-type"] or answer.url != f"{stack.url}/{path}":
        return None
    page.goto("about:blank")
    page.goto(f"{stack.url}/{path}")
    if path.startswith("jobs/") and "<" not in path and page.locator("#log-rows").count():
        page.wait_for_selector(".log-row, #log-empty:not([hidden])", state="attached")
    name = re.sub(r"\W+", "-", path).strip("-") or "dashboard"
    page.screenshot(path=artifacts / f"page-{name}-{look}.png")
    return faults_of(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 380)])
def test_every_page_is_accessible_and_fits_the_screen(
    browser: Browser, as_admin: Any, stack: Stack, world: dict[str, int], artifacts: Path, scheme: Any, width: int
) -> None:
    options: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": True}
    faults = {}
    for state, paths in ((as_admin, list(_addresses(world))), (None, SIGNED_OUT)):
        page = new_tab(browser, storage_state=state, **options)
        faults.update({path: _visited(page, stack, path, artifacts, f"{scheme}-{width}") for path in paths})
        page.context.close()
    assert sum(found is not None for found in faults.values()) >= 20
    assert {path: found for path, found in faults.items() if found} == {}
