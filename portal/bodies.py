"""What a request may bring along: nothing here takes files, and no body is kept that no form could have sent."""

from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import FileUploadHandler, SkipFile

FACTOR = 4  # up to so many times what a form may send, Django refuses with a page that says why


class NoFiles(FileUploadHandler):
    """Passes files over that come with a form: not one of ours asks for any, and they would fill the disk."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        raise SkipFile

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes | None:
        return None

    def file_complete(self, file_size: int) -> None:
        return None


class Bounded:
    """`receive` of one request, which acts as if the client had left once the body is too long."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._left = most()
        self.is_over = False

    async def __call__(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self.is_over = self._left < 0
        return {"type": "http.disconnect"} if self.is_over else message


def most() -> int:
    """Bytes of the longest body that is read at all."""
    return FACTOR * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)


def announces_too_much(scope: Any) -> bool:
    """Whether the request's own Content-Length is beyond that."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return length.isdigit() and int(length[:20]) > most()


async def refuse(scope: Any, send: Any) -> None:
    """413, in the API's shape where it was asked."""
    is_api = scope["path"].startswith("/api/")
    text = b'{"errors": [{"field": "", "code": "TOO_LARGE", "message": "The body is too large."}]}'
    kind = b"application/json" if is_api else b"text/plain"
    headers = [(b"content-type", kind), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text if is_api else b"The body is too large.\n"})
