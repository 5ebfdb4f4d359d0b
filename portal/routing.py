"""Every socket of the product. Authorisation is in `LiveSocket.connect` and each consumer's `may_see`."""

from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path

from gpus.consumers import GpusSocket
from gpus.now import silent_hosts
from jobs.consumers import ChangesSocket, JobSocket
from portal.keeper import keeper

keeper.find_silent = silent_hosts


class NoSuchSocket(AsyncWebsocketConsumer):
    """Refuses, where URLRouter alone would raise."""

    async def connect(self) -> None:
        await self.close()


def _app(socket: type[AsyncWebsocketConsumer]) -> Any:
    """The socket as what `path` takes; django-stubs know only of views there."""
    return socket.as_asgi()


websocket_urlpatterns: list[Any] = [
    path("ws/jobs/<int:pk>/", _app(JobSocket)),
    path("ws/gpus/", _app(GpusSocket)),
    path("ws/changes/", _app(ChangesSocket)),
    re_path(r"", _app(NoSuchSocket)),
]
