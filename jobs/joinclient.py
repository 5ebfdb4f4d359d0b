"""A host's side of joining: asks the portal for its settings, and writes them where settings are read from."""

import os
import ssl
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from django.conf import settings

from portal.checks import LOOPBACK


class CannotJoin(Exception):
    """str() says why not, and what helps."""


def env_file() -> Path:
    """Where this process's settings come from beside its environment."""
    return Path(os.environ.get("DOCKYARD_ENV_FILE") or settings.BASE_DIR / ".env")


def join(portal: str, token: str, *, name: str, authority: str = "") -> str:
    """Join at the portal's web address; the name that the host has from now on. `authority`: a file of its own CA.

    Raises CannotJoin.
    """
    given = _ask(portal, token, name, authority)
    write(env_file(), given)
    for setting in given:  # what the old file said of them must not win over the new one
        os.environ.pop(setting, None)
    return given["NODE_NAME"]


def _ask(portal: str, token: str, name: str, authority: str) -> dict[str, str]:
    parts = urlsplit(portal)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise CannotJoin(f"{portal} must begin with https://: what a host is given is secret")
    try:
        answer = httpx.post(
            f"{portal.rstrip('/')}/hosts/join/", json={"token": token, "name": name}, timeout=30,
            verify=ssl.create_default_context(cafile=authority or None), headers={"Accept-Language": "en"},
        )  # fmt: skip
        told = answer.json()
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise CannotJoin(f"{portal} does not answer as a portal does: {error}") from error
    if answer.status_code != 200:
        raise CannotJoin(" ".join(error["message"] for error in told.get("errors", ())) or f"{answer.status_code}")
    return dict(told["settings"])


def write(path: Path, given: dict[str, str]) -> None:
    """Put the settings into the file, which keeps its other lines and is closed to other accounts from the start."""
    old = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in old if line.removeprefix("export ").partition("=")[0].strip() not in given]
    lines = [*kept, *(f"{setting}={_quoted(value)}" for setting, value in given.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    with os.fdopen(fd, "w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(fd)
    os.replace(name, path)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
