"""The units for hosts without compose are ones that systemd takes, and start what is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands

ROOT = Path(__file__).resolve().parents[1]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def value(unit: Path, name: str) -> str:
    [found] = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(found)


def test_there_is_one_for_each_role() -> None:
    assert [unit.stem for unit in UNITS] == ["dockyard-node", "dockyard-scheduler", "dockyard-web"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_starts_what_is_there_and_comes_back(unit: Path) -> None:
    started = value(unit, "ExecStart")
    program = started.partition(" ")[0].removeprefix("/opt/dockyard/")
    assert (ROOT / program).exists()
    if "manage.py" in started:
        assert started.split()[-1] in get_commands()
    assert value(unit, "Restart") == "always"
    assert value(unit, "Environment").startswith("DOCKYARD_ENV_FILE=/etc/dockyard/env")


def test_commands_by_hand_have_the_settings_of_the_services() -> None:
    """Else a restore fills a database that nobody uses, and says that all went well."""
    wrapper = (ROOT / "deploy/systemd/dockyard-manage").read_text()
    assert all(value(unit, "Environment").split()[0] in wrapper for unit in UNITS)
    guide = (ROOT / "docs/install.md").read_text()
    assert not re.findall(r"(?<!dockyard-)manage[.]py (?:backup|restore|doctor|join_token|node|createsuperuser)", guide)


def test_a_restart_of_the_node_leaves_the_log_pump_alone() -> None:
    [node] = [unit for unit in UNITS if unit.stem == "dockyard-node"]
    assert value(node, "KillMode") == "process"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/dockyard", str(ROOT)))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
