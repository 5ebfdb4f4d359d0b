"""From the options of `dockyard submit` to the body of the request, in the API's units."""

import os
import shlex
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from jobs import units
from portal.cli.failure import Failure
from portal.cli.quantities import read
from portal.cli.text import _

NO_LIMIT = frozenset({"none", "unlimited", "0"})


def body(
    *, command: list[str], image: str, script: str | None, entrypoint: str | None, own_entrypoint: bool,
    gpu_memory: str | None, cpus: str | None, memory: str | None, shm: str | None, limit: str | None,
    grace: str | None, env: list[str], secret: list[str], start_after: str | None, **plain: Any,
) -> dict[str, Any]:  # fmt: skip
    """The JSON body; options not given are left out, so that the server's defaults hold. Raises Failure."""
    if not image:
        raise Failure(_("Name the image to run."), _("For example: dockyard submit --image IMAGE -- COMMAND"))
    asked: dict[str, Any] = {
        "image": image, **plain, **_command(command, script, entrypoint, own_entrypoint),
        "gpu_memory_gib": _gib("--gpu-memory", gpu_memory), "memory_gib": _gib("--memory", memory),
        "shm_gib": _gib("--shm", shm), "cpus": _read("--cpus", units.parse_millicpus, cpus, 1000),
        "grace_seconds": _read("--grace", units.parse_duration, grace),
        "environment": dict(_variable("--env", text) for text in env),
        "secrets": dict(_variable("--secret", text) for text in secret),
        "start_after": _moment(start_after),
    }  # fmt: skip
    given = {name: value for name, value in asked.items() if value not in (None, [], {})}
    return given | _limit(limit)


def _command(command: list[str], script: str | None, entrypoint: str | None, own_entrypoint: bool) -> dict[str, Any]:
    if script is not None:
        if command or entrypoint or own_entrypoint:
            raise Failure(_("Give either --script or a command after --, not both."))
        return {"script": _script(script)}
    if entrypoint is not None or own_entrypoint:
        return {"entrypoint": _words(entrypoint or ""), "arguments": command}
    if not command:
        return {}
    return {"script": command[0] if len(command) == 1 else shlex.join(command)}


def _script(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(_("Cannot read the script: %s.") % error) from error


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Failure(_("In --entrypoint a quotation mark is opened and never closed.")) from error


def _gib(option: str, text: str | None) -> float | None:
    return _read(option, units.parse_memory_mib, text, 1024)


def _read(option: str, parse: Callable[[str], int], text: str | None, divisor: int = 1) -> float | None:
    if text is None:
        return None
    number = read(option, parse, text)
    return number if divisor == 1 else number / divisor


def _limit(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    return {"limit": None if text.strip().lower() in NO_LIMIT else _read("--limit", units.parse_limit, text)}


def _variable(option: str, text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME alone with the value it has here."""
    name, given, value = text.partition("=")
    if given:
        return name, value
    if name not in os.environ:
        raise Failure(_("%(option)s %(name)s: no such variable is set here.") % {"option": option, "name": name},
                      _("Set it, or write NAME=VALUE."))  # fmt: skip
    return name, os.environ[name]


def _moment(text: str | None) -> str | None:
    """An ISO time (local unless it says otherwise), or a duration from now."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.strip()).astimezone().isoformat()
    except ValueError:
        pass
    try:
        delay = units.parse_duration(text.strip().lower().removeprefix("in "))
        return (datetime.now().astimezone() + timedelta(seconds=delay)).isoformat()
    except (units.BadQuantity, OverflowError) as error:
        raise Failure(_("--start-after: “%s” is no time; write 2026-01-31 18:00, or 2h.") % text) from error
