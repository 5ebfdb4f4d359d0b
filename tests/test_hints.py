"""Images to choose from at the form: one's own, one's teams', those on the hosts, and never those of strangers."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from jobs import hints
from jobs.models import Cluster, Membership
from portal.models import User
from tests import factories
from tests.rigs.redis import RedisServer

pytestmark = pytest.mark.django_db


def test_ones_own_images_come_first_then_those_of_the_team(alice: User, bob: User, charlie: User) -> None:
    for owner, image in ((bob, "team/new"), (alice, "mine/old"), (bob, "mine/old"), (alice, "mine/new"),
                         (alice, "mine/new"), (charlie, "secret/project")):  # fmt: skip
        factories.make_job(owner, image=image)
    assert hints.images(alice) == ["mine/new", "mine/old", "team/new"]


def test_a_first_job_is_offered_what_the_hosts_have_for_everybody(
    alice: User, charlie: User, redis_server: RedisServer
) -> None:
    factories.make_job(charlie, image="secret/project")
    factories.make_job(charlie, image="docker.io/library/shared")
    hints.remember(["pytorch:2", "secret/project:latest", "shared:latest"])
    assert hints.images(alice) == ["pytorch:2"]


def test_only_allowed_images_are_suggested(alice: User, redis_server: RedisServer) -> None:
    factories.make_job(alice, image="evil/miner")
    hints.remember(["registry.lab/a:1", "pytorch:2"])
    Cluster.objects.create(pk=1, image_patterns="registry.lab/*")
    assert hints.images(alice) == ["registry.lab/a:1"]


def test_suggestions_are_few_and_cost_the_same_for_a_long_history(
    alice: User, bob: User, redis_server: RedisServer, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(60):
        factories.make_job(alice, image=f"mine/{number}")
        factories.make_job(bob, image=f"team/{number}")
    hints.remember(f"host/{number}" for number in range(500))
    Cluster.get()
    with django_assert_max_num_queries(4):
        found = hints.images(alice)
    assert (len(found), found[0]) == (hints.MOST, "mine/59")


def test_the_form_has_them_at_its_image_field(client: Client, alice: User) -> None:
    factories.make_job(alice, image="mine/train:1")
    client.force_login(alice)
    page = client.get("/jobs/new/").text
    assert 'list="image-hints"' in page
    assert '<option value="mine/train:1">' in page


def test_the_newest_of_all_teams_come_first_and_without_a_team_nothing_is_looked_through(
    alice: User, root_admin: User, redis_server: RedisServer
) -> None:
    """Which of a million jobs are of some of the teams is in no index; of one team it is."""
    teams = [factories.make_team(name) for name in ("vision", "speech")]
    for number in range(4):
        factories.make_job(alice, teams[number % 2], image=f"team/{number}")
        Membership.objects.get_or_create(user=root_admin, team=teams[number % 2])
    assert hints.images(root_admin) == ["team/3", "team/2", "team/1", "team/0"]
    Membership.objects.filter(user=root_admin).delete()
    with CaptureQueriesContext(connection) as asked:
        assert hints.images(root_admin) == []
    assert [query["sql"] for query in asked if "jobs_job" in query["sql"] and "owner_id" not in query["sql"]] == []
