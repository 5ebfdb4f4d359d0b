"""Below the fold of the form: parts of GPUs, labels, elastic sizes, and what others may do to the job."""

import pytest
from django.test import Client

from jobs.forms import JobForm
from jobs.models import Job, Team
from portal.models import User
from tests import factories
from tests.test_forms import form_of, typed

pytestmark = pytest.mark.django_db

MORE = {
    "node_labels": ["disk=nvme"],
    "preemptible": "on",
    "movable": "on",
    "interactive": "on",
    "stop_signal": "SIGUSR1",
}


def test_only_what_hosts_have_is_offered(alice: User, vision: Team) -> None:
    node = factories.make_node("alpha")
    never = {"gpu_percent", "gpu_profile", "node_labels"}
    assert never.isdisjoint(form_of(alice, vision).fields)
    node.gpus.filter(index=0).update(slots=4)
    factories.make_gpu(node, 4, uuid="MIG-1", profile="1g.10gb")
    type(node).objects.update(labels={"disk": "nvme"})
    form = form_of(alice, vision)
    assert never <= set(form.fields)
    assert [value for value, _label in form.fields["gpu_profile"].choices] == ["", "1g.10gb"]  # type: ignore[attr-defined]


def test_what_is_asked_becomes_the_request_and_a_clone_asks_for_the_same(alice: User, vision: Team) -> None:
    node = factories.make_node("alpha", labels={"disk": "nvme"})
    node.gpus.update(slots=2)
    form = form_of(alice, vision, gpu_percent="50", **MORE)
    assert form.is_valid(), form.errors
    asked = form.to_request()
    assert (asked.gpu_milli, asked.node_labels, asked.stop_signal) == (500, ("disk=nvme",), "SIGUSR1")
    assert (asked.preemptible, asked.movable, asked.interactive) == (True, True, True)
    job = factories.make_job(alice, vision, gpu_milli=500, node_labels=["gone=1"], movable=True, least_gpus=1)
    clone = JobForm(user=alice, original=job)
    assert {name: clone[name].value() for name in ("gpu_percent", "node_labels", "movable", "least_gpus")} == {
        "gpu_percent": "50", "node_labels": ["gone=1"], "movable": True, "least_gpus": 1
    }  # fmt: skip
    assert clone.has_more()
    assert not JobForm(user=alice).has_more()


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [("gpu_percent", {"gpus": "2", "gpu_percent": "50"}, "part of one GPU"),
     ("gpu_percent", {"gpu_percent": "0"}, "between 1 and 100"),
     ("least_gpus", {"gpus": "2", "least_gpus": "3"}, "From 1 to the number of GPUs, 2"),
     ("stop_signal", {"stop_signal": "SIGKILL"}, "SIGKILL")],
)  # fmt: skip
def test_what_is_wrong_stands_at_its_field(
    field: str, changes: dict[str, str], words: str, alice: User, vision: Team
) -> None:
    factories.make_node("alpha").gpus.update(slots=2)
    form = form_of(alice, vision, **changes)
    assert not form.is_valid()
    assert words in str(form.errors[field])


def test_the_panel_says_how_many_gpus_an_elastic_job_would_get(alice: User, vision: Team, client: Client) -> None:
    factories.make_node("alpha", gpus=3)
    client.force_login(alice)
    said = client.post("/jobs/preview/", typed(vision, gpus="4", least_gpus="1", cpus="1", memory="1 GiB"))
    assert "with 3 GPUs" in said.content.decode()
    client.post("/jobs/new/", typed(vision, gpus="4", least_gpus="1", cpus="1", memory="1 GiB"))
    assert Job.objects.get().least_gpus == 1
