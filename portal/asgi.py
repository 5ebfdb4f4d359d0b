"""The web process: Django for HTTP, Channels for WebSockets."""

import gc
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

import django
from channels.routing import ProtocolTypeRouter, URLRouter

django.setup(set_prefix=False)  # the imports of consumers need the apps

from portal.handler import Handler
from portal.routing import websocket_urlpatterns
from portal.sockets import OriginChecked, SessionUser
from portal.tokens import BearerAuth

_sockets: Any = URLRouter(websocket_urlpatterns)
application = ProtocolTypeRouter(
    {"http": Handler(), "websocket": BearerAuth(_sockets, browsers=OriginChecked(SessionUser(_sockets)))}
)

# What is loaded by now stays: looking through it for garbage again and again would hold up everybody who watches.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 20)
