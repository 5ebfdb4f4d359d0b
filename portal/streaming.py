"""Downloads of any size over ASGI: each piece is read in a thread, none is held longer than it takes to send."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

from django.db import connections


async def in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """`pieces`, each made in one and the same thread, since database cursors may not change threads."""
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(1, thread_name_prefix="download")
    try:
        while (piece := await loop.run_in_executor(executor, next, pieces, None)) is not None:
            yield piece
    finally:
        executor.submit(_finish, pieces)
        executor.shutdown(wait=False)


def _finish(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        close()
    connections.close_all()
