"""The main job itself on the running product: a person's browser and the command line see the same job to its end."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from portal.demo.sample import SCRIPT, expected_log
from tests import factories
from tests.rigs.engine import BUSYBOX
from tests.rigs.stack import Stack


@pytest.fixture(scope="session")
def dora(stack: Stack) -> str:
    """A researcher of her own team on the running product."""

    def make() -> str:
        return factories.make_user("dora", teams=(factories.make_team("robots", gpus=4),)).username

    return stack.orm(make)


def test_the_command_line_submits_follows_and_gets_every_byte(stack: Stack, dora: str, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    login = stack.cli("login", stack.url, "-u", dora, "--password-stdin", env=home, stdin=factories.PASSWORD + "\n")
    assert login.returncode == 0, login.stderr
    done = stack.cli("submit", "-i", BUSYBOX, "-g", "1", "-m", "64MiB", "--shm", "16MiB", "--script", "-", "-f",
                     env=home, stdin=SCRIPT.replace("sleep 0.22", "sleep 0.02"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    gpu = re.search(r"GPU-[0-9a-f-]+", done.stdout)
    assert gpu is not None
    log = stack.cli("logs", re.search(r"#(\d+)", done.stdout + done.stderr)[1], env=home)  # type: ignore[index]
    assert log.stdout == expected_log(gpu[0]).decode()
    assert stack.orm(factories.broken_invariants) == []


def test_a_person_logs_in_and_sees_the_dashboard(stack: Stack, dora: str, page: Page) -> None:
    page.goto(stack.url)
    page.get_by_label("Username").fill(dora)
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name=re.compile("Sign in|Log in", re.IGNORECASE)).click()
    expect(page).to_have_url(re.compile(rf"^{re.escape(stack.url)}/$"))
