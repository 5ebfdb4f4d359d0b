"""Somebody with a browser before the front: TLS checked by its own authority, cookies, Origin, a WebSocket."""

import json
import re
import socket
import ssl
import struct
from typing import Any

import httpx
from websockets.sync.client import connect

from tests.compose.project import HOST, PATIENCE

_HEAD = struct.Struct(">QHQ")


class Visitor:
    """`token` is one of the API; pages and sockets are asked for after `log_in`."""

    def __init__(self, port: int, authority: str, token: str) -> None:
        self.port, self.site = port, f"https://{HOST}:{port}"
        self._bearer = {"Authorization": f"Bearer {token}"}
        self._tls = ssl.create_default_context(cadata=authority)
        # The name is resolved by nobody here, so it is told beside the address.
        headers = {"Host": f"{HOST}:{port}", "Origin": self.site, "Referer": f"{self.site}/"}
        self._http = httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=self._tls, headers=headers, timeout=PATIENCE, trust_env=False
        )

    def log_in(self, name: str, password: str) -> None:
        page = self.get("/accounts/login/")
        assert "strict-transport-security" in page.headers
        [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[:1]
        form = {"login": name, "password": password, "csrfmiddlewaretoken": token}
        answer = self._ask("POST", "/accounts/login/", data=form)
        assert answer.status_code == 302, answer.text[:2000]

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self._ask("GET", path, params=params).raise_for_status()

    def submit(self, **fields: Any) -> int:
        body = {"image": "dockyard-test/busybox", **fields}
        answer = self._ask("POST", "/api/jobs", json=body, headers=self._bearer)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def cancel(self, job: int) -> None:
        self._ask("POST", f"/api/jobs/{job}/cancel", headers=self._bearer).raise_for_status()

    def job(self, job: int) -> dict[str, Any]:
        return dict(self._ask("GET", f"/api/jobs/{job}", headers=self._bearer).raise_for_status().json())

    def log(self, job: int) -> bytes:
        answer = self._ask("GET", f"/jobs/{job}/log/download")
        return answer.content if answer.status_code == 200 else b""

    def is_whole(self, job: int) -> bool:
        return bool(self.get(f"/jobs/{job}/status.json").json()["log"]["complete"])

    def watch(self, job: int, *, until: bytes) -> bytes:
        """The log as a browser is sent it, until it has these bytes."""
        seen, followed = b"", None
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self._http.cookies.jar)
        sock = socket.create_connection(("127.0.0.1", self.port))
        with connect(
            f"wss://{HOST}:{self.port}/ws/jobs/{job}/", sock=sock, ssl=self._tls, server_hostname=HOST,
            origin=self.site, additional_headers={"Cookie": cookies}, open_timeout=PATIENCE, proxy=None,
        ) as line:  # fmt: skip
            while until not in seen:
                message = line.recv(timeout=PATIENCE)
                if isinstance(message, bytes):
                    seen += message[_HEAD.size :]
                    line.send(json.dumps({"ack": _HEAD.unpack_from(message)[2] + len(message) - _HEAD.size}))
                elif (run := (json.loads(message).get("job") or {}).get("run")) and followed is None:
                    followed = {"run": run["id"], "generation": 0, "offset": 0}
                    line.send(json.dumps({"follow": followed}))
        return seen

    def _ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        return self._http.request(method, path, extensions={"sni_hostname": HOST}, **what)
