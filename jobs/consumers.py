"""The sockets of one job's page and of every list of jobs."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.http import Http404

from jobs import relay
from jobs.access import get_job, visible_jobs
from jobs.logwindow import LogWindow
from jobs.models import JobEvent, Run
from jobs.readings import job_gpus
from jobs.status import status
from portal import live
from portal.hub import Message
from portal.shared import in_thread, shared
from portal.sockets import CLIENT, LiveSocket, dumps

BIGGEST = 2**62


class ChangesSocket(LiveSocket):
    """Tells that some job changed, at most once a second: whoever shows a list asks for it again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._newest: int | None = -1  # of the journal, as last looked at

    def topics(self) -> set[str]:
        return {live.JOBS}

    async def look(self) -> None:
        """Lists are asked for again only if anything happened: there may be a thousand of them."""
        newest = await shared.ask("newest", self.asked_at, _newest_event)
        if newest != self._newest:
            self._newest = newest
            await self.say({"jobs": True})

    async def on_news(self, news: dict[str, Message]) -> None:
        await self.say({"jobs": True})


class JobSocket(LiveSocket):
    """One job: its state on every change, its log by offset, the readings of its GPUs and container."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: dict[str, Any] = {}
        self._head: dict[str, Any] | None = None
        self._window: LogWindow | None = None
        self._relay: relay.Relay | None = None
        self._again: asyncio.TimerHandle | None = None

    @property
    def job_id(self) -> int:
        return int(self.scope["url_route"]["kwargs"]["pk"])

    @classmethod
    def unseen(cls, sockets: Collection[Any], users: Mapping[int, Any]) -> Iterable[Any]:
        jobs: dict[int, set[int]] = {}
        for socket in sockets:
            jobs.setdefault(socket.user.pk, set()).add(min(socket.job_id, BIGGEST))
        seen = {user: _seen(users.get(user), found) for user, found in jobs.items()}
        return [socket for socket in sockets if socket.job_id not in seen[socket.user.pk]]

    def topics(self) -> set[str]:
        run = self._state.get("run") or {}
        nodes = {live.gpus_topic(run["node"])} if run and self._state.get("is_live") else set()
        return {live.job_topic(self.job_id), *nodes}

    async def look(self) -> None:
        """Send the state if it changed, then what there is of the log."""
        await self._tell_state()
        if self._relay is not None:
            self._relay.look_again()
        await self._fill()

    async def on_news(self, news: dict[str, Message]) -> None:
        for topic, message in news.items():
            if topic.startswith("gpus:"):
                await self._gpus(message)
        if live.job_topic(self.job_id) in news:
            await self._tell_state()
        if CLIENT in news or relay.GROWN in news:
            await self._fill()

    async def disconnect(self, code: int) -> None:
        await super().disconnect(code)
        self._watch(None)
        if self._again is not None:
            self._again.cancel()

    async def _tell_state(self) -> None:
        user = self.user.pk
        key = ("status", user, self.job_id, self.language, self.zone)
        said = await shared.ask(key, self.asked_at, self.in_language(_status), user, self.job_id)
        if said is None or _steady(said) == _steady(self._state):
            return  # what may be seen no longer, the keeper closes
        self._state = said
        self.tune()
        await self.say({"job": said})

    async def _gpus(self, reading: Message) -> None:
        if not self._state.get("is_live"):
            return
        uuids = tuple(gpu["uuid"] for gpu in self._state.get("gpus_granted", ()))
        key = (self.job_id, uuids)
        if key not in reading.said:
            found = job_gpus(reading, uuids, self.job_id)
            reading.said[key] = dumps({"gpus": found}) if found["gpus"] or found["containers"] else ""
        if reading.said[key]:
            await self.send_text(reading.said[key])

    # --- the log ---

    async def on_message(self, message: dict[str, Any]) -> None:
        follow = message.get("follow")
        if isinstance(follow, dict):
            await self._follow(follow)
        elif self._window is not None and _offset(message.get("ack")) is not None:
            self._window.ack(message["ack"])
            if self._relay is not None and self._relay.head and self._window.sent < self._relay.head["end"]:
                self.wake()

    async def _follow(self, asked: dict[str, Any]) -> None:
        run, generation, offset = (_offset(asked.get(name)) for name in ("run", "generation", "offset"))
        if run is None or generation is None or offset is None or generation > 65535:
            return
        if await in_thread(_is_run_of, run, self.job_id):
            self._watch(run)
            self._window = LogWindow.starting(run, generation, offset)
            self._head = None
            self.wake()

    def _watch(self, run: int | None) -> None:
        before = self._relay
        if before is None or before.run_id != run:
            self._relay = None if run is None else relay.join(run, self.feed)
            if before is not None:
                relay.leave(before, self.feed)

    async def _fill(self) -> None:
        """Send as much of the log as the window has room for."""
        window, source = self._window, self._relay
        if window is None or source is None or source.head is None:
            return
        if source.head != self._head:
            self._head = source.head
            await self.say({"log": source.head})
        while window is self._window and window.generation == source.head["generation"]:  # else it is followed anew
            room = window.piece(source.head["end"])
            frame = (source.frame(window, room) or await self._behind(window, room)) if room else None
            if frame is None:
                if room:  # they are on their way from one place to another, and nobody will tell when they are there
                    self._look_later()
                return
            await self.send_bytes(frame)

    def _look_later(self) -> None:
        """Once, however often that is found."""
        loop = asyncio.get_running_loop()
        if self._again is None or self._again.when() <= loop.time():
            self._again = loop.call_later(relay.AGAIN, self.wake)

    async def _behind(self, window: LogWindow, room: int) -> bytes | None:
        """The next frame from log storage, for who reads what is long past; None when there is none for now."""
        asked = (window.run, window.generation, window.sent, window.sent + room)
        data = await shared.ask(("log", *asked), self.asked_at, relay.read_of, *asked)
        return window.frame(data) if data and window is self._window else None


def _offset(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < BIGGEST else None


def _steady(said: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "server_time"}


def _reader(user_id: int) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.filter(pk=user_id, is_active=True).first()


def _seen(reader: Any, jobs: set[int]) -> set[int]:
    """Which of the jobs somebody may see, who may be nobody."""
    return set(visible_jobs(reader).filter(pk__in=jobs).values_list("pk", flat=True)) if reader else set()


def _newest_event() -> int | None:
    return JobEvent.objects.order_by("-pk").values_list("pk", flat=True).first()


def _status(user_id: int, job_id: int) -> dict[str, Any] | None:
    reader = _reader(user_id)
    try:
        return status(get_job(reader, job_id), reader) if reader else None
    except Http404:
        return None


def _is_run_of(run_id: int, job_id: int) -> bool:
    return Run.objects.filter(pk=run_id, job=job_id).exists()
