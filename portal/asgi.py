"""The web process: Django for HTTP, Channels for WebSockets."""

import contextlib
import ctypes
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
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # malloc.h


def _keep_memory_small() -> None:
    """Give back what pages and downloads took: otherwise each of the threads that serve them keeps a heap of its own.

    What is loaded by now stays, and is not looked through for garbage again: that would hold up everybody who watches.
    What is left is small, and is looked through often.
    """
    with contextlib.suppress(AttributeError):  # only glibc has it, see mallopt(3)
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_ARENA_MAX, 2), (_MMAP_THRESHOLD, 256 << 10), (_TRIM_THRESHOLD, 256 << 10)):
            mallopt(parameter, value)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 4)


_keep_memory_small()
