"""Forms of the admin pages: quantities as people write them, plain sentences for mistakes, words for codes."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from jobs.adminforms import registry_name
from jobs.models import Quota, RegistryLogin, Team
from jobs.request import registry_of
from jobs.states import EndReason, JobState
from portal.models import User
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client, root_admin: User) -> Client:
    client.force_login(root_admin)
    return client


def errors(answer: Any) -> list[str]:
    form = answer.context["adminform"].form
    return [sentence for found in form.errors.values() for sentence in found]


def test_quotas_are_typed_as_people_write_sizes_and_shown_so_again(admin: Client, vision: Team) -> None:
    sent = {"team": vision.pk, "millicpus": "1.5", "memory_mib": "16 GiB", "limit_seconds": "2h"}
    assert admin.post(reverse("admin:jobs_quota_add"), sent).status_code == 302
    quota = Quota.objects.get()
    assert (quota.millicpus, quota.memory_mib, quota.limit_seconds) == (1500, 16384, 7200)
    page = admin.get(reverse("admin:jobs_quota_change", args=[quota.pk])).text
    assert all(f'value="{text}"' in page for text in ("1.5", "16 GiB", "2h"))
    team = admin.get(reverse("admin:jobs_team_change", args=[vision.pk])).text
    assert 'value="16 GiB"' in team


def test_an_empty_quota_field_sets_no_limit(admin: Client, alice: User) -> None:
    assert admin.post(reverse("admin:jobs_quota_add"), {"user": alice.pk, "gpus": "2"}).status_code == 302
    assert Quota.objects.get().millicpus is None


def test_a_second_quota_for_everybody_is_refused_in_a_plain_sentence(admin: Client) -> None:
    Quota.objects.create(gpus=2)
    answer = admin.post(reverse("admin:jobs_quota_add"), {"gpus": "4"})
    assert errors(answer) == ["There is a quota for every user already: change it, or name a user or team."]


def test_a_hosts_reserve_is_typed_as_people_write_sizes(admin: Client) -> None:
    node = factories.make_node("alpha")
    address = reverse("admin:gpus_node_change", args=[node.pk])
    sent = {"reserved_millicpus": "1.5", "reserved_memory_mib": "2 GiB", "labels": "{}", "cordon_reason": ""}
    assert admin.post(address, sent).status_code == 302
    node.refresh_from_db()
    assert (node.reserved_millicpus, node.reserved_memory_mib) == (1500, 2048)
    page = admin.get(address).text
    assert 'value="2 GiB"' in page
    assert "32 CPUs" in page


@pytest.mark.parametrize(
    ("typed", "name"),
    [("https://Registry.example.org/v2/", "registry.example.org"), ("docker.io", "docker.io"),
     ("https://index.docker.io/v1/", "docker.io"), ("localhost:5000", "localhost:5000"), ("my registry", None),
     ("library", None), ("", None), ("https://", None)],
)  # fmt: skip
def test_registries_are_kept_as_image_names_have_them(typed: str, name: str | None) -> None:
    assert registry_name(typed) == name


def test_an_address_of_a_registry_is_saved_as_its_name_and_nonsense_is_refused(admin: Client) -> None:
    sent = {"registry": "https://Registry.example.org/v2/", "username": "u", "password": "p"}
    assert admin.post(reverse("admin:jobs_registrylogin_add"), sent).status_code == 302
    assert RegistryLogin.objects.get().registry == registry_of("Registry.example.org/team/image:1")
    answer = admin.post(reverse("admin:jobs_registrylogin_add"), {**sent, "registry": "my registry"})
    assert "registry.example.org:5000" in errors(answer)[0]


def test_admin_lists_say_states_and_reasons_in_words(admin: Client, alice: User) -> None:
    factories.make_job(alice, state=JobState.FAILED, end_reason=EndReason.OOM_KILLED)
    page = admin.get(reverse("admin:jobs_job_changelist")).text
    assert "out of memory" in page
    assert ">OOM_KILLED<" not in page
    narrowed = admin.get(reverse("admin:jobs_job_changelist"), {"end_reason": "OOM_KILLED", "state": "FAILED"})
    assert len(narrowed.context["cl"].result_list) == 1


def test_the_groups_of_the_admin_pages_have_names(admin: Client) -> None:
    page = admin.get("/admin/").text
    assert "Task queues" in page
    assert "People" in page
    assert "Django_Rq" not in page
