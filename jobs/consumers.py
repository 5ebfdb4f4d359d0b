"""The sockets of one job's page and of every list of jobs."""

import asyncio
from typing import Any

from django.http import Http404

from jobs import logstore
from jobs.access import get_job
from jobs.logwindow import LogWindow
from jobs.models import Run
from jobs.readings import job_gpus
from jobs.status import log_head, status
from portal import live
from portal.sockets import CLIENT, LiveSocket, in_thread

CHANGES_APART = 1.0
BIGGEST = 2**62


class ChangesSocket(LiveSocket):
    """Tells that some job changed, at most once a second: whoever shows a list asks for it again."""

    async def topics(self) -> set[str]:
        return {live.JOBS}

    async def look(self) -> bool:
        await self.say({"jobs": True})
        return True

    async def on_news(self, news: dict[str, live.Message]) -> bool:
        await asyncio.sleep(CHANGES_APART)
        return await self.look()


class JobSocket(LiveSocket):
    """One job: its state on every change, its log by offset, its GPUs' readings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: dict[str, Any] = {}
        self._head: dict[str, Any] | None = None
        self._window: LogWindow | None = None

    @property
    def job_id(self) -> int:
        return int(self.scope["url_route"]["kwargs"]["pk"])

    async def may_see(self) -> bool:
        return self.job_id < BIGGEST and await in_thread(_may_see, self.user.pk, self.job_id)

    async def topics(self) -> set[str]:
        run = self._state.get("run") or {}
        runs = {found for found in (run.get("id"), self._window and self._window.run) if found}
        nodes = {live.gpus_topic(run["node"])} if run and self._state.get("gpus_granted") else set()
        return {live.job_topic(self.job_id), *map(live.log_topic, runs), *nodes}

    async def look(self) -> bool:
        """Send the state if it changed, then what there is of the log. False when other topics are to be heard."""
        said = await in_thread(self.in_language(_status), self.user.pk, self.job_id)
        if said is None:
            return True  # the check of `may_see` closes the socket
        if _steady(said) != _steady(self._state):
            self._state = said
            await self.say({"job": said})
        await self._fill()
        return await self._hears_all()

    async def on_news(self, news: dict[str, live.Message]) -> bool:
        for topic, message in news.items():
            if topic.startswith("gpus:"):
                await self._gpus(message)
        if live.job_topic(self.job_id) in news:
            return await self.look()
        if CLIENT in news or any(topic.startswith("log:") for topic in news):
            await self._fill()
        return await self._hears_all()

    async def _hears_all(self) -> bool:
        return self._feed is not None and await self.topics() <= self._feed.topics

    async def _gpus(self, reading: live.Message) -> None:
        uuids = [gpu["uuid"] for gpu in self._state.get("gpus_granted", ())]
        found = job_gpus(reading, uuids, self.job_id)
        if self._state.get("is_live") and found["gpus"]:
            await self.say({"gpus": found})

    # --- the log ---

    async def on_message(self, message: dict[str, Any]) -> None:
        follow = message.get("follow")
        if isinstance(follow, dict):
            await self._follow(follow)
        elif self._window is not None and _offset(message.get("ack")) is not None:
            self._window.ack(message["ack"])
            self.wake()

    async def _follow(self, asked: dict[str, Any]) -> None:
        run, generation, offset = (_offset(asked.get(name)) for name in ("run", "generation", "offset"))
        if run is None or generation is None or offset is None or generation > 65535:
            return
        if await in_thread(_is_run_of, run, self.job_id):
            self._window = LogWindow.starting(run, generation, offset)
            self._head = None
            self.wake()

    async def _fill(self) -> None:
        """Send as much of the log as the window has room for."""
        window = self._window
        if window is None:
            return
        head = await in_thread(_log_head, window.run)
        if head is None or window is not self._window:
            return
        if head != self._head:
            self._head = head
            await self.say({"log": head})
        if head["generation"] != window.generation:
            return  # the browser clears, and follows anew
        while window is self._window and (room := window.piece(head["end"])):
            data = await in_thread(_read, window.run, window.generation, window.sent, room)
            if not data or window is not self._window:
                return
            await self.send(bytes_data=window.frame(data))


def _offset(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < BIGGEST else None


def _steady(said: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "server_time"}


def _reader(user_id: int) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.filter(pk=user_id, is_active=True).first()


def _may_see(user_id: int, job_id: int) -> bool:
    reader = _reader(user_id)
    try:
        return reader is not None and bool(get_job(reader, job_id))
    except Http404:
        return False


def _status(user_id: int, job_id: int) -> dict[str, Any] | None:
    reader = _reader(user_id)
    try:
        return status(get_job(reader, job_id), reader) if reader else None
    except Http404:
        return None


def _is_run_of(run_id: int, job_id: int) -> bool:
    return Run.objects.filter(pk=run_id, job=job_id).exists()


def _log_head(run_id: int) -> dict[str, Any] | None:
    return log_head(Run.objects.filter(pk=run_id).first())


def _read(run_id: int, generation: int, start: int, length: int) -> bytes:
    """Bytes of this generation; none when it has been replaced while we read."""
    run = Run.objects.get(pk=run_id)
    data = logstore.read(run, start, start + length)
    still = Run.objects.filter(pk=run_id, log_generation=generation).exists()
    return data if still and run.log_generation == generation else b""
