"""What may be done to a job from its page, by whom, and what a second press does."""

import uuid
from typing import Any

import pytest
from django.test import Client

from jobs import secretbox
from jobs.models import Job, JobEvent, Membership, Run
from jobs.states import EndReason, JobState, RunState, Wish
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast(settings: Any) -> dict[str, Any]:
    vision = factories.make_team("vision")
    users = {name: factories.make_user(name, teams=(vision,)) for name in ("alice", "bob", "lead")}
    Membership.objects.filter(user=users["lead"]).update(role=Membership.Role.LEAD)
    return {**users, "admin": factories.make_admin(), "node": factories.make_node(),
            "job": factories.make_job(users["alice"], vision)}  # fmt: skip


def _post(user: Any, job: Job, action: str, **data: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.post(f"/jobs/{job.pk}/{action}/", data)
    assert answer.status_code == 302, answer.content
    return str(answer.headers["Location"])


@pytest.mark.parametrize(
    ("who", "reason"), [("alice", EndReason.STOPPED_BY_USER), ("lead", EndReason.STOPPED_BY_ADMIN)]
)
def test_a_waiting_job_is_cancelled_at_once(cast: dict[str, Any], who: str, reason: EndReason) -> None:
    _post(cast[who], cast["job"], "cancel")
    cast["job"].refresh_from_db()
    assert (cast["job"].state, cast["job"].end_reason) == (JobState.CANCELLED, reason)


def test_a_second_press_does_no_harm_and_the_journal_names_the_first(cast: dict[str, Any]) -> None:
    """harness/harness#1328"""
    factories.make_run(cast["job"], cast["node"])
    _post(cast["bob"], cast["job"], "cancel")
    assert Run.objects.get().wish == "", "a colleague may look, not steer"
    _post(cast["alice"], cast["job"], "cancel")
    _post(cast["lead"], cast["job"], "cancel")
    run = Run.objects.get()
    assert (run.wish, run.wish_by) == (Wish.CANCEL, cast["alice"])
    assert [event.actor for event in JobEvent.objects.filter(kind="WISHED")] == [cast["alice"]]


def test_each_hold_is_lifted_by_its_own_kind(cast: dict[str, Any]) -> None:
    job = cast["job"]
    _post(cast["alice"], job, "hold")
    _post(cast["admin"], job, "hold")
    _post(cast["alice"], job, "release")
    job.refresh_from_db()
    assert (job.state, job.held_by_user, job.held_by_admin) == (JobState.HELD, False, True)
    _post(cast["admin"], job, "release")
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_the_page_offers_what_the_reader_may_do(cast: dict[str, Any]) -> None:
    def offered(who: str) -> set[str]:
        client = Client()
        client.force_login(cast[who])
        actions = client.get(f"/jobs/{cast['job'].pk}/status.json").json()["actions"]
        page = client.get(f"/jobs/{cast['job'].pk}/").content.decode()
        shown = {name for name in actions if f'id="act-{name}"' in page}
        assert shown == {name for name, may in actions.items() if may}
        return shown

    assert offered("alice") == offered("lead") == {"cancel", "hold", "clone"}
    assert offered("bob") == {"clone"}
    _post(cast["alice"], cast["job"], "hold")
    assert offered("alice") == {"cancel", "release", "clone"}
    _post(cast["alice"], cast["job"], "cancel")
    assert offered("alice") == {"clone", "resubmit"}
    assert offered("lead") == {"clone"}


def test_resubmitting_makes_the_same_job_once_whatever_the_presses(cast: dict[str, Any]) -> None:
    job = cast["job"]
    Job.objects.filter(pk=job.pk).update(
        environment={"A": "1"}, secrets_encrypted={"KEY": secretbox.seal("hunter2")}, gpus=1
    )
    _post(cast["alice"], job, "cancel")
    submission = str(uuid.uuid4())
    first = _post(cast["alice"], job, "resubmit", submission=submission)
    assert _post(cast["alice"], job, "resubmit", submission=submission) == first
    again = Job.objects.get(cloned_from=job)
    assert first == f"/jobs/{again.pk}/"
    assert (again.environment, again.image, again.state) == ({"A": "1"}, job.image, JobState.QUEUED)
    assert secretbox.open_(again.secrets_encrypted["KEY"]) == "hunter2"


def test_a_colleague_who_resubmits_gets_the_form_and_never_the_secrets(cast: dict[str, Any]) -> None:
    _post(cast["alice"], cast["job"], "cancel")
    assert _post(cast["bob"], cast["job"], "resubmit") == f"/jobs/new/?clone={cast['job'].pk}"
    assert Job.objects.count() == 1


def test_a_resubmission_that_no_quota_allows_is_refused_with_numbers(cast: dict[str, Any]) -> None:
    _post(cast["alice"], cast["job"], "cancel")
    factories.make_team("vision", gpus=0)
    client = Client()
    client.force_login(cast["alice"])
    page = client.post(f"/jobs/{cast['job'].pk}/resubmit/", follow=True).content.decode()
    assert Job.objects.count() == 1
    assert 'role="alert"' in page


def test_cancelling_what_ended_changes_nothing(cast: dict[str, Any]) -> None:
    from django.utils import timezone

    run = factories.make_run(cast["job"], cast["node"])
    run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=timezone.now(), exit_code=0)
    _post(cast["alice"], cast["job"], "cancel")
    cast["job"].refresh_from_db()
    assert (cast["job"].state, cast["job"].end_reason) == (JobState.SUCCEEDED, EndReason.COMPLETED)
