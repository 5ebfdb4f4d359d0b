"""What the doctor may mend by itself: nothing that ends a job or loses data. Each says first what it will do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import redis
from django.conf import settings
from django.utils.translation import gettext_noop as _

from portal import live
from portal.doctor.finding import ROLES, Finding, Said, output, program, said, words
from portal.doctor.stores import places


@dataclass(frozen=True)
class Fix:
    """`does`: what it will do, said before it is asked for. `act`: does it, and returns what came of it."""

    does: Said
    act: Callable[[], Said]


def _make_folders() -> Said:
    wanted = {folder for role in ROLES for folder in places(role) if not folder.exists()}
    for folder in sorted(wanted):
        shared = folder == Path(settings.WORKSPACE_ROOT)  # the owners of workspaces must get through
        folder.mkdir(parents=True, exist_ok=True, mode=0o711 if shared else 0o700)
    return words(", ".join(map(str, sorted(wanted))) or "-")


def _set_in_redis(name: str, value: str) -> Said:
    client = live.connection()
    client.config_set(name, value)
    try:
        client.config_rewrite()
    except redis.ResponseError:  # it was started without a file
        return said(_("set, until it is restarted: write it into redis.conf too"))
    return said(_("set, and written into its file"))


def _run(*command: str) -> Said:
    found = program(command[0])
    return words(output([found or command[0], *command[1:]], seconds=60))


FIXES = {
    "folders": Fix(said(_("make the folders that are missing, for this account alone")), _make_folders),
    "redis_policy": Fix(
        words("redis-cli CONFIG SET maxmemory-policy noeviction"),
        lambda: _set_in_redis("maxmemory-policy", "noeviction"),
    ),
    "redis_append": Fix(
        words("redis-cli CONFIG SET appendonly yes"), lambda: _set_in_redis("appendonly", "yes")
    ),
    "runtime": Fix(
        said(_("register the runtime (nvidia-ctk runtime configure --runtime=docker); restart the engine yourself, "
               "when no job runs or live-restore is on")),
        lambda: _run("nvidia-ctk", "runtime", "configure", "--runtime=docker"),
    ),
    "cdi": Fix(
        words("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        lambda: _run("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
    ),
    "dev_char": Fix(
        words("nvidia-ctk system create-dev-char-symlinks --create-all"),
        lambda: _run("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"),
    ),
}  # fmt: skip


def fixes(findings: Iterable[Finding]) -> list[Fix]:
    """What can be done about these, each once."""
    names = dict.fromkeys(finding.fix for finding in findings if finding.fix)
    return [FIXES[name] for name in names]
