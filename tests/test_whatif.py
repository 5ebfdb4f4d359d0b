"""What if: history played under other quotas, priorities and GPUs, side by side, in the background, for staff alone."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from jobs import whatif
from jobs.models import Allocation, Job, JobEvent, Quota, Run, WhatIf
from jobs.policy.changes import Changes
from jobs.states import JobState, RunState
from jobs.whatifforms import WhatIfForm
from jobs.whatifwords import described
from portal.models import User
from tests import factories

HOUR = timedelta(hours=1)


def ran(owner: User, *, came: datetime, waited: timedelta, took: timedelta, **fields: Any) -> Job:
    """A job that came, waited, ran and ended."""
    node = factories.Node.objects.get()
    start = came + waited
    job = factories.make_job(
        owner, created_at=came, queued_at=came, started_at=start, ended_at=start + took, state=JobState.SUCCEEDED,
        **fields,
    )  # fmt: skip
    run = Run.objects.create(
        job=job, node=node, number=1, placed_at=start, started_at=start, ended_at=start + took, state=RunState.ENDED
    )
    Allocation.objects.create(
        run=run, node=node, user=owner, team=job.team, gpus=job.gpus, millicpus=job.millicpus,
        memory_mib=job.memory_mib, created_at=start, released_at=start + took,
    )  # fmt: skip
    return job


@pytest.fixture
def yesterday(alice: User, bob: User) -> list[Job]:
    """One GPU; alice's job of an hour ran, and bob's waited for it."""
    factories.make_node(gpus=1)
    came = timezone.now() - timedelta(days=1)
    return [
        ran(alice, came=came, waited=timedelta(), took=HOUR),
        ran(bob, came=came + timedelta(minutes=10), waited=timedelta(minutes=50), took=HOUR / 2),
    ]


def answer(days: int = 2, **changes: Any) -> dict[str, Any]:
    asked = whatif.ask(Changes(**changes), days=days, by=None)
    WhatIf.objects.filter(pk=asked.pk).update(state=WhatIf.State.RUNNING)
    call_command("whatif", str(asked.pk))
    asked.refresh_from_db()
    assert (asked.state, asked.message, asked.progress) == (WhatIf.State.DONE, "", 100)
    found: dict[str, Any] = asked.result
    return found


@pytest.fixture(autouse=True)
def _keep_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda _more: 0)


@pytest.mark.django_db
def test_history_played_as_it_is_waits_as_it_did(yesterday: list[Job]) -> None:
    found = answer()
    assert found["jobs"] == 2
    assert found["actual"]["mean"] == pytest.approx(1500, abs=5)
    assert found["now"]["waits"]["mean"] == pytest.approx(1500, abs=5)
    assert found["then"] == found["now"]
    assert [row["name"] for row in found["users"]] == ["alice", "bob"]


@pytest.mark.django_db
def test_a_job_that_was_on_hold_does_not_start_before_it_was_released(alice: User) -> None:
    factories.make_node(gpus=1)
    came = timezone.now() - timedelta(days=1)
    job = ran(alice, came=came, waited=HOUR, took=HOUR)
    for kind, at in (("HELD", came + HOUR / 4), ("RELEASED", came + HOUR * 3 / 4)):
        JobEvent.objects.create(job=job, kind=kind, at=at, params={"by": "user"})
    JobEvent.objects.create(job=job, kind="HELD", at=came + 3 * HOUR, params={"by": "admin"})
    assert answer()["actual"]["mean"] == pytest.approx(1800, abs=2), "what it was on hold is no wait"
    JobEvent.objects.filter(kind="HELD", params__by="user").update(at=came)
    found = answer()
    assert (found["actual"]["mean"], found["now"]["waits"]["mean"]) == (pytest.approx(900), pytest.approx(0, abs=2))
    assert found["now"]["makespan"] == pytest.approx(1.75 * 3600, abs=5), "it began when it was released"


@pytest.mark.django_db
def test_one_more_host_takes_the_wait_away(yesterday: list[Job]) -> None:
    found = answer(more_hosts=1)
    assert found["then"]["waits"]["mean"] == pytest.approx(0, abs=2)
    assert (found["now"]["gpus"], found["then"]["gpus"]) == (1, 2)


@pytest.mark.django_db
def test_a_host_with_fewer_gpus_or_none_is_seen_in_the_waits(yesterday: list[Job]) -> None:
    factories.make_node("beta", gpus=1)
    assert answer()["now"]["waits"]["mean"] == pytest.approx(0, abs=2)
    assert answer(hosts={"beta": 0})["then"]["waits"]["mean"] > 1000


@pytest.mark.django_db
def test_a_quota_that_holds_a_user_back_is_seen_in_that_user_s_wait(yesterday: list[Job], bob: User) -> None:
    Quota.objects.create(user=bob, gpus=4)
    found = answer(everybody={"gpus": 0})
    assert found["then"]["never"] == 2


@pytest.mark.django_db
def test_a_higher_class_goes_first(alice: User, bob: User, yesterday: list[Job]) -> None:
    came = timezone.now() - timedelta(hours=20)
    blocker = ran(alice, came=came, waited=timedelta(), took=HOUR)
    late = ran(alice, came=came + timedelta(minutes=1), waited=HOUR, took=HOUR)
    early = ran(bob, came=came + timedelta(minutes=2), waited=2 * HOUR, took=HOUR)
    assert blocker.pk < late.pk < early.pk
    rows = {row["name"]: row for row in answer(user_classes={str(alice.pk): 3})["users"]}
    assert rows["bob"]["then"]["mean"] >= rows["bob"]["now"]["mean"]
    assert rows["alice"]["then"]["mean"] <= rows["alice"]["now"]["mean"]


@pytest.mark.django_db
def test_what_ran_when_the_days_began_holds_its_gpu_and_its_wait_does_not_count(alice: User, bob: User) -> None:
    factories.make_node(gpus=1)
    begin = timezone.now() - timedelta(days=1)
    ran(alice, came=begin - HOUR, waited=timedelta(), took=2 * HOUR)
    ran(bob, came=begin + HOUR / 2, waited=HOUR / 2, took=HOUR)
    found = answer(days=1)
    assert found["now"]["waits"]["jobs"] == 1
    assert found["now"]["waits"]["mean"] == pytest.approx(1800, abs=10)


@pytest.mark.django_db
@pytest.mark.parametrize(("changes", "why"), [({}, "NO_JOBS"), ({"hosts": {"alpha": 0}}, "NO_HOSTS")])
def test_what_cannot_be_played_is_said(changes: dict[str, Any], why: str, alice: User) -> None:
    factories.make_node(gpus=1)
    if why == "NO_HOSTS":
        ran(alice, came=timezone.now() - HOUR, waited=timedelta(), took=HOUR / 2)
    asked = whatif.ask(Changes(**changes), days=1, by=None)
    WhatIf.objects.filter(pk=asked.pk).update(state=WhatIf.State.RUNNING)
    whatif.work_out(asked.pk)
    asked.refresh_from_db()
    assert (asked.state, asked.message) == (WhatIf.State.FAILED, why)


@pytest.mark.django_db
def test_a_question_that_takes_too_long_is_given_up(yesterday: list[Job], settings: Any) -> None:
    settings.WHAT_IF_TIMEOUT = -1
    asked = whatif.ask(Changes(), days=2, by=None)
    WhatIf.objects.filter(pk=asked.pk).update(state=WhatIf.State.RUNNING)
    whatif.work_out(asked.pk)
    asked.refresh_from_db()
    assert asked.message == "TOO_LONG"


@pytest.mark.django_db
def test_one_question_at_a_time_and_one_whose_worker_is_gone_is_given_up() -> None:
    first, second = (whatif.ask(Changes(), days=1, by=None) for _ in range(2))
    now = timezone.now()
    WhatIf.objects.filter(pk=first.pk).update(state=WhatIf.State.RUNNING, heard_at=now)
    assert whatif.start_next(now) is None
    WhatIf.objects.filter(pk=second.pk).delete()
    assert whatif.start_next(now + timedelta(minutes=5)) is None
    first.refresh_from_db()
    assert (first.state, first.message) == (WhatIf.State.FAILED, "LOST")


# --- the pages ---


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def typed(**fields: Any) -> dict[str, Any]:
    """The form as it comes, with these fields changed."""
    form = WhatIfForm()
    values = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    return {name: value for name, value in {**values, **fields}.items() if value not in (None, False, "")}


@pytest.mark.django_db
def test_the_form_as_it_comes_changes_nothing_and_what_is_typed_is_all_that_changes(alice: User) -> None:
    factories.make_node("alpha", gpus=4)
    team = alice.teams.get()
    Quota.objects.create(team=team, gpus=8)
    form = WhatIfForm(typed())
    assert form.is_valid(), form.errors
    assert form.changes() == Changes()
    form = WhatIfForm(typed(**{
        "host-0": 2, "more_hosts": 1, f"team-{team.pk}-gpus": "", f"team-{team.pk}-shares": 5,
        f"team-{team.pk}-class": 2, "everybody_gpus": "3", "user_classes": "alice=urgent", "half_life_days": 1,
        "lift_after_hours": "", "preempt_lower": "on", "days": 3,
    }))  # fmt: skip
    assert form.is_valid(), form.errors
    assert form.changes() == Changes(
        hosts={"alpha": 2}, more_hosts=1, teams={str(team.pk): {"gpus": None}}, shares={str(team.pk): 5},
        everybody={"gpus": 3}, team_classes={str(team.pk): 2}, user_classes={str(alice.pk): 3}, half_life=86400.0,
        rules={"lift_after": None, "preempt_lower": True},
    )  # fmt: skip
    assert Changes.from_json(form.changes().as_json()) == form.changes()
    assert "alpha with 2 GPUs" in described(form.changes().as_json())


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["alice", "nobody=high", "alice=best"])
def test_priorities_of_users_that_make_no_sense_are_refused(text: str, alice: User) -> None:
    factories.make_node(gpus=1)
    form = WhatIfForm(typed(user_classes=text))
    assert list(form.errors) == ["user_classes"]


@pytest.mark.django_db
def test_staff_ask_and_see_both_side_by_side(yesterday: list[Job]) -> None:
    client = client_of(factories.make_admin())
    assert client.get("/whatif/").status_code == 200
    asked = client.post("/whatif/", typed(more_hosts=1, days=2))
    assert asked.status_code == 302
    waiting = client.get(asked.headers["Location"]).content.decode()
    assert "hx-trigger" in waiting
    row = WhatIf.objects.get()
    WhatIf.objects.update(state=WhatIf.State.RUNNING)
    whatif.work_out(row.pk)
    page = client.get(asked.headers["Location"]).content.decode()
    assert "1 more host" in page
    assert "With the changes" in page
    assert "25 min" in page
    assert client.post("/whatif/", typed(days=0)).status_code == 422


@pytest.mark.django_db
def test_the_admin_s_first_page_leads_there(alice: User) -> None:
    assert 'href="/whatif/"' in client_of(factories.make_admin()).get("/admin/").content.decode()
    assert client_of(alice).get("/whatif/").status_code == 404


@pytest.mark.django_db
def test_jobs_that_could_never_start_are_named_with_their_reason(
    yesterday: list[Job], bob: User, client: Client
) -> None:
    Quota.objects.create(user=bob, gpus=4)
    found = answer(everybody={"gpus": 0})
    assert [row["job"] for row in found["then"]["never_first"]] == [job.pk for job in yesterday]
    assert (found["now"]["never_first"], found["then"]["never_first"][0]["reason"]["code"]) == ([], "QUOTA_GPUS")
    client.force_login(factories.make_user("root", is_staff=True))
    page = client.get(f"/whatif/{WhatIf.objects.get().pk}/").text
    assert f'href="/jobs/{yesterday[1].pk}/">#{yesterday[1].pk}' in page
    assert "The quota of bob" in page
    assert "and 1 more" not in page


@pytest.mark.django_db
def test_a_what_if_without_a_host_is_refused_at_the_form(yesterday: list[Job], client: Client) -> None:
    client.force_login(factories.make_user("root", is_staff=True))
    form = client.get("/whatif/").context["form"]
    typed = {name: bound.value() for name, bound in ((name, form[name]) for name in form.fields)}
    typed = {name: value for name, value in typed.items() if value not in (None, False)}
    for name in [name for name in typed if name.startswith("host-")]:
        typed[name] = 0
    refused = client.post("/whatif/", typed)
    assert (refused.status_code, WhatIf.objects.count()) == (422, 0)
    assert "There would be no host left" in refused.text
    assert client.post("/whatif/", {**typed, "more_hosts": 1}).status_code == 302


@pytest.mark.django_db
def test_a_what_if_is_refused_before_any_host_has_joined(client: Client) -> None:
    client.force_login(factories.make_user("root", is_staff=True))
    assert "No host has joined yet" in client.post("/whatif/", {"days": 7}).text
    assert not WhatIf.objects.exists()
