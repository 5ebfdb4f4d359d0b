"""The socket of the GPUs page: every node's readings as they come."""

import asyncio
from typing import Any
from weakref import WeakValueDictionary

from gpus.now import Picture, for_reader, named_to, nodes_in, take_picture
from portal.hub import Message
from portal.shared import shared
from portal.sockets import CONTENT, LiveSocket, dumps

LOOKS_APART = 1.0  # seconds, at least, between two looks because jobs came and went
HOLDER = ("job", "owner", "job_name", "holders")


class View:
    """What all those are shown who may see the same: who holds which GPU by what name, and staff what is veiled.

    A reading becomes JSON once for each view, however many look at it.
    """

    def __init__(self, holders: dict[str, dict[str, Any]], full: bool) -> None:
        self.holders = holders  # by UUID, of every GPU that these readers are shown
        self.full = full
        self._jobs: dict[str, set[int]] = {}  # by UUID, as the last reading said

    def tell(self, reading: Message) -> str:
        """The reading as these readers see it; empty when other jobs than before are on its GPUs.

        Then only the database says whose they are, and what they are called.
        """
        if self not in reading.said:
            reading.said[self] = dumps(for_reader(self._shown(reading), self.full)) if self._as_before(reading) else ""
        return reading.said[self]

    def _as_before(self, reading: Message) -> bool:
        jobs = {gpu["uuid"]: _jobs(gpu) for gpu in reading["gpus"]}
        before = {uuid: self._jobs.get(uuid, self._held(uuid)) for uuid in jobs}
        self._jobs |= jobs
        return jobs == before

    def _held(self, uuid: str) -> set[int]:
        return {holder["job"] for holder in self.holders.get(uuid, {}).get("holders", ())}

    def _shown(self, reading: dict[str, Any]) -> dict[str, Any]:
        """The reading of the GPUs that these readers are shown, each with its holders."""
        held = self.holders
        return {**reading, "gpus": [{**gpu, **held[gpu["uuid"]]} for gpu in reading["gpus"] if gpu["uuid"] in held]}


_views: WeakValueDictionary[tuple[str, bool], View] = WeakValueDictionary()


def view_of(nodes: list[dict[str, Any]], full: bool) -> View:
    """The view of whoever is shown these nodes."""
    holders = {gpu["uuid"]: {key: gpu[key] for key in HOLDER} for node in nodes for gpu in node["gpus"]}
    key = (dumps(holders), full)
    view = _views.get(key)
    if view is None:
        view = _views[key] = View(holders, full)
    return view


class GpusSocket(LiveSocket):
    """All nodes' readings; a slow browser gets the newest of each and never the backlog."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._view: View | None = None
        self._looked_at = 0.0

    def topics(self) -> set[str]:
        return {"gpus:*"}

    async def look(self) -> None:
        """The database is asked once for all who look, and what they are shown made once for who may see the same."""
        self._looked_at = asyncio.get_running_loop().time()
        picture = await shared.ask("picture", self.asked_at, take_picture)
        known = self.asked_at - CONTENT  # whose job may be seen by whom seldom changes
        named = await shared.ask(("named", self.user.pk, picture.jobs), known, named_to, self.user, picture)
        key = ("nodes", picture.at, named, self.user.is_staff, self.language)
        shown = self.in_language(_shown)
        text, self._view = await shared.ask(key, 0.0, shown, picture, named, self.user.is_staff)
        await self.send_text(text)

    async def on_news(self, news: dict[str, Message]) -> None:
        told = [self._view.tell(reading) if self._view else "" for reading in news.values() if "gpus" in reading]
        if not all(told):
            await asyncio.sleep(self._looked_at + LOOKS_APART - asyncio.get_running_loop().time())
            await self.look()
        elif told:
            await self.send_text(f'{{"nodes":[{",".join(told)}]}}')


def _shown(picture: Picture, named: frozenset[int], full: bool) -> tuple[str, View]:
    nodes = nodes_in(picture, named, full=full)
    return dumps({"nodes": nodes}), view_of(nodes, full)


def _jobs(gpu: dict[str, Any]) -> set[int]:
    """The jobs on a GPU by a reading; one that only tells of one tells of the first."""
    return set(gpu.get("jobs") or ([gpu["job"]] if gpu.get("job") else ()))
