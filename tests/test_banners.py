"""What everybody must know stands on every page: that the GPUs are simulated, and that nothing starts."""

import pytest
from django.template.loader import get_template
from django.test import Client

from jobs.models import Cluster
from tests import factories

pytestmark = pytest.mark.django_db
SIMULATED, PAUSED, WHY = "Simulated GPUs", "All starts are paused", "the cooling is being repaired"
OUTSIDE = ("/accounts/login/", "/nothing-here/")
INSIDE = ("/", "/jobs/", "/jobs/new/", "/gpus/", "/queue/", "/history/", "/accounts/password/change/", "/api/docs")
STAFF = ("/admin/", "/admin/jobs/cluster/", "/admin/django_rq/", "/admin/password_change/")


@pytest.fixture(autouse=True)
def paused(db: None) -> None:
    Cluster.objects.update_or_create(pk=1, defaults={"paused": True, "pause_reason": WHY})


@pytest.mark.parametrize("path", OUTSIDE)
def test_visitors_are_told_too_but_not_why(client: Client, path: str) -> None:
    text = client.get(path).content.decode()
    assert SIMULATED in text
    assert PAUSED in text
    assert WHY not in text


@pytest.mark.parametrize("path", INSIDE)
def test_everybody_inside_is_told(client: Client, path: str) -> None:
    client.force_login(factories.make_user("alice"))
    text = client.get(path, follow=True).content.decode()
    assert SIMULATED in text
    assert PAUSED in text
    assert WHY in text


@pytest.mark.parametrize("path", STAFF)
def test_the_admin_and_rq_pages_say_it_as_well(client: Client, path: str) -> None:
    client.force_login(factories.make_admin())
    text = client.get(path, follow=True).content.decode()
    assert SIMULATED in text
    assert WHY in text


@pytest.mark.parametrize("name", ["500.html", "503.html"])
def test_a_page_that_failed_knows_it_without_any_context(client: Client, name: str) -> None:
    page = get_template(name).render()
    assert SIMULATED in page
    assert "To the start page" in page
    assert "/i18n/setlang/" not in page  # without a token it would be refused
    assert "/i18n/setlang/" in client.get("/nothing-here/").text


def test_inline_scripts_run_on_rq_pages_only(client: Client) -> None:
    client.force_login(factories.make_admin())
    allowed = "script-src 'self' 'unsafe-inline'"
    assert allowed in client.get("/admin/django_rq/").headers["Content-Security-Policy"]
    assert allowed not in client.get("/admin/").headers["Content-Security-Policy"]


def test_browsers_find_an_icon_where_they_look_by_themselves(client: Client) -> None:
    assert client.get("/favicon.ico").headers["Location"].endswith("icons/favicon.svg")
