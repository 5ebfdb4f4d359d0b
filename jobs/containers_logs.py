"""The log side of the door to the Docker engine, in raw HTTP: a client library would copy every byte several times.

Takes what `jobs.containers` takes in DOCKER_HOST, TLS too. Streams are in the engine's frames (`jobs.logframes`);
containers have no TTY.
"""

import contextlib
import functools
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings

from jobs import containerspec
from jobs.containers import EngineRefused, EngineUnavailable
from jobs.logframes import STDERR, STDOUT

_CHUNK = 1 << 18
_HEADERS_LIMIT = 16384
_SOURCE_NAMES = {b"stdout": STDOUT, b"stderr": STDERR}


def log_config() -> dict[str, Any]:
    """The engine's own log of a container: raw bytes, never rotated before the run's limit, never dropping."""
    return containerspec.log_config(settings.LOG_LIMIT_BYTES)


class _Connection(http.client.HTTPConnection):
    """One connection to DOCKER_HOST, waiting at most ENGINE_TIMEOUT for each answer."""

    def __init__(self) -> None:
        super().__init__("engine", timeout=settings.ENGINE_TIMEOUT)

    def connect(self) -> None:
        address = urlsplit(settings.DOCKER_HOST)
        if address.scheme == "unix":
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(address.path)
        else:
            host, port = address.hostname or "", address.port or (2376 if settings.DOCKER_TLS else 2375)
            sock = socket.create_connection((host, port), self.timeout)
            self.sock = _over_tls(sock, host) if settings.DOCKER_TLS else sock


def _over_tls(sock: socket.socket, host: str) -> ssl.SSLSocket:
    """An end without TLS's own word for it raises: whoever cuts the line must not make a log look whole."""
    return _tls(settings.DOCKER_TLS).wrap_socket(sock, server_hostname=host, suppress_ragged_eofs=False)


@functools.cache
def _tls(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """Turns every failure to talk inside the block into EngineUnavailable."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(str(error) or type(error).__name__) from error


def _refusal(status: int, body: bytes) -> EngineRefused:
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:500].decode("utf-8", "replace")
    return EngineRefused(status, message)


def attach(container_id: str) -> socket.socket:
    """A blocking socket from which stdout and stderr come in frames, from now on, until both end.

    When this returns the engine has joined us to the output: what a container started after it prints is all there.
    The reader must keep reading, or the container stops. Raises EngineRefused or EngineUnavailable.
    """
    request = (
        f"POST /containers/{quote(container_id)}/attach?stream=1&stdout=1&stderr=1 HTTP/1.1\r\n"
        "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    )
    with _asking():
        connection = _Connection()
        connection.connect()
        try:
            connection.sock.sendall(request.encode())
            _expect_upgrade(connection.sock)
        except BaseException:
            connection.close()
            raise
        connection.sock.settimeout(None)
        return connection.sock


def _expect_upgrade(sock: socket.socket) -> None:
    """Read the answer's headers and not a byte more: output follows."""
    head = _read_head(sock)
    status = int(head.split(None, 2)[1])
    if status not in (101, 200):
        sock.settimeout(1)
        with contextlib.suppress(OSError):
            head += sock.recv(4096)
        raise _refusal(status, head.partition(b"\r\n\r\n")[2])


def _read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)  # some two hundred of them; looking ahead is not for TLS
        if not byte or len(head) > _HEADERS_LIMIT:
            raise http.client.BadStatusLine(head.decode("latin-1"))
        head += byte
    return head


def read_log(container_id: str) -> Iterator[bytes]:
    """The engine's own log of an ended container, in frames cut anywhere, each record with its time stamp.

    Raises EngineRefused (404: the container is gone) or EngineUnavailable, also half-way.
    """
    path = f"/containers/{quote(container_id)}/logs?stdout=1&stderr=1&timestamps=1"
    with _asking(), contextlib.closing(_Connection()) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise _refusal(answer.status, answer.read())
        while chunk := answer.read1(_CHUNK):
            yield chunk


def status(container_id: str) -> str | None:
    """created, running, paused, exited, …; None when the engine knows no such container."""
    with _asking(), contextlib.closing(_Connection()) as connection:
        connection.request("GET", f"/containers/{quote(container_id)}/json")
        answer = connection.getresponse()
        body = answer.read()
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise _refusal(answer.status, body)
    return str(json.loads(body)["State"]["Status"])


class Lifetime:
    """Tells whether the engine process is still the one that it was: a stream that ended under the same one is whole.

    One connection is kept and asked again; when it breaks, the engine may have been restarted in between.
    """

    def __init__(self) -> None:
        self._connection: _Connection | None = None
        self._number = 0
        self._lock = threading.Lock()

    def current(self) -> int:
        """A number that is the same as before only while the engine has lived through. Raises EngineUnavailable."""
        with self._lock:
            if not self._alive():
                self._number += 1
                with _asking():
                    self._connection = _Connection()
                    self._ping(self._connection)
            return self._number

    @property
    def descriptor(self) -> int | None:
        """Of the connection, for another process to go on with; None for TLS, which can't be handed on."""
        sock = self._connection.sock if self._connection else None
        return None if sock is None or isinstance(sock, ssl.SSLSocket) else sock.fileno()

    def take_up(self, number: int, fd: int) -> None:
        """Go on with another process's number and the connection that proves it; the descriptor is ours from now on."""
        with self._lock:
            self._number, self._connection = number, _Connection()
            self._connection.sock = socket.socket(fileno=fd)
            self._connection.sock.settimeout(settings.ENGINE_TIMEOUT)

    def _alive(self) -> bool:
        if self._connection is None or self._connection.sock is None:
            return False  # http.client would connect again by itself
        try:
            self._ping(self._connection)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return False
        return True

    @staticmethod
    def _ping(connection: _Connection) -> None:
        connection.request("GET", "/_ping")
        connection.getresponse().read()


def last_record_ended_line(container_id: str, stream: int) -> bool | None:
    """Whether the last record of a stream in the engine's log on disk ended its line; None where that can't be read.

    The file is read backwards: each record is its length, a protobuf message, and its length again.
    """
    try:
        with contextlib.closing(_Connection()) as connection:
            connection.request("GET", "/info")
            root = Path(json.loads(connection.getresponse().read())["DockerRootDir"])
        data = (root / "containers" / container_id / "local-logs" / "container.log").open("rb")
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    with data:
        end = data.seek(0, 2)
        while end >= 8:
            data.seek(end - 4)
            size = int.from_bytes(data.read(4), "big")
            end -= size + 8
            if end < 0:
                return None
            data.seek(end + 4)
            fields = _fields(data.read(size))
            if _SOURCE_NAMES.get(fields.get(1, b"")) == stream:
                return _fields(fields.get(5, b"")).get(1) == 1
    return None


def _fields(message: bytes) -> dict[int, Any]:
    """The fields of a protobuf message that has only numbers and bytes."""
    fields: dict[int, Any] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            fields[key >> 3], at = message[at : at + value], at + value
        else:
            fields[key >> 3] = value
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
