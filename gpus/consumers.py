"""The socket of the GPUs page: every node's readings as they come."""

from typing import Any

from gpus.now import for_reader, nodes_now
from portal import live
from portal.sockets import LiveSocket, in_thread


class GpusSocket(LiveSocket):
    """All nodes' readings; a slow browser gets the newest of each and never the backlog."""

    async def topics(self) -> set[str]:
        return {"gpus:*"}

    async def look(self) -> bool:
        readings: list[dict[str, Any]] = await in_thread(nodes_now, self.user.is_staff)
        await self.say({"nodes": readings})
        return True

    async def on_news(self, news: dict[str, live.Message]) -> bool:
        fresh = [for_reader(message, self.user.is_staff) for message in news.values() if "gpus" in message]
        if fresh:
            await self.say({"nodes": fresh})
        return True
