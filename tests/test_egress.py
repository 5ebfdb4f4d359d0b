"""Where jobs' packets may go: the rules, who sets them, and what of it a job chooses."""

import socket
from typing import Any

import pytest
from django.test import Client

from jobs import egress, firewall
from jobs.models import Cluster, Job
from tests import factories

ALWAYS = ["-A c -d 169.254.0.0/16 -j DROP", "-A c -m conntrack --ctstate DNAT -j DROP"]


@pytest.mark.parametrize(
    ("policy", "rest"),
    [
        (egress.OPEN, []),
        (egress.LISTED, ["-A c -d 10.1.0.0/16 -j RETURN", "-A c -d 10.2.3.4/32 -j RETURN", "-A c -j DROP"]),
        (egress.NOTHING, ["-A c -j DROP"]),
    ],
)
def test_the_portal_s_own_services_are_closed_whatever_is_allowed(policy: str, rest: list[str]) -> None:
    database = "-A c -d 10.1.0.5/32 -p tcp -m tcp --dport 5432 -j DROP"
    allowed = egress.networks("10.1.2.3/16\n10.2.3.4, ")
    assert egress.rules("c", [("10.1.0.5", 5432)], policy, allowed) == [*ALWAYS, database, *rest]


@pytest.mark.parametrize("text", ["10.0.0.0/33", "example.org", "fe80::/10", "10.0.0.1 -j ACCEPT"])
def test_what_is_no_network_becomes_no_rule(text: str) -> None:
    with pytest.raises(egress.BadNetworks):
        egress.networks(text)


def test_services_on_other_hosts_are_found(settings: Any) -> None:
    settings.REDIS_URL, settings.DOCKER_HOST = "redis://:x@10.9.0.1:6380/0", "tcp://10.9.0.2:2376"
    settings.DATABASES["default"] = {**settings.DATABASES["default"], "HOST": "10.9.0.3", "PORT": 5433}
    settings.PUBLIC_URL = "https://10.9.0.4"
    stores = {("10.9.0.1", 6380), ("10.9.0.2", 2376), ("10.9.0.3", 5433)}
    assert set(firewall._services()) == {*stores, ("10.9.0.4", 443)}
    settings.JOBS_REACH_PORTAL = True
    assert set(firewall._services()) == stores


def test_rules_outlive_a_name_service_that_is_away(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before holds on; what never was found closes the host, if it is something that it calls itself."""
    answers: list[Any] = [[(2, 1, 6, "", ("10.9.0.1", 0))]]

    def answer(*_asked: Any) -> Any:
        if not answers:
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
        return answers.pop()

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    settings.REDIS_URL, settings.PUBLIC_URL = "redis://redis.example.org:6380/0", "http://dockyard.example.org"
    settings.DATABASES["default"] = {**settings.DATABASES["default"], "HOST": "/run/postgresql"}
    for _look in range(2):
        assert list(firewall._services()) == [("10.9.0.1", 6380)]
    settings.REDIS_URL = "redis://other.example.org:6380/0"
    with pytest.raises(firewall.NotProtected, match=r"other\.example\.org cannot be looked up"):
        list(firewall._services())


@pytest.mark.django_db
def test_a_list_that_cannot_be_read_allows_nothing() -> None:
    Cluster.get()
    Cluster.objects.update(egress=egress.LISTED, egress_networks="10.0.0.0/8 nonsense")
    assert firewall.policy() == (egress.NOTHING, [])


@pytest.mark.django_db
def test_admins_are_told_what_is_no_network(client: Client, root_admin: Any) -> None:
    client.force_login(root_admin)
    page = f"/admin/jobs/cluster/{Cluster.get().pk}/change/"
    form = client.get(page).context["adminform"].form
    sent = {name: form[name].value() if form[name].value() is not None else "" for name in form.fields}
    answer = client.post(page, {**sent, "egress": "listed", "egress_networks": "10.0.0.0/8\nhere"})
    assert "“here” is no IPv4 network." in answer.text
    assert client.post(page, {**sent, "egress": "listed", "egress_networks": "10.0.0.0/8"}).status_code == 302
    assert firewall.policy() == ("listed", ["10.0.0.0/8"])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("offline", "policy", "network"),
    [(False, "open", firewall.NETWORK), (True, "open", "none"), (False, "nothing", "none")],
)
def test_a_job_without_network_has_only_its_loopback(alice: Any, offline: bool, policy: str, network: str) -> None:
    Cluster.get()
    Cluster.objects.update(egress=policy)
    assert firewall.network_of(factories.make_job(alice, offline=offline)) == network


@pytest.mark.django_db
def test_the_form_and_its_clone_keep_that_a_job_goes_without_network(client: Client, alice: Any) -> None:
    client.force_login(alice)
    factories.make_node()
    body = {"image": "busybox", "script": "true", "offline": True, "memory_gib": 1}
    assert client.post("/api/jobs", body, content_type="application/json").status_code == 201
    job = Job.objects.get()
    assert job.offline
    assert "without network" in client.get(f"/jobs/{job.pk}/").text
    clone = client.get(f"/jobs/new/?clone={job.pk}").context["form"]
    assert clone["offline"].value() is True
