"""The admin pages: inventory is reported and never typed, secrets go in and never come out, strangers stay outside."""

from pathlib import Path
from typing import Any

import pytest
from auditlog.models import LogEntry
from django.apps import apps
from django.contrib.admin import site
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.functional import Promise
from django_rq.urls import urlpatterns

from gpus.models import GPU, Node
from jobs import control, secretbox, wording
from jobs.models import Cluster, Job, Membership, Mount, Quota, RegistryLogin, Team
from jobs.states import JobState
from portal.models import ApiToken, User
from tests import factories

pytestmark = pytest.mark.django_db

MODELS = ("portal_user", "portal_apitoken", "gpus_node", "gpus_gpu", "jobs_team", "jobs_quota", "jobs_mount",
          "jobs_registrylogin", "jobs_cluster", "jobs_job", "auditlog_logentry")  # fmt: skip


@pytest.fixture
def admin(client: Client, root_admin: User) -> Client:
    client.force_login(root_admin)
    return client


def url(model: str, page: str, *args: Any) -> str:
    return reverse(f"admin:{model}_{page}", args=args)


@pytest.mark.parametrize("model", MODELS)
def test_every_page_opens(admin: Client, alice: User, model: str) -> None:
    node = factories.make_node("alpha")
    factories.make_run(factories.make_job(alice), node)
    Mount.objects.create(name="data", source="/data/x")
    RegistryLogin.objects.create(registry="docker.io", username="u", password_encrypted="x")
    Quota.objects.create(gpus=2)
    ApiToken.issue(alice, name="laptop", scope="read", expires_at=None)
    assert admin.get(url(model, "changelist"), follow=True).status_code == 200
    row = apps.get_model(*model.split("_", 1)).objects.first()
    if row is not None:
        assert admin.get(url(model, "change", row.pk), follow=True).status_code == 200


@pytest.mark.parametrize("model", [m for m in MODELS if m != "jobs_cluster"])
def test_people_who_are_no_admins_are_kept_out(client: Client, alice: User, model: str) -> None:
    client.force_login(alice)
    answer = client.get(url(model, "changelist"))
    assert answer.status_code == 302
    assert "/login/" in answer["Location"]


def test_every_field_that_admins_see_has_a_name_in_words(rf: RequestFactory, root_admin: User) -> None:
    request = rf.get("/admin/")
    request.user = root_admin
    ours = [found for model, found in site._registry.items() if model._meta.app_label in ("portal", "gpus", "jobs")]
    bare = []
    for page in [*ours, *(inline for found in ours for inline in found.get_inline_instances(request))]:
        listed = page.get_list_display(request) if page in ours else ()
        shown = {*flatten_fieldsets(page.get_fieldsets(request)), *filter(lambda name: isinstance(name, str), listed)}
        fields = [field for field in page.model._meta.get_fields() if field.name in shown and not field.auto_created]
        bare += [str(field) for field in fields if not isinstance(field.verbose_name, Promise)]
    assert bare == []


# --- people and teams ---


def test_an_admin_makes_an_account(admin: Client) -> None:
    word = "a good long pass"
    sent = {"username": "dora", "usable_password": "true", "password1": word, "password2": word}
    assert admin.post(url("portal_user", "add"), sent).status_code == 302
    assert User.objects.get(username="dora").check_password(word)


def test_people_are_deactivated_and_never_deleted(admin: Client, alice: User) -> None:
    job = factories.make_job(alice)
    assert admin.get(url("portal_user", "delete", alice.pk)).status_code == 403
    sent = {"username": "alice", "date_joined_0": "2026-01-01", "date_joined_1": "00:00"}
    assert admin.post(url("portal_user", "change", alice.pk), sent).status_code == 302
    job.refresh_from_db()
    assert job.state == JobState.HELD
    assert job.held_by_admin


def turn(admin: Client, user: User, active: bool) -> str:
    """Deactivate or reactivate somebody on the admin page; the message that follows."""
    sent = {"username": user.username, "date_joined_0": "2026-01-01", "date_joined_1": "00:00"}
    answer = admin.post(
        url("portal_user", "change", user.pk), sent | ({"is_active": "on"} if active else {}), follow=True
    )
    return " ".join(str(message) for message in answer.context["messages"])


def test_an_admin_is_told_what_a_deactivation_does_and_a_reactivation_undoes_just_that(
    admin: Client, alice: User, root_admin: User
) -> None:
    running, waiting, own_hold, others_hold = (factories.make_job(alice) for _number in range(4))
    factories.make_run(running, factories.make_node("alpha"))
    control.hold(own_hold, alice)
    control.hold(others_hold, root_admin)
    said = turn(admin, alice, active=False)
    assert f"1 job runs on: #{running.pk}." in said
    assert f"2 waiting jobs are on hold until the account is active again: #{waiting.pk}, #{own_hold.pk}." in said
    said = turn(admin, alice, active=True)
    assert (
        f"2 jobs that were on hold with the account wait for their start again: #{waiting.pk}, #{own_hold.pk}." in said
    )
    states = {job.pk: (job.state, job.held_by_user, job.held_by_admin) for job in Job.objects.all()}
    assert states[waiting.pk] == (JobState.QUEUED, False, False)
    assert states[own_hold.pk] == (JobState.HELD, True, False)
    assert states[others_hold.pk] == (JobState.HELD, False, True)
    assert [wording.event_sentence(event) for event in waiting.events.order_by("pk")] == [
        "Put on hold, as its owner's account was deactivated", "Released, as its owner's account is active again",
    ]  # fmt: skip


def test_what_an_admin_released_and_held_anew_stays_held(admin: Client, alice: User, root_admin: User) -> None:
    job = factories.make_job(alice)
    turn(admin, alice, active=False)
    assert control.release(Job.objects.get(pk=job.pk), root_admin)
    assert control.hold(Job.objects.get(pk=job.pk), root_admin)
    assert "No job was on hold for the account." in turn(admin, alice, active=True)
    assert Job.objects.get(pk=job.pk).state == JobState.HELD


def test_other_changes_of_an_account_touch_no_job(admin: Client, alice: User, root_admin: User) -> None:
    job = factories.make_job(alice)
    control.hold(job, root_admin)
    assert "hold" not in turn(admin, alice, active=True)
    assert Job.objects.get(pk=job.pk).state == JobState.HELD


def management(prefix: str, total: int = 0) -> dict[str, int]:
    return {f"{prefix}-TOTAL_FORMS": total, f"{prefix}-INITIAL_FORMS": 0}


def test_a_team_gets_members_and_a_quota(admin: Client, alice: User) -> None:
    sent = {
        "name": "speech", "shares": 1, "placement": "pack", **management("memberships", 1), **management("quota", 1),
        "memberships-0-user": alice.pk, "memberships-0-role": "lead", "memberships-0-shares": 1, "quota-0-gpus": 3,
    }  # fmt: skip
    assert admin.post(url("jobs_team", "add"), sent).status_code == 302
    team = Team.objects.get(name="speech")
    assert Membership.objects.get(team=team).role == "lead"
    assert team.quota.gpus == 3


def test_a_quota_is_of_one(admin: Client, alice: User, vision: Team) -> None:
    answer = admin.post(url("jobs_quota", "add"), {"user": alice.pk, "team": vision.pk, "gpus": 1})
    assert answer.status_code == 200
    assert admin.post(url("jobs_quota", "add"), {"gpus": 1}).status_code == 302
    assert admin.post(url("jobs_quota", "add"), {"gpus": 2}).status_code == 200  # one for everybody is enough
    assert Quota.objects.count() == 1


# --- hardware ---


@pytest.mark.parametrize("model", ["gpus_node", "gpus_gpu"])
def test_inventory_is_never_typed(admin: Client, model: str) -> None:
    """microsoft/pai#4985"""
    node = factories.make_node("alpha", gpus=1)
    assert admin.get(url(model, "add")).status_code == 403
    pk = node.pk if model == "gpus_node" else node.gpus.get().pk
    assert admin.post(url(model, "delete", pk), {"post": "yes"}).status_code == 403
    admin.post(url(model, "change", pk), {"uuid": "GPU-fake", "name": "fake", "memory_mib": 1, "labels": "{}",
                                          "reserved_millicpus": 0, "reserved_memory_mib": 0})  # fmt: skip
    assert Node.objects.get().name == "alpha"
    assert GPU.objects.get().uuid == "GPU-alpha-0000"


def act(admin: Client, model: str, action: str, pk: int, **more: str) -> None:
    admin.post(url(model, "changelist"), {"action": action, "_selected_action": pk, **more})


def test_nodes_are_cordoned_with_a_reason(admin: Client, root_admin: User) -> None:
    node = factories.make_node("alpha")
    act(admin, "gpus_node", "cordon", node.pk, reason="new disks")
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason) == (True, "new disks")
    entry = LogEntry.objects.get_for_object(node).first()
    assert entry is not None
    assert entry.actor == root_admin
    assert "cordoned" in entry.changes_dict
    act(admin, "gpus_node", "uncordon", node.pk)
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason) == (False, "")


def test_gpus_are_hidden_and_quarantines_lifted(admin: Client) -> None:
    gpu = factories.make_gpu(factories.make_node("alpha", gpus=0), 0, quarantine_reason="ECC errors")
    act(admin, "gpus_gpu", "hide", gpu.pk)
    act(admin, "gpus_gpu", "lift_quarantine", gpu.pk)
    gpu.refresh_from_db()
    assert (gpu.hidden, gpu.quarantine_reason) == (True, "")
    act(admin, "gpus_gpu", "show", gpu.pk)
    gpu.refresh_from_db()
    assert not gpu.hidden


def test_what_agents_write_is_not_in_the_audit_log(db: None) -> None:
    node = factories.make_node("alpha", gpus=0)
    before = LogEntry.objects.count()
    node.engine_version = "28.5"
    node.save()
    assert LogEntry.objects.count() == before


# --- mounts ---


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    """An allowed root with a directory, a link out of it, a file and an engine's socket."""
    allowed = tmp_path / "allowed"
    (allowed / "sets").mkdir(parents=True)
    (allowed / "out").symlink_to("/etc")
    (allowed / "docker.sock").touch()
    (allowed / "file").touch()
    settings.MOUNT_ROOTS = [str(allowed)]
    return allowed


@pytest.mark.parametrize("source", ["/", "/etc", "/var/run/docker.sock", "{root}/../..", "{root}/out", "{root}/out/",
                                    "{root}/docker.sock", "{root}/file", "sets", "{root}/a:b", "{root}x"])  # fmt: skip
def test_no_mount_leads_outside(admin: Client, root: Path, source: str) -> None:
    """ScottG489/conjob#11, brigadecore/brigade#1701"""
    answer = admin.post(url("jobs_mount", "add"), {"name": "bad", "source": source.format(root=root)})
    assert answer.status_code == 200
    assert "source" in answer.context["adminform"].form.errors
    assert not Mount.objects.exists()


@pytest.mark.parametrize("source", ["{root}/sets", "{root}/sets/", "{root}/only-on-the-hosts"])
def test_a_mount_below_a_root_is_fine(admin: Client, root: Path, source: str) -> None:
    sent = {"name": "good", "source": source.format(root=root), "read_only": "on"}
    answer = admin.post(url("jobs_mount", "add"), sent)
    assert answer.status_code == 302
    assert not Mount.objects.get().source.endswith("/")


# --- secrets ---


def test_a_registrys_password_goes_in_and_never_comes_out(admin: Client) -> None:
    sent = {"registry": "docker.io", "username": "puller", "password": "sesame"}
    assert admin.post(url("jobs_registrylogin", "add"), {**sent, "password": ""}).status_code == 200
    assert admin.post(url("jobs_registrylogin", "add"), sent).status_code == 302
    row = RegistryLogin.objects.get()
    assert secretbox.open_(row.password_encrypted) == "sesame"
    page = admin.get(url("jobs_registrylogin", "change", row.pk)).text
    assert "sesame" not in page
    assert row.password_encrypted not in page
    admin.post(url("jobs_registrylogin", "change", row.pk), {**sent, "username": "other", "password": ""})
    row.refresh_from_db()
    assert (row.username, secretbox.open_(row.password_encrypted)) == ("other", "sesame")
    assert "sesame" not in str(LogEntry.objects.values())
    assert row.password_encrypted not in str(LogEntry.objects.values())


def test_a_jobs_secrets_are_shown_to_no_admin(admin: Client, alice: User) -> None:
    """azkaban/azkaban#2396"""
    token = secretbox.seal("sesame")
    job = factories.make_job(alice, secrets_encrypted={"API_KEY": token})
    page = admin.get(url("jobs_job", "change", job.pk)).text
    assert "API_KEY" in page
    assert "sesame" not in page
    assert token not in page


def test_jobs_are_only_read(admin: Client, alice: User) -> None:
    job = factories.make_job(alice)
    assert admin.post(url("jobs_job", "change", job.pk), {"name": "changed"}).status_code == 403
    assert admin.post(url("jobs_job", "delete", job.pk), {"post": "yes"}).status_code == 403
    assert admin.get(url("jobs_job", "add")).status_code == 403


# --- the switch ---


def test_one_switch_pauses_all_starts(admin: Client, alice: User) -> None:
    answer = admin.get(url("jobs_cluster", "changelist"), follow=True)
    assert answer.redirect_chain[-1][0] == url("jobs_cluster", "change", 1)
    sent = {"half_life_days": 7, "protected_minutes": 10, "extension_hours": 0, "image_patterns": "", "cpu_weight": 0,
            "memory_weight": 0, "egress": "open"}  # fmt: skip
    admin.post(url("jobs_cluster", "change", 1), {"paused": "on", "pause_reason": "new disks", **sent})
    assert Cluster.get().paused
    people = Client()
    people.force_login(alice)
    assert "new disks" in people.get("/").text


# --- RQ ---


def rq_paths() -> list[str]:
    found = []
    for pattern in urlpatterns:
        route = str(pattern.pattern)
        for kind, value in (("<int:queue_index>", "0"), ("<str:job_id>", "x"), ("<str:result_id>", "x"),
                            ("<str:key>", "x"), ("<int:scheduler_index>", "0"), ("<int:connection_index>", "0"),
                            ("<str:scheduler_name>", "x"), ("<path:cron_job_name>", "x")):  # fmt: skip
            route = route.replace(kind, value)
        found.append(route.replace("^", "").replace("/?$", "").replace("(?P<token>[\\w]+)?", "token"))
    return found


@pytest.mark.parametrize("mount", ["/admin/django_rq/", "/admin/django_rq/dashboard/"])
def test_the_rq_pages_are_for_staff(client: Client, alice: User, mount: str) -> None:
    for path in rq_paths():
        assert client.get(mount + path).status_code in (302, 404), path
    client.force_login(alice)
    for path in rq_paths():
        assert client.get(mount + path).status_code == 404, path


@pytest.mark.parametrize("path", ["", "queues/0/", "queues/0/failed/", "workers/0/", "queues/0/x/", "schedulers/0/",
                                  "stats.json"])  # fmt: skip
def test_the_rq_pages_open_for_staff(admin: Client, path: str) -> None:
    assert admin.get("/admin/django_rq/" + path).status_code in (200, 404)


def test_without_redis_the_rq_pages_say_so(admin: Client, redis_server: Any) -> None:
    redis_server.stop()
    for path in ("", "queues/0/", "workers/0/"):
        answer = admin.get("/admin/django_rq/" + path)
        assert answer.status_code in (200, 503), path
        assert "Traceback" not in answer.text


def test_rq_s_model_has_no_rows_and_the_way_to_another_s_says_that_the_database_is_away(admin: Client) -> None:
    ways = {of: ContentType.objects.get(app_label=of[0], model=of[1]).pk
            for of in (("django_rq", "dashboard"), ("jobs", "mount"), ("sessions", "session"))}  # fmt: skip
    assert [admin.get(f"/admin/r/{way}/1/").status_code for way in ways.values()] == [404] * 3
    assert admin.get(f"/admin/r/0{ways['django_rq', 'dashboard']}/1/").status_code == 404  # the same number
    assert admin.get("/admin/r/nothing/1/").status_code == 404
    assert admin.get(f"/admin/r/{ways['sessions', 'session']}/%00/").status_code == 404

    def away(execute: Any, sql: str, *rest: Any) -> Any:
        if "jobs_mount" in sql:
            raise OperationalError("gone")
        return execute(sql, *rest)

    admin.raise_request_exception = False
    with connection.execute_wrapper(away):
        assert admin.get(f"/admin/r/{ways['jobs', 'mount']}/1/").status_code == 503


# --- staff that are no superusers ---


def test_who_may_change_accounts_makes_nobody_mightier(client: Client, alice: User, root_admin: User) -> None:
    clerk = factories.make_user("clerk", is_staff=True)
    clerk.user_permissions.add(*Permission.objects.filter(content_type__app_label="portal", codename__contains="user"))
    client.force_login(clerk)
    might = {"is_superuser": "on", "is_staff": "on", "may_run_as_root": "on", "uid": "0", "gid": "0"}
    kept = {"username": "alice", "email": "new@example.org", "is_active": "on", "date_joined_0": "2026-01-01",
            "date_joined_1": "00:00:00", "language": ""}  # fmt: skip
    assert client.post(url("portal_user", "change", alice.pk), {**kept, **might}).status_code == 302
    found = User.objects.get(pk=alice.pk)
    assert (found.email, found.is_superuser, found.is_staff, found.may_run_as_root, found.uid == 0) == (
        "new@example.org", False, False, False, False
    )  # fmt: skip
    mighty = [root_admin, clerk, factories.make_user("boss", is_staff=True),
              factories.make_user("rooted", may_run_as_root=True)]  # fmt: skip
    new = {"password1": "a much better phrase", "password2": "a much better phrase"}
    for user in mighty:
        for path in (f"/admin/portal/user/{user.pk}/password/", url("portal_user", "change", user.pk)):
            assert client.post(path, {**kept, **new, "username": "taken"}).status_code == 403, (user.username, path)
        found = User.objects.get(pk=user.pk)
        assert found.username == user.username
        assert found.check_password(factories.PASSWORD)


def test_a_change_is_noted_with_the_address_that_the_server_knows(admin: Client) -> None:
    """Whoever writes X-Forwarded-For could otherwise seem to come from anywhere, or let PostgreSQL refuse it."""
    odd = {"X-Forwarded-For": "garbage", "X-Forwarded-Port": "9" * 30}
    node = factories.make_node("alpha")
    cordons = {"action": "cordon", "_selected_action": node.pk, "reason": "new disks"}
    assert admin.post(url("gpus_node", "changelist"), cordons, headers=odd).status_code == 302
    entry = LogEntry.objects.get_for_object(node).filter(action=LogEntry.Action.UPDATE).get()
    assert (entry.remote_addr, entry.remote_port) == ("127.0.0.1", None)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("", {}), ("{}", {}), ('{"disk": "nvme"}', {"disk": "nvme"}), ("[1]", None), ('"x"', None), ('{"a": 1}', None)],
)
def test_labels_of_a_host_are_texts_by_name_or_none(admin: Client, typed: str, kept: dict[str, str] | None) -> None:
    node = factories.make_node("alpha", labels={"old": "1"})
    fields = {"reserved_millicpus": 0, "reserved_memory_mib": 0, "labels": typed, "cordon_reason": ""}
    answer = admin.post(url("gpus_node", "change", node.pk), fields)
    assert answer.status_code == (200 if kept is None else 302)
    node.refresh_from_db()
    assert node.labels == ({"old": "1"} if kept is None else kept)


def test_an_address_that_names_no_field_is_missing(admin: Client, root_admin: User) -> None:
    assert admin.get(url("portal_user", "delete", root_admin.pk), {"_to_field": ""}).status_code in (200, 404)
    assert admin.post(url("portal_user", "delete", root_admin.pk), {"_to_field": ""}).status_code == 404
