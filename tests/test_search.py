"""Search by a part of a name: what is found, by whom, through which index, and what is said where there is none."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import paging, search
from jobs.admin import Foremost, JobAdmin
from jobs.models import Job, Membership, Team
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def found(client: Client, q: str) -> list[str]:
    return [job.name for job in client.get("/jobs/", {"q": q, "sort": "old"}).context["jobs"]]


@pytest.fixture
def jobs(client: Client, alice: User, bob: User, charlie: User) -> list[Job]:
    client.force_login(alice)
    names = ["train-ResNet-50", 'quote "it"', "100%_done", "学习率-0.1"]
    mine = [factories.make_job(alice, name=name, image="lab/vision:1") for name in names]
    theirs = factories.make_job(bob, name="bert", image="lab/text:2")
    factories.make_job(charlie, name="resnet of a stranger")
    return [*mine, theirs]


@pytest.mark.parametrize(
    ("q", "names"),
    [
        ("resnet", ["train-ResNet-50"]),  # whatever the case
        ("Net-5", ["train-ResNet-50"]),  # any part
        ('e "it"', ['quote "it"']),
        ("0%_d", ["100%_done"]),  # no sign is a pattern
        ("学习率", ["学习率-0.1"]),
        ("lab/text", ["bert"]),  # the image's
        ("bob", ["bert"]),  # the owner's
        ("NEAR(a b)", []),
        ("resnet OR bert", []),  # no word is an operator
        ("-R", ["train-ResNet-50"]),  # two characters
    ],
)
def test_a_part_of_a_name_finds_the_jobs_one_may_see(client: Client, jobs: list[Job], q: str, names: list[str]) -> None:
    assert found(client, q) == names


def test_a_number_finds_its_job(client: Client, jobs: list[Job]) -> None:
    assert jobs[1].name in found(client, f"#{jobs[1].pk}")


def test_the_index_follows_the_jobs(client: Client, jobs: list[Job]) -> None:
    Job.objects.filter(pk=jobs[0].pk).update(name="renamed thing")
    assert (found(client, "ResNet"), found(client, "renamed")) == ([], ["renamed thing"])
    Job.objects.filter(pk=jobs[0].pk).delete()
    assert found(client, "renamed") == []


def test_a_lost_index_is_made_anew_with_what_is_there(client: Client, jobs: list[Job]) -> None:
    """Django's SQLite loses a table's triggers when it makes the table anew."""
    gone = "DROP INDEX job_trigrams" if connection.vendor == "postgresql" else "DROP TRIGGER job_words_added"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else the test's own rows stand in the way
        cursor.execute(gone)
    factories.make_job(jobs[0].owner, name="added meanwhile")
    search.prepare("default")
    assert search.is_indexed("default")
    assert found(client, "meanwhile") == ["added meanwhile"]


def test_what_changed_lately_is_a_short_list_for_each_search(jobs: list[Job]) -> None:
    """PostgreSQL lets that list grow to 4 MB, which every search reads; an older version's index is so."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite keeps no such list")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else the test's own rows stand in the way
        cursor.execute("ALTER INDEX job_trigrams RESET (gin_pending_list_limit)")
        search.prepare("default")
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'job_trigrams'")
        assert cursor.fetchone() == (["gin_pending_list_limit=256"],)


def test_without_an_index_the_newest_are_looked_through_and_the_page_says_so(
    client: Client, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(search._known, "default", False)
    assert found(client, "resnet") == ["train-ResNet-50"]
    assert "looked through" not in client.get("/jobs/?q=resnet").text
    monkeypatch.setattr(search, "NEWEST", 2)
    assert found(client, "resnet") == []
    assert "Only the newest 2 jobs were looked through" in client.get("/jobs/?q=bert").text


def test_a_search_asks_the_index(client: Client, jobs: list[Job]) -> None:
    with CaptureQueriesContext(connection) as asked:
        client.get("/jobs/?q=resnet")
    wanted = "jobs_job_words MATCH" if connection.vendor == "sqlite" else "UPPER("
    assert any(wanted in query["sql"] for query in asked.captured_queries)


def test_what_lies_beyond_the_first_rows_is_found_with_as_many_queries_for_many_teams(
    client: Client, jobs: list[Job], alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index knows no teams: what one part of the list has too few of nearby is looked for once in all of them."""
    for number in range(3):
        Membership.objects.create(user=alice, team=Team.objects.create(name=f"team {number}"))
    monkeypatch.setattr(paging, "NEAR_TEXT", 1)
    monkeypatch.setattr(paging, "FAR", 2)
    with CaptureQueriesContext(connection) as asked:
        assert found(client, "lab/") == [job.name for job in jobs]
    assert len([query for query in asked.captured_queries if "ORDER BY COALESCE(" in query["sql"]]) == 1


def test_the_list_for_admins_counts_no_more_than_it_says(
    client: Client, jobs: list[Job], root_admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of all reads the whole table, at each page."""
    monkeypatch.setattr(Foremost, "MOST", 2)
    monkeypatch.setattr(JobAdmin, "list_per_page", 1)
    client.force_login(root_admin)
    with CaptureQueriesContext(connection) as asked:
        page = client.get("/admin/jobs/job/")
    assert (page.context["cl"].result_count, len(page.context["cl"].result_list)) == (2, 1)
    assert [query["sql"] for query in asked if "COUNT(" in query["sql"] and "LIMIT 2" not in query["sql"]] == []
    everything = {"action": "hold", "select_across": "1", "_selected_action": [str(jobs[0].pk)]}
    assert client.post("/admin/jobs/job/", everything).status_code == 302
    assert Job.objects.filter(state="HELD").count() <= 2


@pytest.mark.parametrize(("q", "names"), [("resnet", {"train-ResNet-50", "resnet of a stranger"}), ("bob", {"bert"})])
def test_admins_find_jobs_by_the_same_index(
    client: Client, jobs: list[Job], root_admin: User, q: str, names: set[str]
) -> None:
    client.force_login(root_admin)
    with CaptureQueriesContext(connection) as asked:
        page = client.get("/admin/jobs/job/", {"q": q})
    assert {job.name for job in page.context["cl"].result_list} == names
    counts = [query["sql"] for query in asked if "COUNT(" in query["sql"]]
    assert [sql for sql in counts if "portal_user" in sql] == [], "an owner's name is in no index of jobs"
