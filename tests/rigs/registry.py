"""An image registry on 127.0.0.1, where engines speak plain HTTP: serves one small image, or refuses as it is told.

The engine asks a registry by HTTPS first and by HTTP when that is not understood.
"""

import base64
import contextlib
import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from portal.busybox import busybox_tar

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_PIECES = 40


class Registry:
    """`image(name)` is a reference into it. Whatever a test changes counts from the next request on."""

    def __init__(self) -> None:
        self.refuses_all: tuple[int, str, str] | None = None  # status, code, message
        self.login: tuple[str, str] | None = None  # who may read; None: everybody
        self.seconds = 0.0  # that a layer takes, also one that is on its way
        self.heard: list[str] = []  # Authorization headers
        self.asked: list[str] = []  # "METHOD path"
        self._environment: list[str] = ["PATH=/bin"]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": self}))
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="registry", daemon=True).start()

    def image(self, name: str) -> str:
        """A name that no engine has yet has to be pulled."""
        return f"{self.address}/{name}:1"

    def blobs(self, name: str) -> dict[str, bytes]:
        """The image's config and layer by digest; each name makes an image of its own, and a layer of its own."""
        tar = busybox_tar({f"name-{hashlib.sha256(name.encode()).hexdigest()[:12]}": name})
        config = {
            "architecture": "amd64", "os": "linux", "config": {"Env": self._environment},
            "rootfs": {"type": "layers", "diff_ids": [_digest(tar)]},
        }  # fmt: skip
        return {_digest(data): data for data in (json.dumps(config).encode(), gzip.compress(tar, 1, mtime=0))}

    def manifest(self, name: str) -> bytes:
        (config, config_data), (layer, layer_data) = self.blobs(name).items()
        return json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config_data), "digest": config},
            "layers": [{"mediaType": _LAYER, "size": len(layer_data), "digest": layer}],
        }).encode()  # fmt: skip

    def why_not(self, header: str) -> tuple[int, str, str] | None:
        """What to refuse a request with, whose Authorization header is given."""
        if self.login and header != "Basic " + base64.b64encode(":".join(self.login).encode()).decode():
            return 401, "UNAUTHORIZED", "authentication required"
        return self.refuses_all

    def close(self) -> None:
        self.seconds = 0.0
        self._server.shutdown()
        self._server.server_close()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.registry.asked.append(f"{self.command} {self.path}")
        header = self.headers.get("Authorization", "")
        if header:
            self.registry.heard.append(header)
        parts = self.path.removeprefix("/v2/").split("/")
        refusal = self.registry.why_not(header)
        if refusal:
            self._refuse(*refusal)
        elif parts == [""]:
            self._send(200, b"{}", "application/json")
        elif parts[-2] == "manifests":
            self._send(200, self.registry.manifest("/".join(parts[:-2])), MANIFEST)
        else:
            self._send(200, self.registry.blobs("/".join(parts[:-2]))[parts[-1]], "application/octet-stream")

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self._send(status, body, "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if kind == MANIFEST:
            self.send_header("Docker-Content-Digest", _digest(body))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.end_headers()
        if self.command == "HEAD":
            return
        is_layer = len(body) > 1 << 16
        with contextlib.suppress(OSError):
            for at in range(0, len(body), -(-len(body) // _PIECES)):
                self.wfile.write(body[at : at + -(-len(body) // _PIECES)])
                began = time.monotonic()
                while is_layer and time.monotonic() < began + self.registry.seconds / _PIECES:
                    time.sleep(0.02)


@contextlib.contextmanager
def running_registry() -> Iterator[Registry]:
    """A registry for as long as the block runs."""
    registry = Registry()
    try:
        yield registry
    finally:
        registry.close()
