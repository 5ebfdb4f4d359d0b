"""The socket of the GPUs page: every node's readings as they come."""

from typing import Any

from gpus.now import for_reader, nodes_now
from portal import live
from portal.sockets import LiveSocket, in_thread

HOLDER = ("job", "owner", "job_name", "holders")


class GpusSocket(LiveSocket):
    """All nodes' readings; a slow browser gets the newest of each and never the backlog."""

    async def topics(self) -> set[str]:
        return {"gpus:*"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._holders: dict[str, dict[str, Any]] = {}  # by UUID, of every GPU that this reader is shown
        self._jobs: dict[str, set[int]] = {}  # by UUID, as the last reading said

    async def look(self) -> bool:
        nodes: list[dict[str, Any]] = await in_thread(nodes_now, self.user)
        self._holders = {gpu["uuid"]: {key: gpu[key] for key in HOLDER} for node in nodes for gpu in node["gpus"]}
        await self.say({"nodes": nodes})
        return True

    async def on_news(self, news: dict[str, live.Message]) -> bool:
        readings = [message for message in news.values() if "gpus" in message]
        jobs = {gpu["uuid"]: _jobs(gpu) for reading in readings for gpu in reading["gpus"]}
        changed = any(found != self._known(uuid) for uuid, found in jobs.items())
        self._jobs |= jobs
        if changed:  # other jobs than before: only the database says whose, and what they are called
            return await self.look()
        if readings:
            await self.say({"nodes": [for_reader(self._shown(reading), self.user.is_staff) for reading in readings]})
        return True

    def _known(self, uuid: str) -> set[int]:
        held = self._holders.get(uuid, {}).get("holders", ())
        return self._jobs[uuid] if uuid in self._jobs else {holder["job"] for holder in held}

    def _shown(self, reading: dict[str, Any]) -> dict[str, Any]:
        """The reading of the GPUs that this reader is shown, each with its holders."""
        held = self._holders
        return {**reading, "gpus": [{**gpu, **held[gpu["uuid"]]} for gpu in reading["gpus"] if gpu["uuid"] in held]}


def _jobs(gpu: dict[str, Any]) -> set[int]:
    """The jobs on a GPU by a reading; one that only tells of one tells of the first."""
    return set(gpu.get("jobs") or ([gpu["job"]] if gpu.get("job") else ()))
