"""Every socket of the product. Authorisation is in `LiveSocket.connect` and each consumer's `may_see`."""

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path

from gpus.consumers import GpusSocket
from jobs.consumers import ChangesSocket, JobSocket


class NoSuchSocket(AsyncWebsocketConsumer):
    """Refuses, where URLRouter alone would raise."""

    async def connect(self) -> None:
        await self.close()


websocket_urlpatterns = [
    path("ws/jobs/<int:pk>/", JobSocket.as_asgi()),
    path("ws/gpus/", GpusSocket.as_asgi()),
    path("ws/changes/", ChangesSocket.as_asgi()),
    re_path(r"", NoSuchSocket.as_asgi()),
]
