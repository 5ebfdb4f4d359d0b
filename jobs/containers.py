"""The one door to the Docker engine; its images: `containers_images`. All else sees plain data.

Every call may time out after having worked: callers look before they create, and adopt what appears late.
304, 404 and 409 are answers, not errors.
"""

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import docker
import docker.errors
import requests
from django.conf import settings
from docker.tls import TLSConfig
from docker.transport import UnixHTTPAdapter

from jobs.containerspec import LABEL, LABEL_RUN
from jobs.plain import first_line

QUICK = 10.0  # seconds for what an engine answers at once or not at all

_local = threading.local()


class EngineUnavailable(Exception):
    """The engine did not answer (in time): nothing is known of what the call did."""


class EngineRefused(Exception):
    """The engine answered with an error. `status` is its HTTP status, str() its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ImageMissing(EngineRefused):
    """No such image on this host (create) or in its registry (pull)."""


class ImageForbidden(EngineRefused):
    """The registry wants a log-in, or refuses ours."""


class ImageRateLimited(EngineRefused):
    """The registry asks us to come back later."""


_SNAPSHOTTER = ["driver-type", "io.containerd.snapshotter.v1"]  # in the engine's `info`, moby daemon/containerd


@dataclass(frozen=True)
class Engine:
    """The engine's account of itself. Memory in MiB."""

    id: str
    version: str
    api_version: tuple[int, int]
    cpus: int
    memory_mib: int
    runtimes: tuple[str, ...]
    cgroup_driver: str
    root_dir: str
    warnings: tuple[str, ...]
    layers_in_containerd: bool = False  # its feature "containerd-snapshotter": they are at no path of the engine

    @property
    def has_cdi(self) -> bool:
        """CDI device requests came with Docker 25 as an experiment, on by default since 28.3: API 1.44 and up."""
        return self.api_version >= (1, 44)


@dataclass(frozen=True)
class Container:
    """What inspect says. `exit_code` is None until it has ended or failed to start; times are aware, UTC."""

    id: str
    name: str
    labels: dict[str, str]
    status: str  # created, running, paused, restarting, removing, exited, dead
    pid: int
    exit_code: int | None
    oom_killed: bool
    error: str
    started_at: datetime | None
    finished_at: datetime | None
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    host_config: dict[str, Any] = field(default_factory=dict, repr=False)
    image_id: str = ""

    @property
    def run_id(self) -> int | None:
        value = self.labels.get(LABEL_RUN, "")
        return int(value) if value.isdigit() else None

    @property
    def has_ended(self) -> bool:
        return self.status in ("exited", "dead")

    @property
    def is_running(self) -> bool:
        return self.status in ("running", "paused", "restarting")


class _Client(docker.APIClient):
    """Goes straight to the engine: proxies and authorities that the environment names are for the web."""

    trust_env = property(lambda _self: False, lambda _self, _value: None)


class _SocketAdapter(UnixHTTPAdapter):
    """All addresses share their connections: docker-py keeps one for each of the last 25, and ours name containers."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return super().get_connection("http+docker://localhost", proxies)


def _client(timeout: int) -> docker.APIClient:
    """This thread's client, with its one connection: requests sessions are not made to be shared between threads.

    From now on it waits so many seconds for an answer.
    """
    clients: dict[str, docker.APIClient] = _local.__dict__.setdefault("clients", {})
    if settings.DOCKER_HOST not in clients:
        try:
            clients[settings.DOCKER_HOST] = _new_client(timeout)
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise EngineUnavailable(first_line(error, 500)) from error
    clients[settings.DOCKER_HOST].timeout = timeout
    return clients[settings.DOCKER_HOST]


def _new_client(timeout: int) -> docker.APIClient:
    client = _Client(settings.DOCKER_HOST, version="auto", timeout=timeout, tls=_tls())
    if settings.DOCKER_HOST.startswith("unix://"):
        client.get_adapter(client.base_url).close()
        client.mount("http+docker://", _SocketAdapter(settings.DOCKER_HOST.removeprefix("unix://"), timeout))
    return client


def _tls() -> TLSConfig | bool:
    folder = settings.DOCKER_TLS
    if folder is None:
        return False
    pair = str(folder / "cert.pem"), str(folder / "key.pem")
    return TLSConfig(client_cert=pair, ca_cert=str(folder / "ca.pem"), verify=True)


def _translate(error: Exception) -> Exception:
    """The engine's error as one of ours."""
    if isinstance(error, docker.errors.ImageNotFound):
        return ImageMissing(404, _words(error))
    if isinstance(error, docker.errors.APIError) and error.response is not None:
        return by_words(error.response.status_code, _words(error))
    return EngineUnavailable(first_line(error, 500))


def by_words(status: int, words: str) -> EngineRefused:
    """Tell a registry's refusals apart: its status is lost on the way through the engine, its words are not."""
    lower = words.lower()
    if status == 429 or "toomanyrequests" in lower or "too many requests" in lower or "rate limit" in lower:
        return ImageRateLimited(status, words)
    if "no such image" in lower or "manifest unknown" in lower or "not found: manifest" in lower:
        return ImageMissing(status, words)
    if re.search(r"unauthorized|authentication required|\bdenied\b|no basic auth|\b401\b|\b403 forbidden", lower):
        # Docker Hub answers "denied … repository does not exist or may require 'docker login'" for both.
        return ImageForbidden(status, words)
    if re.search(r"manifest for .* not found|repository .* not found|name unknown", lower):
        return ImageMissing(status, words)
    return EngineRefused(status, words)


def _words(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)[:4000]


class Door:
    """Turns every docker and requests error inside the block into one of this module's.

    Waits ENGINE_TIMEOUT for an answer, or the given seconds where a healthy engine answers at once.
    """

    def __init__(self, at_most: float = float("inf")) -> None:
        self._timeout = max(int(min(settings.ENGINE_TIMEOUT, at_most)), 1)

    def __enter__(self) -> docker.APIClient:
        return _client(self._timeout)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (docker.errors.DockerException, requests.RequestException, OSError)):
            raise _translate(error) from error


def engine() -> Engine:
    """Who answers at DOCKER_HOST. Raises EngineUnavailable."""
    with Door(QUICK) as client:
        info = client.info()
        version = tuple(int(n) for n in client.version()["ApiVersion"].split("."))
    return Engine(
        id=info["ID"], version=info["ServerVersion"], api_version=(version[0], version[1]), cpus=info["NCPU"],
        memory_mib=info["MemTotal"] >> 20, runtimes=tuple(info.get("Runtimes") or ()),
        cgroup_driver=info.get("CgroupDriver", ""), root_dir=info.get("DockerRootDir", ""),
        warnings=tuple(info.get("Warnings") or ()),
        layers_in_containerd=_SNAPSHOTTER in (info.get("DriverStatus") or ()),
    )  # fmt: skip


def boot_time() -> datetime:
    """When this host booted, from /proc/stat."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC)
    return datetime.min.replace(tzinfo=UTC)


def fresh_since() -> datetime | None:
    """When the engine began, ending whatever ran on the one before it. Raises EngineUnavailable.

    None where containers live through its restarts, and where nobody can tell: the time is that of the default
    bridge, which an engine makes anew when it starts; without one, that of the process at the local socket.
    """
    with Door(QUICK) as client:
        if client.info().get("LiveRestoreEnabled"):
            return None
        bridge = [found for found in client.networks(names=["bridge"]) if found["Name"] == "bridge"]
    return _time(bridge[0]["Created"]) if bridge else listening_since()


def listening_since() -> datetime | None:
    """When the process at the engine's local socket began; None where there is none, or where nobody can tell."""
    address = urlsplit(settings.DOCKER_HOST)
    if address.scheme != "unix":
        return None
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(address.path)
            pid, _uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # gone again, or of another process namespace
        return None
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return datetime.now(UTC) - timedelta(seconds=seconds)


def confirm(since: datetime) -> None:
    """Raise EngineUnavailable unless the engine takes new connections and has been there since then.

    One that goes down still answers on old connections, and refuses what it would do otherwise.
    """
    try:
        _new_client(int(QUICK)).close()  # asks for the version
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EngineUnavailable(first_line(error, 500)) from error
    began = listening_since()
    if began is not None and began > since:
        raise EngineUnavailable("it was restarted meanwhile")


def create(name: str, config: dict[str, Any]) -> str:
    """Create a container, or adopt the one of this name that an earlier try of the same run made. Returns its id.

    Raises ImageMissing, EngineRefused (also when a container that is not ours has the name), EngineUnavailable.
    """
    with Door() as client:
        try:
            return str(client.create_container_from_config(config, name)["Id"])  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            if error.response is None or error.response.status_code != 409:
                raise
            conflict = _words(error)
    existing = inspect(name)
    if existing is None or existing.labels.get(LABEL_RUN) != config["Labels"][LABEL_RUN]:
        raise EngineRefused(409, conflict)
    return existing.id


def start(container_id: str) -> None:
    """Start it; a container that runs already is no error. Raises EngineRefused with the runtime's words."""
    with Door() as client:
        client.start(container_id)


def inspect(id_or_name: str) -> Container | None:
    """What the engine knows of a container; None when it knows none such."""
    with Door() as client:
        try:
            return _container(client.inspect_container(id_or_name))
        except docker.errors.NotFound:
            return None


def of_run(id_or_name: str, run_id: int) -> Container | None:
    """What `inspect` says, unless it is the container of another run, which may have the same name after a restore."""
    found = inspect(id_or_name)
    return found if found is not None and found.run_id == run_id else None


def kill(container_id: str, signal: str) -> bool:
    """Send a signal. False when there is nobody to hear it: gone, or ended.

    The engine may keep the answer to SIGKILL for ever, when the process hangs in a driver: the signal is sent all the
    same, and EngineUnavailable is raised soon.
    """
    with Door(QUICK) as client:
        try:
            client.kill(container_id, signal)
        except docker.errors.APIError as error:
            if error.response is not None and error.response.status_code in (404, 409):
                return False
            raise
    return True


def kill_was_asked(container_id: str, since: datetime) -> bool:
    """Whether anybody asked the engine to signal the container, as far as it remembers: its last 256 events."""
    filters = {"type": "container", "event": ["kill"], "container": container_id}
    began, now = (f"{seconds:.9f}" for seconds in (since.timestamp(), time.time()))
    with Door(QUICK) as client:
        stream = client.events(since=began, until=now, decode=True, filters=filters)  # type: ignore[call-overload]
        return any(True for _event in stream)


def remove(container_id: str) -> None:
    """Remove an ended container and its anonymous volumes; one that is gone is no error."""
    with Door() as client:
        try:
            client.remove_container(container_id, v=True, force=False)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if "already in progress" not in _words(error):
                raise


def ours() -> list[Container]:
    """Every container of this installation on this host, whatever its state, with short facts only."""
    with Door() as client:
        rows = client.containers(all=True, filters={"label": f"{LABEL}={settings.INSTALLATION}"})
    return [_listed(row) for row in rows]


class Event(NamedTuple):
    """What befell a run's container: a "die", with its exit code, a "kill", an "oom"; or "": the engine listens."""

    what: str
    run: int | None
    at: datetime
    exit_code: int | None = None


def events(since: datetime) -> Iterator[Event]:
    """What befalls our containers from `since` on, until the connection breaks.

    An oom is any process of the container that was killed for lack of memory; a kill, any signal that the engine sent
    it, for whomever. An event of "" comes first, when the engine has answered.
    """
    label = f"{LABEL}={settings.INSTALLATION}"
    with Door() as client:
        filters = {"type": "container", "event": ["die", "kill", "oom"], "label": label}
        stream = client.events(since=since, decode=True, filters=filters)
        yield Event("", None, datetime.now(UTC))
        for event in stream:
            told = event["Actor"]["Attributes"]
            run, code = told.get(LABEL_RUN, ""), told.get("exitCode", "")
            at = datetime.fromtimestamp(event["timeNano"] / 1e9, UTC)
            yield Event(event["Action"], int(run) if run.isdigit() else None, at, int(code) if code.isdigit() else None)


def ensure_network(name: str, bridge: str) -> None:
    """Make the jobs' own bridge unless it is there: no talk between containers, masqueraded to the outside."""
    with Door() as client:
        if any(network["Name"] == name for network in client.networks(names=[name])):
            return
        client.create_network(
            name, driver="bridge", check_duplicate=True, labels={LABEL: settings.INSTALLATION},
            options={"com.docker.network.bridge.name": bridge, "com.docker.network.bridge.enable_icc": "false"},
        )  # fmt: skip


def _container(data: dict[str, Any]) -> Container:
    state = data["State"]
    # A failed start leaves 126, 127 or 128 in a container that stays `created`.
    ended = state["Status"] in ("exited", "dead") or (state["Status"] == "created" and state["ExitCode"] != 0)
    return Container(
        id=data["Id"], name=data["Name"].lstrip("/"), labels=data["Config"].get("Labels") or {},
        status=state["Status"], pid=state.get("Pid") or 0, exit_code=state["ExitCode"] if ended else None,
        oom_killed=bool(state.get("OOMKilled")), error=state.get("Error") or "",
        started_at=_time(state.get("StartedAt")), finished_at=_time(state.get("FinishedAt")),
        config=data["Config"], host_config=data["HostConfig"], image_id=data.get("Image", ""),
    )  # fmt: skip


def _listed(row: dict[str, Any]) -> Container:
    return Container(
        id=row["Id"], name=row["Names"][0].lstrip("/") if row.get("Names") else "", labels=row.get("Labels") or {},
        status=row["State"], pid=0, exit_code=None, oom_killed=False, error="", started_at=None, finished_at=None,
    )  # fmt: skip


def _time(text: str | None) -> datetime | None:
    """The engine's RFC 3339 time with nanoseconds; None for its zero time."""
    if not text or text.startswith("0001-"):
        return None
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        return None
    micro = (match[2] or "0")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{micro}{'+00:00' if match[3] == 'Z' else match[3]}").astimezone(UTC)
