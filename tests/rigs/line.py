"""The network between a host and what it dials: a TCP relay that is cut and healed, as a switch or a cable is.

It may speak TLS to those who dial, as a front before the portal does.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

_BUFFER = 1 << 16


class Line:
    """Leads from `port` to `to`. While it is cut, nobody gets through, and those who were through are cut off.

    `certificates`: a folder of cert.pem and key.pem, for TLS.
    """

    def __init__(self, to: int, certificates: Path | None = None) -> None:
        self.to = to
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificates else None
        if self._tls and certificates:
            self._tls.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        self._open = threading.Event()
        self._open.set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._ends: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name=f"line to {to}", daemon=True).start()

    def cut(self) -> None:
        self._open.clear()
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self._open.set()
        self._flowing.set()

    def stall(self) -> None:
        """Swallow no byte and pass none on, and tell nobody, until it is healed."""
        self._flowing.clear()

    def close(self) -> None:
        self.cut()
        self._flowing.set()
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._server.accept()
                if self._open.is_set():
                    threading.Thread(target=self._join, args=(client,), daemon=True).start()
                else:
                    client.close()

    def _join(self, client: socket.socket) -> None:
        try:
            client = self._tls.wrap_socket(client, server_side=True) if self._tls else client
            server = socket.create_connection(("127.0.0.1", self.to))
        except OSError:  # who dials does not trust us, or what it dials is being restarted
            client.close()
            return
        self._ends += [client, server]
        if not self._open.is_set():  # cut meanwhile
            client.close()
            server.close()
            return
        back = threading.Thread(target=_copy, args=(server, client, self._flowing), daemon=True)
        back.start()
        _copy(client, server, self._flowing)
        back.join()
        for end in (client, server):
            end.close()
            with contextlib.suppress(ValueError):  # it was cut
                self._ends.remove(end)


def _copy(source: socket.socket, sink: socket.socket, flowing: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BUFFER):
            flowing.wait()
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def running_line(to: int, certificates: Path | None = None) -> Iterator[Line]:
    """A line for as long as the block runs."""
    line = Line(to, certificates)
    try:
        yield line
    finally:
        line.close()
