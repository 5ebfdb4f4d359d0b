"""Deployments that make no sense are named by an id, with a hint; the doctor names what the host lacks."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import checks
from django.core.management import call_command
from django.db import connection

from portal.doctor.examine import examine
from tests import factories


def ids(**options: Any) -> set[str]:
    found = checks.run_checks(**options)
    ours = [message for message in found if str(message.id).startswith("dockyard.")]
    assert all(message.hint for message in ours)
    return {str(message.id) for message in ours}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, set()),
        ({"NODE_NAMES": ["a", "b"]}, {"dockyard.W001"}),
        ({"REDIS_URL": "redis://10.0.0.1:6379/0"}, {"dockyard.E003"}),
        ({"REDIS_URL": "redis://:secret@10.0.0.1:6379/0"}, set()),
        ({"REDIS_URL": "unix:///run/redis.sock"}, set()),
        ({"DEBUG": True}, set()),
        ({"DEBUG": True, "ALLOWED_HOSTS": ["gpu.example.org"]}, {"dockyard.E004"}),
        ({"ALLOWED_HOSTS": ["*"], "SECRET_KEY": "short"}, {"dockyard.E005"}),
        ({"ALLOWED_HOSTS": ["gpu.example.org"], "SECRETS_KEY": "a" * 60}, {"dockyard.E005"}),
        ({"ALLOWED_HOSTS": ["gpu.example.org"], "METRICS_TOKEN": "guess me"}, {"dockyard.E010"}),
        ({"SECRET_KEY": "short"}, set()),
        ({"ALLOWED_HOSTS": ["gpu.example.org"], "GPU_DRIVER": "simulated"}, {"dockyard.W006"}),
        ({"MOUNT_ROOTS": ["/data", "/"]}, {"dockyard.E007"}),
        ({"MOUNT_ROOTS": ["data"]}, {"dockyard.E007"}),
    ],
)
def test_each_nonsense_has_its_id(
    settings: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: set[str]
) -> None:
    monkeypatch.setattr("portal.checks.uses_sqlite", lambda: True)
    settings.NODE_NAMES, settings.GPU_DRIVER, settings.ALLOWED_HOSTS = ["a"], "nvml", ["localhost", "127.0.0.1"]
    for name, value in change.items():
        setattr(settings, name, value)
    assert ids() == expected


@pytest.mark.django_db
def test_two_hosts_on_sqlite_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """RealOrangeOne/django-tasks#33"""
    monkeypatch.setattr("portal.checks.uses_sqlite", lambda: True)
    factories.make_node("alpha", hostname="one")
    assert "dockyard.E001" not in ids(databases=["default"])
    factories.make_node("beta", hostname="two")
    assert "dockyard.E001" in ids(databases=["default"])
    monkeypatch.setattr("portal.checks.uses_sqlite", lambda: False)
    assert "dockyard.E001" not in ids(databases=["default"])


@pytest.mark.django_db
def test_a_redis_that_evicts_is_an_error(redis_server: Any) -> None:
    """rq/rq#1280: an evicting Redis eats the queue."""
    from portal import live

    live.connection().config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "dockyard.E002" in ids(include_deployment_checks=True)
        assert "dockyard.E002" not in ids()
    finally:
        live.connection().config_set("maxmemory-policy", "noeviction")
    assert "dockyard.E002" not in ids(include_deployment_checks=True)
    redis_server.stop()
    assert "dockyard.W002" in ids(include_deployment_checks=True)


def test_ordinary_commands_do_not_wait_for_redis(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal import live

    def fail() -> None:
        raise AssertionError("Redis was asked")

    monkeypatch.setattr(live, "connection", fail)
    checks.run_checks()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o700, None])
def test_the_data_folder_is_closed_to_other_accounts(mode: int | None, tmp_path: Path) -> None:
    data = tmp_path / "data"
    if mode is not None:
        data.mkdir()
        data.chmod(mode)
    env = {**os.environ, "DATA_DIR": str(data)}
    subprocess.run([sys.executable, "-c", "import portal.settings"], env=env, cwd=django_settings.BASE_DIR, check=True)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_shared_folder_is_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "tmp"
    data.mkdir()
    data.chmod(0o1777)
    env = {**os.environ, "DATA_DIR": str(data)}
    subprocess.run([sys.executable, "-c", "import portal.settings"], env=env, cwd=django_settings.BASE_DIR, check=True)
    assert stat.S_IMODE(data.stat().st_mode) == 0o1777


# --- the doctor ---


@pytest.mark.django_db
def test_the_doctor_is_red_without_an_engine_and_says_what_to_do() -> None:
    findings = {finding.name: finding for finding in examine()}
    assert findings["Docker engine"].verdict == "fail"
    assert "systemctl start docker" in findings["Docker engine"].remedy
    assert findings["Redis"].verdict in ("ok", "warn")
    assert ("Storage", "ok") in {(finding.name, finding.verdict) for finding in examine()}
    with pytest.raises(SystemExit) as ended:
        call_command("doctor")
    assert ended.value.code == 1


@pytest.mark.django_db
def test_everything_that_is_not_well_has_a_remedy(settings: Any) -> None:
    settings.GPU_DRIVER, settings.GPU_INJECTION = "nvml", "toolkit"
    findings = list(examine())
    assert all(finding.remedy for finding in findings if finding.verdict != "ok")
    names = {finding.name for finding in findings}
    assert {"Database", "Redis", "GPUs in containers", "NVML", "Storage", "Disk", "Clock", "Job network"} <= names


@pytest.mark.django_db
def test_the_doctor_goes_on_without_redis(redis_server: Any) -> None:
    redis_server.stop()
    findings = {finding.name: finding for finding in examine()}
    assert findings["Redis"].verdict == "fail"
    assert findings["Clock"].verdict == ("ok" if connection.vendor == "postgresql" else "warn"), "a server has a clock"
    assert "Storage" in findings


@pytest.mark.django_db
def test_the_doctor_finds_a_working_engine(engine: Any) -> None:
    findings = [finding for finding in examine() if finding.name == "Docker engine"]
    assert findings[0].verdict == "ok"
    assert "20." in findings[0].seen or "version" in findings[0].seen


def test_every_setting_stands_in_the_example_file() -> None:
    """What one may set, one finds in one place."""
    root = Path(__file__).resolve().parents[1]
    source = (root / "portal" / "settings.py").read_text()
    read = re.findall(r'(?:env(?:\.\w+)?|_seconds|_count|_choice|_networks)\(\s*"([A-Z_]+)"', source)
    shown = set(re.findall(r"^#([A-Z_]+)=", (root / ".env.example").read_text(), re.MULTILINE))
    assert set(read) - shown == set()
