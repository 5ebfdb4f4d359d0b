"""The form: what is typed becomes the request, what is wrong stands at its field, and pressing twice gives one job."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs import secretbox
from jobs.forms import JobForm
from jobs.models import Cluster, Job, Mount, Quota, Team
from jobs.quotas import Refusal
from jobs.states import JobState
from jobs.submit import Refused
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


def typed(team: Team, **changes: Any) -> dict[str, Any]:
    """A filled-in form as a browser sends it."""
    return {
        "submission": str(uuid.uuid4()), "name": "train", "team": str(team.pk), "image": "busybox:latest",
        "command_kind": "script", "script": "echo hello\r\necho bye\r\n", "entrypoint": "", "arguments": "",
        "gpus": "1", "gpu_model": "", "gpu_memory": "", "cpus": "4", "memory": "16 GiB", "shm": "", "limit": "2h",
        "priority": "1", "grace": "30s", "start_after": "", **changes,
    }  # fmt: skip


def rows(*variables: tuple[Any, ...]) -> dict[str, str]:
    """Environment rows: (name, value) or (name, value, secret) or (name, value, secret, kept)."""
    found: dict[str, str] = {}
    for number, (name, value, *rest) in enumerate(variables):
        found |= {f"env-{number}-name": name, f"env-{number}-value": value}
        if rest and rest[0]:
            found[f"env-{number}-secret"] = "1"
        if len(rest) > 1:
            found[f"env-{number}-kept"] = str(rest[1])
    return found


def form_of(user: User, team: Team, **changes: Any) -> JobForm:
    return JobForm(typed(team, **changes), user=user)


def test_a_filled_in_form_is_the_request(alice: User, vision: Team) -> None:
    form = form_of(alice, vision, gpus="2", gpu_memory="24", cpus="1.5", limit="90", shm="512 MiB", grace="1m")
    assert form.is_valid(), form.errors
    request = form.to_request()
    assert (request.gpus, request.gpu_memory_mib, request.millicpus, request.memory_mib) == (2, 24576, 1500, 16384)
    assert (request.shm_mib, request.limit_seconds, request.grace_seconds) == (512, 5400, 60)
    assert request.script == "echo hello\necho bye\n"  # a shell reads no CR


def test_empty_shared_memory_is_half_of_the_memory(alice: User, vision: Team) -> None:
    """pytorch/pytorch#5040: 64 MB of /dev/shm starve data loaders."""
    form = form_of(alice, vision)
    assert form.is_valid()
    assert form.to_request().shm_mib == 8192


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("2h", 7200), ("1d 4h", 100800), ("45", 2700)])
def test_time_limits_as_people_write_them(alice: User, vision: Team, text: str, seconds: int) -> None:
    form = form_of(alice, vision, limit=text)
    assert form.is_valid(), form.errors
    assert form.to_request().limit_seconds == seconds


@pytest.mark.parametrize(
    ("field", "text"),
    [("limit", "soon"), ("memory", "much"), ("cpus", "-1"), ("gpus", "-1"), ("gpus", "two"), ("grace", "99h"),
     ("shm", "32 GiB"), ("name", ""), ("image", "Bad Image"), ("script", " \r\n"), ("priority", "9"),
     ("start_after", "tomorrow"), ("memory", "9" * 39)],
)  # fmt: skip
def test_what_is_wrong_stands_at_its_field(alice: User, vision: Team, field: str, text: str) -> None:
    form = form_of(alice, vision, **{field: text})
    assert not form.is_valid()
    assert list(form.errors) == [field]
    assert all(form.errors[field])


def test_all_problems_are_shown_at_once(alice: User, vision: Team) -> None:
    form = form_of(alice, vision, name="", image="UPPER", shm="32 GiB", **rows(("1X", "")))
    assert set(form.errors) == {"name", "image", "shm", "environment"}


def test_a_field_that_cannot_be_read_hides_no_other_problem(client: Client, alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, gpus=2)
    client.force_login(alice)
    sent = typed(vision, image="UPPER", gpus="4", memory="much", shm="32 GiB", command_kind="image", arguments="it's")
    answer = client.post("/jobs/new/", sent)
    assert set(answer.context["form"].errors) == {"image", "gpus", "memory", "arguments"}


def test_the_images_own_entry_point_gets_words_as_a_shell_splits_them(alice: User, vision: Team) -> None:
    """docker/docker-py#734"""
    form = form_of(alice, vision, command_kind="image", script="", entrypoint="python -u", arguments="a 'b c' $HOME")
    assert form.is_valid(), form.errors
    request = form.to_request()
    assert request.entrypoint == ("python", "-u")
    assert request.arguments == ("a", "b c", "$HOME")


@pytest.mark.parametrize("field", ["entrypoint", "arguments"])
def test_an_unbalanced_quote_is_told_at_its_field(client: Client, alice: User, vision: Team, field: str) -> None:
    """docker/docker-py#536"""
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, command_kind="image", script="", **{field: "echo it's"}))
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    assert not Job.objects.exists()


def test_a_script_may_have_a_lone_quote(alice: User, vision: Team) -> None:
    form = form_of(alice, vision, script="echo it's")
    assert form.is_valid()


VALUES = ["x=y=z", "one\ntwo", "žluťoučký 🎯", "", '"q"', " leading", "trailing ", "\n begins with a line"]


@pytest.mark.parametrize("value", VALUES)
def test_values_of_variables_arrive_as_typed(alice: User, vision: Team, value: str) -> None:
    """docker/docker-py#1317, moby/moby#12997"""
    form = form_of(alice, vision, **rows(("A", value.replace("\n", "\r\n"))))
    assert form.is_valid(), form.errors
    assert form.to_request().environment == (("A", value),)


@pytest.mark.parametrize("name", ["A=B", "1X", "A\0", "Ä", "A B", "NVIDIA_VISIBLE_DEVICES", "cuda_visible_devices ",
                                  "NVIDIA_DRIVER_CAPABILITIES", "DOCKYARD_JOB"])  # fmt: skip
def test_bad_names_of_variables_are_refused_with_their_row(alice: User, vision: Team, name: str) -> None:
    """coreemu/core#895; microsoft/pai#1667: a user's NVIDIA_VISIBLE_DEVICES would win over the allocation."""
    form = form_of(alice, vision, **rows(("GOOD", "1"), ("", ""), (name, "all")))
    assert list(form.errors) == ["environment"]
    assert "Row 2" in form.errors["environment"][0]


def test_a_value_without_a_name_and_a_nul_are_refused(alice: User, vision: Team) -> None:
    form = form_of(alice, vision, **rows(("", "value"), ("A", "\0")))
    assert len(form.errors["environment"]) == 2


def test_the_same_name_twice_is_refused(alice: User, vision: Team) -> None:
    assert form_of(alice, vision, **rows(("A", "1"), ("A", "2"))).errors["environment"]


# --- rights and limits ---


def test_only_ones_own_teams_can_be_charged(alice: User, charlie: User, vision: Team) -> None:
    audio = Team.objects.get(name="audio")
    assert list(form_of(alice, audio).errors) == ["team"]
    assert [team.name for team in form_of(alice, vision).fields["team"].queryset] == ["vision"]  # type: ignore[attr-defined]


def test_only_mounts_of_ones_teams_are_offered(alice: User, charlie: User, vision: Team) -> None:
    everyone = Mount.objects.create(name="shared", source="/data/shared")
    secret = Mount.objects.create(name="secret", source="/data/secret")
    secret.teams.add(Team.objects.get(name="audio"))
    assert list(form_of(alice, vision).fields["mounts"].queryset) == [everyone]  # type: ignore[attr-defined]
    assert list(form_of(alice, vision, mounts=[str(secret.pk)]).errors) == ["mounts"]


def test_whose_jobs_run_as_root_gets_no_mounts(alice: User, vision: Team) -> None:
    mount = Mount.objects.create(name="shared", source="/data/shared")
    alice.may_run_as_root = True
    alice.save()
    assert list(form_of(alice, vision, mounts=[str(mount.pk)]).errors) == ["mounts"]


def test_no_time_limit_needs_a_permission(client: Client, alice: User, vision: Team) -> None:
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, limit="none"))
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["limit"]
    User.objects.filter(pk=alice.pk).update(may_run_unlimited=True)
    assert client.post("/jobs/new/", typed(vision, limit="none")).status_code == 302
    assert Job.objects.get().limit_seconds is None


def test_priorities_above_ones_ceiling_are_not_offered(alice: User, vision: Team) -> None:
    Quota.objects.create(user=alice, priority=1)
    form = form_of(alice, vision, priority="2")
    assert [value for value, _label in form.fields["priority"].choices] == [0, 1]  # type: ignore[attr-defined]
    assert list(form.errors) == ["priority"]


def test_a_quota_refuses_at_its_field_with_numbers(client: Client, alice: User, vision: Team) -> None:
    """codalab/codalab-worksheets#861: what can never run is refused at the form."""
    Quota.objects.create(user=alice, gpus=2, memory_mib=8192)
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, gpus="4"))
    form = answer.context["form"]
    assert answer.status_code == 422
    assert form.errors["gpus"] == ["Your quota is 2 GPUs at once; 4 GPUs asked. 2 GPUs would pass."]
    assert form.errors["memory"] == ["Your quota is 8 GiB of memory at once; 16 GiB asked. 8 GiB would pass."]
    assert "You may use up to 2 GPUs; 0 in use." in answer.text
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("field", "at"),
    [("gpus", "gpus"), ("millicpus", "cpus"), ("memory_mib", "memory"), ("limit_seconds", "limit"),
     ("priority", "priority"), ("", "__all__")],
)  # fmt: skip
def test_every_refusal_stands_somewhere(alice: User, vision: Team, field: str, at: str) -> None:
    form = form_of(alice, vision)
    assert form.is_valid()
    form.refuse(Refused([Refusal(code="QUOTA_QUEUED", field=field, scope="user", name="alice", asked=1, limit=1)]))
    assert list(form.errors) == [at]


def test_an_image_that_is_not_allowed_is_refused_at_its_field(client: Client, alice: User, vision: Team) -> None:
    Cluster.objects.create(pk=1, image_patterns="registry.example.org/*")
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision))
    assert list(answer.context["form"].errors) == ["image"]


def test_a_refused_form_keeps_what_was_typed_but_no_secret(client: Client, alice: User, vision: Team) -> None:
    """ansible/awx#10352: a secret is not to be found in the page that shows the form again."""
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, name="", script="echo precious", gpus="3",
                                             **rows(("PLAIN", "visible-value"), ("KEY", "sesame", True))))  # fmt: skip
    assert answer.status_code == 422
    assert "echo precious" in answer.text
    assert 'value="3"' in answer.text
    assert "visible-value" in answer.text
    assert "KEY" in answer.text
    assert "enter again" in answer.text
    assert "sesame" not in answer.text


# --- submitting ---


def test_a_job_is_submitted_and_shown(client: Client, alice: User, vision: Team) -> None:
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, **rows(("SEED", "1"), ("KEY", "sesame", True))))
    job = Job.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/jobs/{job.pk}/"
    assert (job.owner, job.team, job.state, job.environment) == (alice, vision, JobState.QUEUED, {"SEED": "1"})
    assert list(job.secrets_encrypted) == ["KEY"]
    assert "sesame" not in str(job.secrets_encrypted)
    assert secretbox.open_(job.secrets_encrypted["KEY"]) == "sesame"


def test_sending_the_form_twice_gives_one_job(client: Client, alice: User, vision: Team) -> None:
    client.force_login(alice)
    sent = typed(vision)
    first, second = client.post("/jobs/new/", sent), client.post("/jobs/new/", sent)
    assert first["Location"] == second["Location"]
    assert Job.objects.count() == 1
    client.post("/jobs/new/", typed(vision))
    assert Job.objects.count() == 2


def test_every_new_form_has_a_submission_of_its_own(client: Client, alice: User) -> None:
    client.force_login(alice)
    ids = {client.get("/jobs/new/").context["form"]["submission"].value() for _ in range(2)}
    assert len(ids) == 2


def test_who_is_in_no_team_is_told_what_to_do(client: Client) -> None:
    client.force_login(factories.make_user("newcomer"))
    assert "You are in no team yet" in client.get("/jobs/new/").text


def test_start_after_is_in_the_browsers_zone(client: Client, alice: User, vision: Team) -> None:
    client.force_login(alice)
    client.cookies["dockyard_zone"] = "Asia/Shanghai"
    tomorrow = timezone.now().date() + timedelta(days=1)
    client.post("/jobs/new/", typed(vision, start_after=f"{tomorrow}T18:00"))
    moment = Job.objects.get().start_after
    assert moment is not None
    assert moment.isoformat() == f"{tomorrow}T10:00:00+00:00"


# --- looking before ---


def test_the_panel_says_where_it_fits_now(client: Client, alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=2)
    client.force_login(alice)
    answer = client.post("/jobs/preview/", typed(vision, name="", image="", script=""), headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert answer.context["verdict"] == "now"
    assert "alpha" in answer.text
    assert "<html" not in answer.text
    assert "Fits now" not in answer.text
    assert "It would fit now on" in answer.text
    assert "still to fill in: Name, Image, Script" in answer.text


def test_a_new_secret_without_a_value_is_not_asked_for_again(alice: User, vision: Team) -> None:
    form = form_of(alice, vision, **rows(("NEW", "", True)))
    assert form.errors["environment"] == ["Row 1: enter the value of the secret NEW."]


@pytest.mark.parametrize("wrong", [
    {"image": "Foo BAR"}, {"shm": "-1"}, {"shm": "99 GiB"}, {"grace": "abc"}, {"grace": "2h"}, rows(("1BAD", "x")),
    rows(("NEW", "", True)), {"command_kind": "image", "arguments": "it's"}, {"name": "a\x01"}, {"script": "\0"},
])  # fmt: skip
def test_the_panel_never_promises_a_start_to_a_form_that_would_be_refused(
    client: Client, alice: User, vision: Team, wrong: dict[str, str]
) -> None:
    factories.make_node("alpha", gpus=2)
    client.force_login(alice)
    refused = client.post("/jobs/new/", typed(vision, **wrong))
    assert refused.status_code == 422
    said = [message for errors in refused.context["form"].errors.values() for message in errors]
    panel = client.post("/jobs/preview/", typed(vision, **wrong))
    assert panel.context["verdict"] == "now"
    assert [sentence for _label, sentence in panel.context["to_do"].wrong] == said
    assert "Before it can be submitted:" in panel.text
    assert "Fits now" not in panel.text
    assert "tone-green" not in panel.text
    assert not panel.context["command"]


def test_the_panel_of_a_job_that_waits_also_names_what_is_missing(client: Client, alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(alice, vision), node)
    client.force_login(alice)
    panel = client.post("/jobs/preview/", typed(vision, name=""))
    assert panel.context["verdict"] == "waits"
    assert "Before it can be submitted:" in panel.text


@pytest.mark.parametrize("field", ["gpu_model", "gpu_memory"])
def test_what_is_asked_of_no_gpu_is_told_and_not_dropped(client: Client, alice: User, vision: Team, field: str) -> None:
    factories.make_node("alpha", gpus=1)
    client.force_login(alice)
    value = {"gpu_model": "NVIDIA A100-SXM4-40GB", "gpu_memory": "24"}[field]
    answer = client.post("/jobs/new/", typed(vision, gpus="0", **{field: value}))
    assert list(answer.context["form"].errors) == ["gpus"]
    assert client.post("/jobs/preview/", typed(vision, gpus="0", **{field: value})).context["verdict"] == ""


def test_an_elastic_size_of_no_gpus_is_told_and_not_dropped(alice: User, vision: Team) -> None:
    assert list(form_of(alice, vision, gpus="0", least_gpus="1").errors) == ["least_gpus"]


@pytest.mark.parametrize(("year", "right"), [(2, False), (0.9, True), (-0.1, False), (7990, False)])
def test_a_start_time_that_can_only_be_a_slip_is_told(alice: User, vision: Team, year: float, right: bool) -> None:
    now = timezone.now()
    at = now.replace(year=9999) if year > 1000 else now + timedelta(days=365 * year)
    form = form_of(alice, vision, start_after=f"{at:%Y-%m-%dT%H:%M}")
    assert list(form.errors) == ([] if right else ["start_after"])


def test_a_start_time_that_is_just_over_is_taken(alice: User, vision: Team) -> None:
    assert form_of(alice, vision, start_after=f"{timezone.now():%Y-%m-%dT%H:%M}").is_valid()


def test_the_panel_says_never_and_what_would_pass(client: Client, alice: User, vision: Team) -> None:
    """codalab/codalab-worksheets#861, microsoft/pai#4985"""
    factories.make_node("alpha", gpus=2)
    client.force_login(alice)
    answer = client.post("/jobs/preview/", typed(vision, gpus="4"))
    assert answer.context["verdict"] == "never"
    assert "No host has 4 GPUs; the largest, alpha, has 2 GPUs." in answer.text


def test_the_panel_says_what_the_job_would_wait_for(client: Client, alice: User, bob: User, vision: Team) -> None:
    node = factories.make_node("alpha", gpus=1)
    factories.make_run(factories.make_job(bob, vision), node)
    client.force_login(alice)
    answer = client.post("/jobs/preview/", typed(vision))
    assert answer.context["verdict"] == "waits"
    assert answer.context["sentences"]


def test_the_panel_names_numbers_that_cannot_be_read(client: Client, alice: User, vision: Team) -> None:
    client.force_login(alice)
    answer = client.post("/jobs/preview/", typed(vision, memory="much"))
    assert answer.context["verdict"] == ""
    assert "no size of memory" in answer.text


def test_looking_without_javascript_submits_nothing(client: Client, alice: User, vision: Team) -> None:
    factories.make_node("alpha")
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, check="1"))
    assert answer.status_code == 200
    assert answer.context["verdict"] == "now"
    assert not Job.objects.exists()


def test_the_panel_shows_the_job_as_a_command_without_its_secret(client: Client, alice: User, vision: Team) -> None:
    factories.make_node("alpha")
    client.force_login(alice)
    answer = client.post("/jobs/preview/", typed(vision, **rows(("KEY", "sesame", True))))
    assert "dockyard submit" in answer.context["command"]
    assert "--secret KEY" in answer.context["command"]
    assert "sesame" not in answer.text


# --- cloning ---


@pytest.fixture
def original(alice: User, vision: Team) -> Job:
    return factories.make_job(
        alice, vision, name="first", script="echo 1\n", gpus=2, environment={"SEED": " 1"}, memory_mib=1500,
        secrets_encrypted={"KEY": secretbox.seal("sesame")}, limit_seconds=5400,
    )  # fmt: skip


def test_a_clone_starts_from_the_job_without_its_secrets(client: Client, alice: User, original: Job) -> None:
    """neuro-inc/apolo-cli#2376: the clone form shows no secret."""
    client.force_login(alice)
    answer = client.get(f"/jobs/new/?clone={original.pk}&memory=24 GiB")
    form = answer.context["form"]
    assert (form["name"].value(), form["gpus"].value(), form["limit"].value()) == ("first", 2, "1h 30m")
    assert form["memory"].value() == "24 GiB"  # as a suggestion's link asks
    assert f"kept from #{original.pk}" in answer.text
    assert "sesame" not in answer.text


def test_the_owner_keeps_the_secret_of_the_original(client: Client, alice: User, vision: Team, original: Job) -> None:
    client.force_login(alice)
    sent = typed(vision, cloned_from=str(original.pk), **rows(("KEY", "", True, original.pk)))
    assert client.post("/jobs/new/", sent).status_code == 302
    clone = Job.objects.latest("id")
    assert clone.cloned_from == original
    assert secretbox.open_(clone.secrets_encrypted["KEY"]) == "sesame"


def test_a_team_mate_must_enter_the_secret_again(client: Client, bob: User, vision: Team, original: Job) -> None:
    client.force_login(bob)
    assert "enter again" in client.get(f"/jobs/new/?clone={original.pk}").text
    for kept in ((), (original.pk,)):  # also one who makes up the hidden field
        sent = typed(vision, cloned_from=str(original.pk), **rows(("KEY", "", True, *kept)))
        answer = client.post("/jobs/new/", sent)
        assert answer.status_code == 422
        assert "Row 1: enter the value of KEY again" in answer.context["form"].errors["environment"][0]
    assert Job.objects.count() == 1


def test_a_strangers_job_cannot_be_cloned(client: Client, charlie: User, original: Job) -> None:
    client.force_login(charlie)
    assert client.get(f"/jobs/new/?clone={original.pk}").status_code == 404
    sent = typed(Team.objects.get(name="audio"), cloned_from=str(original.pk))
    assert client.post("/jobs/new/", sent).status_code == 404


def test_a_link_fills_in_numbers_but_nothing_that_runs(client: Client, alice: User) -> None:
    client.force_login(alice)
    form = client.get("/jobs/new/?gpus=2&script=rm+-rf+/&image=evil").context["form"]
    assert form["gpus"].value() == "2"
    assert not form["script"].value()
    assert not form["image"].value()


def test_markup_in_a_name_is_shown_as_text(client: Client, alice: User, vision: Team) -> None:
    """dkron-io/dkron#921"""
    client.force_login(alice)
    answer = client.post("/jobs/new/", typed(vision, name="<script>alert(1)</script>", image="",
                                             **rows(("<img src=x onerror=alert(1)>", "</textarea><b>"))))  # fmt: skip
    for markup in ("<script>alert", "<img src=x", "</textarea><b>"):
        assert markup not in answer.text


# --- many mistakes at once ---


def test_what_hosts_and_quotas_never_allow_is_told_beside_other_mistakes(alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=4)
    Quota.objects.create(user=alice, millicpus=2000)
    form = form_of(alice, vision, name="", memory="lots", gpus=9, cpus="3", image="Bad Image", limit="soon")
    codes = {name: {error.code for error in found} for name, found in form.errors.as_data().items()}
    assert codes == {
        "name": {"NAME_EMPTY"}, "memory": {"BAD_SIZE"}, "gpus": {"TOO_LARGE_GPUS"}, "cpus": {"QUOTA_CPUS"},
        "image": {"BAD_IMAGE_REF"}, "limit": {"BAD_DURATION"},
    }  # fmt: skip


def test_hosts_are_not_asked_for_what_is_wrong_in_itself(alice: User, vision: Team) -> None:
    factories.make_node("alpha", gpus=4)
    assert set(form_of(alice, vision, gpus=4, gpu_percent="150").errors) == {"gpu_percent"}
    assert set(form_of(alice, vision, gpus="many", gpu_memory="900").errors) == {"gpus"}
    assert set(form_of(alice, vision, gpus=9, least_gpus=12).errors) == {"least_gpus"}
    assert set(form_of(alice, vision, gpus=9, gpu_percent="50").errors) == {"gpus", "gpu_percent"}


def test_who_is_in_no_team_is_told_the_other_mistakes_too(db: None) -> None:
    factories.make_node("alpha", gpus=4)
    dora = factories.make_user("dora")
    assert {"team", "name", "gpus"} <= set(JobForm({"name": "", "gpus": 9, "cpus": 1, "memory": 1}, user=dora).errors)
