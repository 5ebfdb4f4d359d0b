"""What load balancers and Prometheus are told, and who is told it."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from gpus.models import GPU, Node
from jobs import passmeter, queues
from jobs.models import Job, Run
from jobs.states import RunState
from portal import nodereports, readiness
from portal.probes import figures_of_all
from tests import factories

pytestmark = pytest.mark.django_db
TOKEN = "a token of Prometheus, long enough"
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def _at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.METRICS_REREAD, settings.METRICS_TOKEN = 0.000001, TOKEN
    monkeypatch.setattr(readiness, "KEPT", 0.0)


def scrape() -> Found:
    """Every sample by name and labels, read by Prometheus' own parser; labels `process` are left out."""
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.content.decode())
    return {(s.name, _labels(s.labels)): s.value for family in families for s in family.samples}


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "process"))


def of(found: Found, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


# --- ready ---


def test_ready_is_who_has_database_migrations_and_redis(client: Client, redis_server: Any) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    redis_server.stop()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "database": "ok", "migrations": "ok", "redis": "unreachable"}
    assert client.get("/healthz").status_code == 200  # alive all the same: a restart would mend nothing


def test_code_before_its_migrations_is_not_ready(client: Client) -> None:
    MigrationRecorder.Migration.objects.filter(app="jobs").last().delete()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["migrations"]) == (503, "not applied")


# --- who may read ---


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("allowed", "headers", "status"),
    [
        ([], {}, 401),
        ([], {"Authorization": f"Bearer {TOKEN}"}, 200),
        ([], {"Authorization": "Bearer wrong"}, 401),
        ([], {"Authorization": f"Basic {TOKEN}"}, 401),
        (["10.0.0.0/8"], {}, 401),
        (["127.0.0.0/8"], {}, 200),
        (["127.0.0.1"], {"X-Forwarded-For": "127.0.0.1"}, 401),  # a proxy on this host passes on anybody
        (["127.0.0.1"], {"Authorization": "Bearer wrong"}, 401),
    ],
)
def test_metrics_are_for_those_who_were_let_in(
    settings: Any, client: Client, allowed: list[str], headers: dict[str, str], status: int
) -> None:
    settings.METRICS_ALLOW = allowed
    assert client.get("/metrics", headers=headers).status_code == status


@pytest.mark.any_database
def test_of_people_staff_alone_read_metrics(settings: Any, client: Client, alice: Any, root_admin: Any) -> None:
    settings.METRICS_TOKEN = ""
    client.force_login(alice)
    assert client.get("/metrics").status_code == 404
    client.force_login(root_admin)
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 401


# --- what they say ---


def test_figures_are_those_of_the_database(alice: Any) -> None:
    now = timezone.now()
    alpha = factories.make_node("alpha", gpus=4)
    factories.make_node("beta", gpus=1, last_seen=now - timedelta(hours=1))
    factories.make_run(factories.make_job(alice), alpha)
    GPU.objects.filter(node=alpha, index=3).update(quarantine_reason="Xid 79")
    for priority, code in ((1, "NO_ROOM"), (1, "NO_ROOM"), (2, "QUOTA")):
        factories.make_job(alice, priority=priority, wait_reasons=[{"code": code}, {"code": "AHEAD"}])
    job = factories.make_job(alice, queued_at=now - timedelta(seconds=100))
    factories.make_run(job, alpha, placed_at=now, started_at=now)
    found = scrape()
    assert of(found, "dockyard_jobs", state="RUNNING", priority="normal") == 2
    assert of(found, "dockyard_jobs_waiting", reason="NO_ROOM", priority="normal") == 2
    assert of(found, "dockyard_jobs_waiting", reason="QUOTA", priority="high") == 1
    assert of(found, "dockyard_gpus", node="alpha", state="allocated") == 2
    assert of(found, "dockyard_gpus", node="alpha", state="free") == 1
    assert of(found, "dockyard_gpus_unavailable", node="alpha", reason="GPU_QUARANTINED") == 1
    assert of(found, "dockyard_gpus_unavailable", node="beta", reason="NODES_SILENT") == 1
    assert of(found, "dockyard_node_silent", node="beta") == 1
    assert of(found, "dockyard_wait_seconds_bucket", priority="normal", le="60.0") == 1  # the one that began at once
    assert of(found, "dockyard_wait_seconds_bucket", priority="normal", le="300.0") == 2
    assert of(found, "dockyard_wait_seconds_count", priority="normal") == 2


def test_a_host_that_left_is_no_trouble_and_a_closed_one_s_gpus_are_not_free(alice: Any) -> None:
    factories.make_node("gone", gpus=1, last_seen=timezone.now() - timedelta(days=9), left_at=timezone.now())
    factories.make_node("sick", gpus=1, engine_error="it does not answer")
    found = scrape()
    assert not [name for name, labels in found if ("node", "gone") in labels]
    assert of(found, "dockyard_gpus_unavailable", node="sick", reason="ENGINE") == 1


def test_ends_count_from_midnight(alice: Any) -> None:
    now = timezone.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    node = factories.make_node()
    for ended, reason in ((now, "OOM_KILLED"), (midnight, "COMPLETED"), (midnight - timedelta(seconds=1), "COMPLETED")):
        run = factories.make_run(factories.make_job(alice, gpus=0), node)
        run.allocation.delete()
        Run.objects.filter(pk=run.pk).update(state=RunState.ENDED, ended_at=ended, end_reason=reason)
    found = scrape()
    assert of(found, "dockyard_runs_ended_total", reason="OOM_KILLED") == 1
    assert of(found, "dockyard_runs_ended_total", reason="COMPLETED") == 1


@pytest.mark.any_database
def test_redis_tells_of_queues_passes_and_nodes(redis_server: Any) -> None:
    factories.make_node("alpha", gpus=0)
    queues.send_launch("alpha", 1)
    passmeter.note(0.003, full=True)
    passmeter.note(0.3, full=True)
    nodereports.tell("alpha", log_behind_bytes=4096, log_behind_seconds=1.5)
    found = scrape()
    assert of(found, "dockyard_rq_queue_length", queue="node.alpha") == 1
    assert of(found, "dockyard_pass_seconds_bucket", kind="full", le="0.25") == 1
    assert of(found, "dockyard_pass_seconds_count", kind="full") == 2
    assert of(found, "dockyard_log_behind_bytes", node="alpha") == 4096
    redis_server.stop()
    found = scrape()
    assert of(found, "dockyard_redis_up") == 0
    assert of(found, "dockyard_database_up") == 1
    assert of(found, "dockyard_node_silent", node="alpha") == 0


def test_a_scrape_asks_as_much_for_many_jobs_as_for_few(alice: Any, django_assert_max_num_queries: Any) -> None:
    node = factories.make_node(gpus=8)
    for _ in range(20):
        factories.make_job(alice)
    factories.make_run(factories.make_job(alice), node)
    assert Job.objects.count() == 21
    with django_assert_max_num_queries(9):
        scrape()


@pytest.mark.any_database
def test_figures_are_kept_for_a_while(
    settings: Any, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.METRICS_REREAD = 60
    scrape()
    try:
        with django_assert_num_queries(0):
            scrape()
    finally:
        monkeypatch.setattr(figures_of_all, "_until", 0.0)


@pytest.mark.any_database
def test_every_query_of_the_dashboard_names_a_metric_that_is_there(alice: Any, client: Client) -> None:
    """skypilot-org/skypilot#10639: labels of few values, from the start."""
    client.get("/healthz")
    node = factories.make_node()
    Node.objects.filter(pk=node.pk).update(last_seen=timezone.now())
    job = factories.make_job(alice)
    factories.make_run(job, node)
    there = {name for name, _ in scrape()} | declared()
    board = json.loads((Path(__file__).parents[1] / "docs/grafana/dockyard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) >= 15
    named = {name for expr in asked for name in re.findall(r"\bdockyard_\w+", expr)}
    assert named - there == set()
    assert set(re.findall(r"\bdockyard_\w+", json.dumps(board["templating"]))) <= there
    rules = (Path(__file__).parents[1] / "docs/grafana/alerts.yml").read_text()
    assert set(re.findall(r"\bdockyard_\w+", rules)) <= there


def declared() -> set[str]:
    """The metrics that have no sample while there is nothing to tell of."""
    text = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).content.decode()
    names = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "count", "sum")}
