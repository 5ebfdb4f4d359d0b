"""What admins set about the order of the queue, and do to it."""

from typing import Any

import pytest
from django.core import checks
from django.test import Client
from django.urls import reverse

from jobs import snapshot, usage
from jobs.models import Cluster, Job, JobEvent, Quota, Team
from jobs.policy.weights import Weights
from jobs.states import JobState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client, root_admin: User) -> Client:
    client.force_login(root_admin)
    return client


def act(admin: Client, action: str, *jobs: Job) -> Any:
    sent = {"action": action, "_selected_action": [job.pk for job in jobs]}
    return admin.post(reverse("admin:jobs_job_changelist"), sent, follow=True)


def test_many_jobs_are_pinned_held_and_reprioritised_at_once(admin: Client, alice: User) -> None:
    Quota.objects.create(user=alice, priority=1)
    waiting, running = factories.make_job(alice), factories.make_job(alice)
    factories.make_run(running, factories.make_node("alpha"))
    for action, column, value in (
        ("pin", "pinned", True), ("make_urgent", "priority", 3), ("hold", "held_by_admin", True),
        ("release", "held_by_admin", False), ("unpin", "pinned", False), ("make_low", "priority", 0),
    ):  # fmt: skip
        assert "1 waiting job changed." in act(admin, action, waiting, running).text
        waiting.refresh_from_db()
        assert getattr(waiting, column) == value
    kinds = JobEvent.objects.filter(job=waiting, actor__username="root_admin").values_list("kind", flat=True)
    assert list(kinds) == ["PINNED", "REPRIORITISED", "HELD", "RELEASED", "UNPINNED", "REPRIORITISED"]
    assert waiting.state == JobState.QUEUED
    assert "0 waiting jobs changed." in act(admin, "unpin", waiting).text


def test_a_quota_is_a_whole_vector(admin: Client, vision: Team) -> None:
    sent = {
        "team": vision.pk, "gpus": "8", "gpus_by_model": "NVIDIA A100: 4\n\nNVIDIA L4:2", "guaranteed_gpus": "4",
        "interactive_jobs": "1", "gpu_hours": "100", "gpu_hours_soft": "80", "window_days": "7",
    }  # fmt: skip
    assert admin.post(reverse("admin:jobs_quota_add"), sent).status_code == 302
    limits = usage.team_limits([vision])[vision.pk]
    assert limits.gpus_by_model == {"NVIDIA A100": 4, "NVIDIA L4": 2}
    assert (limits.guaranteed_gpus, limits.interactive_jobs, limits.window_days) == (4, 1, 7)
    assert (limits.gpu_seconds, limits.gpu_seconds_soft) == (360_000, 288_000)
    page = admin.get(reverse("admin:jobs_quota_change", args=[Quota.objects.get().pk])).text
    assert "NVIDIA A100: 4\nNVIDIA L4: 2</textarea>" in page


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"gpus_by_model": "A100"}, "Write each line as a model and a number, such as NVIDIA A100-SXM4-40GB: 4."),
        ({"gpu_hours": "10", "gpu_hours_soft": "11"}, "The soft mark is above the limit of 10."),
        ({"gpus": "2", "guaranteed_gpus": "3"}, "More are guaranteed than may be used at once: 2."),
        ({"window_days": "0"}, "At least one day."),
    ],
)
def test_a_quota_that_contradicts_itself_is_refused(
    admin: Client, vision: Team, sent: dict[str, str], said: str
) -> None:
    answer = admin.post(reverse("admin:jobs_quota_add"), {"team": vision.pk, **sent})
    assert said in answer.text
    assert not Quota.objects.exists()


def test_gpus_are_guaranteed_to_teams_alone(admin: Client, alice: User) -> None:
    answer = admin.post(reverse("admin:jobs_quota_add"), {"user": alice.pk, "guaranteed_gpus": "1"})
    assert "GPUs are guaranteed to teams, not to people." in answer.text


def test_the_rules_are_what_the_scheduler_reads(admin: Client, vision: Team) -> None:
    cluster = Cluster.get()
    sent = {
        "half_life_days": "14", "lift_after_hours": "", "preempt_lower": "on", "protected_minutes": "5",
        "extension_hours": "2", "gpu_weights": "NVIDIA L4: 0.5\nNVIDIA H100: 2", "cpu_weight": "0.0625",
        "memory_weight": "0", "egress": "open",
    }  # fmt: skip
    assert admin.post(reverse("admin:jobs_cluster_change", args=[cluster.pk]), sent).status_code == 302
    Team.objects.filter(pk=vision.pk).update(placement=Team.Placement.SPREAD)
    cluster.refresh_from_db()
    rules = snapshot.rules(cluster, Team.objects.all())
    assert (rules.lift_after, rules.preempt_lower, rules.protected_for, rules.defragment) == (None, True, 300, False)
    assert rules.spread == {vision.pk}
    assert (cluster.half_life_days, cluster.extension_hours) == (14, 2)
    assert rules.weights == Weights(models={"NVIDIA L4": 0.5, "NVIDIA H100": 2.0}, cpu=0.0625)
    said = admin.get("/fairshare/").text
    assert "An hour of a GPU counts as one, but an hour of NVIDIA H100 2, an hour of NVIDIA L4 0.5" in said
    refused = admin.post(reverse("admin:jobs_cluster_change", args=[cluster.pk]), {**sent, "gpu_weights": "L4 half"})
    assert "Write each line as a model and a number, such as NVIDIA L4: 0.5." in refused.text


def test_guarantees_above_what_there_is_are_a_warning(vision: Team) -> None:
    def found() -> list[Any]:
        return [m for m in checks.run_checks(databases=["default"]) if m.id == "dockyard.W009"]

    factories.make_node("alpha", gpus=4)
    Quota.objects.create(team=vision, guaranteed_gpus=3)
    assert found() == []
    factories.make_team("speech", guaranteed_gpus=2)
    (warning,) = found()
    assert warning.msg == "5 GPUs are guaranteed (speech 2, vision 3), and there are 4."
