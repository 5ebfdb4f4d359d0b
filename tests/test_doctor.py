"""The doctor says what to mend, mends what is safe, and tells admins who have no shell."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from jobs.containers import Engine
from portal import health, live, nodereports
from portal.doctor import host
from portal.doctor.examine import examine
from portal.doctor.finding import Finding, fail, said, warn, words
from portal.doctor.rounds import findings, of_portal
from tests import factories

pytestmark = pytest.mark.django_db


def doctor(*arguments: str) -> list[dict[str, str]]:
    """What the command tells programs."""
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("doctor", "--json", *arguments, stdout=out, stderr=io.StringIO())
    found: list[dict[str, str]] = json.loads(out.getvalue())
    return found


@pytest.mark.any_database
def test_fixes_do_what_is_safe_and_are_seen_to_work(redis_server: Any, settings: Any, tmp_path: Path) -> None:
    """rq/rq#1280: an evicting Redis eats the queue."""
    settings.SPOOL_DIR, settings.WORKSPACE_ROOT = tmp_path / "spool", tmp_path / "workspaces"
    live.connection().config_set("maxmemory-policy", "allkeys-lru")
    try:
        before = {found["fix"] for found in doctor("--role", "node") if found["fix"]}
        assert {"redis_policy", "folders"} <= before
        after = {found["fix"] for found in doctor("--role", "node", "--fix", "--yes")}
        assert not {"redis_policy", "folders"} & after
        assert live.connection().config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "workspaces").stat().st_mode & 0o777 == 0o711
    finally:
        live.connection().config_set("maxmemory-policy", "noeviction")
        live.connection().config_set("appendonly", "no")


@pytest.mark.any_database
def test_nothing_is_mended_unasked(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SPOOL_DIR = tmp_path / "spool"
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "")
    doctor("--role", "node", "--fix")
    assert asked
    assert not (tmp_path / "spool").exists()


def test_a_web_host_needs_no_engine() -> None:
    names = {finding.name for finding in examine(["web"])}
    assert {"Database", "Redis", "Storage", "Clock", "Version"} <= names
    assert not {"Docker engine", "NVML", "Job network"} & names


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "Expecting property name"),
        ('{"runtimes": {"nvidia": {"path": "no-such-runtime"}}, "live-restore": true}', "no-such-runtime"),
        ('{"live-restore": false}', "live-restore is off"),
    ],
)
def test_the_engines_own_file_is_read(
    text: str, seen: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(text)
    monkeypatch.setattr(host, "DAEMON_JSON", path)
    [found] = host.daemon_json("node")
    assert seen in found.seen
    assert found.remedy


@pytest.mark.any_database
def test_what_nobody_measures_is_told(settings: Any) -> None:
    settings.WORKSPACE_BYTES = settings.SCRATCH_BYTES = 0
    assert [found.seen.partition(":")[0] for found in host.limits("node")] == [
        "WORKSPACE_BYTES is 0",
        "SCRATCH_BYTES is 0",
    ]
    settings.WORKSPACE_BYTES = settings.SCRATCH_BYTES = 1 << 40
    assert list(host.limits("node")) == []
    engine = Engine("x", "28.0", (1, 48), 1, 1, (), "", "", ())
    assert list(host.layers(words("x"), engine)) == []
    [found] = host.layers(words("x"), replace(engine, layers_in_containerd=True))
    assert "SCRATCH_FILES does not" in found.seen


@pytest.mark.any_database
def test_a_look_that_breaks_is_a_finding() -> None:
    def breaks(role: str) -> Any:
        raise OSError("no such device")

    [found] = findings([breaks], "web")
    assert (found.verdict, "no such device" in found.seen) == ("fail", True)


# --- the page ---


def red() -> Finding:
    return fail(said("Database"), said("%(count)d migrations are not applied", count=3), words("manage.py prepare"))


@pytest.mark.any_database
def test_admins_see_each_hosts_findings_in_their_language(client: Client, root_admin: Any, alice: Any) -> None:
    factories.make_node("alpha", gpus=0)
    factories.make_node("beta", gpus=0)
    health.tell("alpha", [red(), warn(words("NVML"), words("<b>odd</b>"), words("nvidia-smi"))])
    nodereports.tell("alpha", unknown=[
        {"name": "dockyard-t-7-1", "id": "0123456789ab", "status": "running", "job": 7, "run": 9},
    ])  # fmt: skip
    client.force_login(alice)
    assert client.get("/health/").status_code == 404
    client.force_login(root_admin)
    page = client.get("/health/").content.decode()
    assert "3 migrations are not applied" in page
    assert "&lt;b&gt;odd" in page
    assert "dockyard-t-7-1" in page
    assert "Nothing was told yet." in page  # beta
    page = client.get("/health/", headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "有 3 个迁移尚未应用" in page


@pytest.mark.any_database
def test_what_a_host_told_is_read_as_it_was_found() -> None:
    assert Finding.of(json.loads(json.dumps(red().as_data()))) == red()


def test_what_all_share_is_told_once(redis_server: Any) -> None:
    factories.make_node("alpha", gpus=0)
    of_web = [finding for finding in of_portal("web") if finding.verdict != "ok"]
    assert of_web  # the tests' Redis keeps nothing
    health.tell("alpha", [*of_web, red()])
    *_others, alpha = health.sections()
    assert (alpha.findings, alpha.shared, alpha.is_well) == ([red()], len(of_web), False)


@pytest.mark.any_database
def test_each_finding_is_told_once() -> None:
    seen = [(found.name, found.seen) for found in examine()]
    assert len(seen) == len(set(seen))
