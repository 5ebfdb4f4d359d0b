"""The web process: Django for HTTP, Channels for WebSockets."""

import gc
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

_http = get_asgi_application()  # loads the apps: the consumers' imports need them

from portal.routing import websocket_urlpatterns
from portal.sockets import OriginChecked, SessionUser
from portal.tokens import BearerAuth

_sockets: Any = URLRouter(websocket_urlpatterns)
application = ProtocolTypeRouter(
    {"http": _http, "websocket": BearerAuth(_sockets, browsers=OriginChecked(SessionUser(_sockets)))}
)

# What is loaded by now stays: looking through it for garbage again and again would hold up everybody who watches.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 20)
