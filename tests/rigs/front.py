"""A front before the web process, as a company's proxy is one: it may let no WebSockets through, or take them and
pass nothing on."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

_BUFFER = 65536
REFUSES, SWALLOWS, PASSES = "refuses", "swallows", "passes"


class Front:
    """`url` leads to `port`. `sockets` says what becomes of WebSockets: it refuses, swallows or passes them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sockets = PASSES
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._joined: list[socket.socket] = []
        threading.Thread(target=self._accept, name="front", daemon=True).start()

    def cut(self) -> None:
        """End every connection, as when the proxy is restarted."""
        for end in self._joined:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self.port)) as web:
            head = client.recv(_BUFFER)
            upgrades = re.search(rb"(?i)\r\nupgrade: websocket", head) is not None
            if upgrades and self.sockets == REFUSES:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            self._joined += [client, web]
            web.sendall(head)
            if upgrades and self.sockets == SWALLOWS:
                client.sendall(web.recv(_BUFFER).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                _drain(client)
                return
            threading.Thread(target=_copy, args=(client, web), daemon=True).start()
            _copy(web, client)


def _drain(source: socket.socket) -> None:
    while source.recv(_BUFFER):
        pass


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BUFFER):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def running_front(port: int) -> Iterator[Front]:
    """A front for as long as the block runs."""
    front = Front(port)
    try:
        yield front
    finally:
        front.close()
