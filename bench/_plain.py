"""What the fan-out is measured against: a socket as Channels' own documentation makes it, fed by `group_send`."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

import django

django.setup()

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter

from bench._web import GROUP


class PlainSocket(AsyncWebsocketConsumer):
    """Sends every reading of the group."""

    groups = [GROUP]

    async def reading(self, event: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(event["reading"]))


application = ProtocolTypeRouter({"websocket": PlainSocket.as_asgi()})
