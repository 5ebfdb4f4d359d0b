"""Where the server is and which token to use: the environment first, then the file that `dockyard login` writes."""

import json
import os
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from portal.cli.failure import Failure
from portal.cli.text import _

DEFAULT_URL = "http://localhost:8000"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Config:
    """`token` is empty before the first log-in."""

    url: str
    token: str

    @property
    def is_local(self) -> bool:
        """Whether the server is on this very machine: then no proxy stands between."""
        return urlsplit(self.url).hostname in LOCAL_HOSTS


def path() -> Path:
    """The file, in the user's configuration folder."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "dockyard" / "config.toml"


def clean_url(text: str) -> str:
    """The address as we keep it: with a scheme, without a slash at the end. Raises Failure."""
    url = text.strip()
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.port != 0 and _is_host(parts.hostname or "")
    except ValueError:  # UnicodeError too
        usable = False
    if not usable:
        raise Failure(_("“%s” is no web address.") % text, _("Write it as https://dockyard.example.org"))
    return url.rstrip("/")


def _is_host(name: str) -> bool:
    """Raises UnicodeError for a name that no network knows."""
    return bool(name.encode("idna")) and name.isprintable() and " " not in name


def load() -> Config:
    """DOCKYARD_URL and DOCKYARD_TOKEN, each before what the file says. Raises Failure for a file that is no TOML."""
    stored = _stored()
    url = os.environ.get("DOCKYARD_URL") or stored.get("url") or DEFAULT_URL
    token = os.environ.get("DOCKYARD_TOKEN", "")
    if not token and clean_url(url) == stored.get("url", DEFAULT_URL):  # never a token to a server it is not of
        token = stored.get("token", "")
    return Config(clean_url(url), token)


def _stored() -> dict[str, str]:
    try:
        values = tomllib.loads(path().read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Failure(_("Cannot read %(path)s: %(error)s.") % {"path": path(), "error": error},
                      _("Mend or remove it, then run: dockyard login")) from error  # fmt: skip
    return {name: value for name, value in values.items() if isinstance(value, str)}


def save(config: Config) -> Path:
    """Keep this log-in, readable by its owner only."""
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd, name = tempfile.mkstemp(dir=target.parent)  # made with mode 0600
        with os.fdopen(fd, "w") as file:
            file.write(f"url = {json.dumps(config.url)}\ntoken = {json.dumps(config.token)}\n")
        os.replace(name, target)
    except OSError as error:
        raise Failure(_("Cannot write %(path)s: %(error)s.") % {"path": target, "error": error}) from error
    return target
