"""What a person does in a browser's tab: a page, what the page asks for by itself, and its socket, for a while."""

import asyncio
import contextlib
import json
import random
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from bench._browsers import BINARY, CLOSE, Browser
from bench._kinds import KINDS

TAIL = 200_000  # bytes of a log that a page shows at first
LIST_APART, SLOW_APART = 1.5, 5.0  # seconds between two times that a list asks again, as static/src/changes.js has it
BUSYBOX = "dockyard-test/busybox:latest"
SMALL = {"gpus": 1, "cpus": 0.1, "memory_gib": 0.0625, "shm_gib": 0.015625, "limit": "1h"}
Again = Callable[[], Awaitable[object]]


class Notes:
    """What all people together saw."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)  # milliseconds by page
        self.troubles: list[str] = []
        self.sent: list[tuple[int, str]] = []  # numbers and kinds of jobs that were taken in
        self.counts: Counter[str] = Counter()

    def trouble(self, what: str) -> None:
        self.troubles.append(f"{time.strftime('%H:%M:%S')} {what}")


class LogReader:
    """The log of one run as a page follows it: from its tail on, each byte once and in order."""

    def __init__(self) -> None:
        self.run, self.generation, self.next = 0, 0, 0

    def begin(self, head: dict[str, Any]) -> dict[str, Any]:
        self.run, self.generation = head["run"], head["generation"]
        self.next = max(0, head["end"] - TAIL)
        return {"follow": {"run": self.run, "generation": self.generation, "offset": self.next}}

    def piece(self, payload: bytes | memoryview) -> str:
        """Take one in; what is wrong with it, if anything."""
        run, generation, offset = (int.from_bytes(payload[a:b], "big") for a, b in ((0, 8), (8, 10), (10, 18)))
        if run != self.run:
            return ""
        if generation != self.generation:  # a hole was mended: it begins anew
            self.generation, self.next = generation, offset
        wrong = f"run {run}: {offset} came, {self.next} was due" if offset != self.next else ""
        self.next = offset + len(payload) - 18
        return wrong


class Tab:
    """One person's browser."""

    def __init__(self, person: dict[str, Any], port: int, notes: Notes, seed: int) -> None:
        self.person, self.port, self.notes = person, port, notes
        self.chance = random.Random(seed)
        self.own: list[int] = []
        self.site = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(base_url=self.site, cookies={"sessionid": person["cookie"]}, timeout=60)
        self.program = httpx.AsyncClient(
            base_url=self.site, headers={"Authorization": f"Bearer {person['token']}"}, timeout=60
        )

    async def close(self) -> None:
        await self.http.aclose()
        await self.program.aclose()

    # --- asking ---

    async def ask(self, page: str, path: str, *, method: str = "GET", program: bool = False, **more: Any) -> Any:
        """The answer, timed under the page's name; None, and a note, where it is not as it is to be."""
        client = self.program if program else self.http
        begun = time.perf_counter()
        try:
            answer = await client.request(method, path, **more)
        except httpx.HTTPError as error:
            self.notes.trouble(f"{method} {path}: {error!r}")
            return None
        self.notes.times[page].append((time.perf_counter() - begun) * 1000)
        if answer.status_code not in (200, 201, 302):
            self.notes.trouble(f"{method} {path}: {answer.status_code} {answer.text[:200]!r}")
            return None
        if answer.headers.get("Location", "").startswith("/accounts/"):
            self.notes.trouble(f"{method} {path}: sent to log in")
            return None
        return answer

    @contextlib.asynccontextmanager
    async def socket(self, path: str, on_frame: Callable[[Browser, int, memoryview], None]) -> Any:
        """An open one, or None where it was refused; that it closes by itself is a trouble."""
        browser = Browser(path, f"127.0.0.1:{self.port}", f"sessionid={self.person['cookie']}", on_frame)
        try:
            await asyncio.get_running_loop().create_connection(lambda: browser, "127.0.0.1", self.port)
            await asyncio.wait_for(browser.opened, 60)
        except (OSError, RuntimeError, TimeoutError) as error:
            self.notes.trouble(f"{path}: {error!r}")
            yield None
            return
        self.notes.counts["sockets"] += 1
        try:
            yield browser
        finally:
            if browser.closed:
                self.notes.trouble(f"{path}: closed by the server")
            else:
                browser.send((1001).to_bytes(2, "big"), CLOSE)
                browser.transport.close()

    # --- pages ---

    async def list_page(self, page: str, path: str, seconds: float, apart: float = LIST_APART) -> None:
        """A list that is asked for again when jobs change."""
        await self.ask(page, path)
        changed = asyncio.Event()

        def on_frame(_browser: Browser, _opcode: int, payload: memoryview) -> None:
            if payload[:7] == b'{"jobs"':
                changed.set()

        async def again() -> None:
            await self.ask(f"{page}, again", path, headers={"HX-Request": "true"})

        async with self.socket("/ws/changes/", on_frame) as socket:
            await self._stay(socket, seconds, changed, again, apart)

    async def gpus_page(self, seconds: float) -> None:
        readings = asyncio.Event()
        await self.ask("GPUs", "/gpus/")
        async with self.socket("/ws/gpus/", lambda *_: readings.set()) as socket:
            await self.ask("GPUs, recent", "/gpus/recent.json")
            await self._stay(socket, max(seconds, 5.0), asyncio.Event(), None, 0)
        if socket is not None and not readings.is_set():
            self.notes.trouble("/ws/gpus/: no reading came")

    async def job_page(self, job: int, seconds: float) -> None:
        """Its log is followed, its head asked for anew on each change of state."""
        if await self.ask("job", f"/jobs/{job}/") is None:
            return
        reader, state, changed = LogReader(), {"": ""}, asyncio.Event()

        def on_frame(browser: Browser, opcode: int, payload: memoryview) -> None:
            if opcode == BINARY:
                if wrong := reader.piece(payload):
                    self.notes.trouble(f"job {job}: {wrong}")
                self.notes.counts["log pieces"] += 1
                browser.send(b'{"ack":%d}' % reader.next)
            elif payload[:6] == b'{"job"':
                self._heard(json.loads(bytes(payload))["job"], reader, state, changed, browser)

        async with self.socket(f"/ws/jobs/{job}/", on_frame) as socket:
            await self.ask("job, charts", f"/jobs/{job}/charts.json")
            await self.ask("job, metrics", f"/jobs/{job}/metrics.json")
            await self._stay(
                socket, seconds, changed, lambda: self.ask("job, head", f"/jobs/{job}/?part=head"), 0.2
            )  # fmt: skip

    @staticmethod
    def _heard(
        said: dict[str, Any], reader: LogReader, state: dict[str, str], changed: asyncio.Event, browser: Browser
    ) -> None:
        if said["log"] and said["log"]["run"] != reader.run:
            browser.send(json.dumps(reader.begin(said["log"]), separators=(",", ":")).encode())
        if state[""] not in ("", said["version"]):
            changed.set()
        state[""] = said["version"]

    async def _stay(
        self, socket: Browser | None, seconds: float, changed: asyncio.Event, again: Again | None, apart: float
    ) -> None:
        """Look at the page for so long; ask `again` whenever it changed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while socket is not None and not socket.closed and (left := end - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, 1.0))
            if changed.is_set() and again is not None:
                changed.clear()
                await again()
                await asyncio.sleep(min(apart, max(end - loop.time(), 0)))

    async def files(self, job: int) -> None:
        """The list of its files, one of them, and its log as a file; then a search in it."""
        answer = await self.ask("job, files", f"/jobs/{job}/?part=files")
        found = re.findall(rf'href="(/jobs/{job}/files/[^"]+)"', answer.text) if answer else []
        for path in found[:1]:
            await self.ask("file", path)
        await self.ask("log, whole", f"/jobs/{job}/log/download")
        await self.ask("log, search", f"/jobs/{job}/log/search?q=loss")

    async def as_a_program(self, job: int) -> None:
        await self.ask("API, jobs", "/api/jobs", program=True)
        await self.ask("API, job", f"/api/jobs/{job}", program=True)
        await self.ask("API, log", f"/api/jobs/{job}/log", program=True)
        await self.ask("API, files", f"/api/jobs/{job}/files", program=True)

    # --- sending jobs ---

    async def send(self, kind: str) -> int | None:
        """One job, by the form or as a program does; its number, None where it was not taken in."""
        by = self._by_form if self.chance.random() < 0.5 else self._by_program
        job = await by(kind)
        if job is not None:
            self.own.append(job)
            self.notes.sent.append((job, kind))
            await self._then(job, KINDS[kind].then)
        return job

    async def _by_form(self, kind: str) -> int | None:
        page = await self.ask("form", "/jobs/new/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text) if page else None
        if found is None:
            self.notes.trouble("the form cannot be sent")
            return None
        typed = self._typed(kind) | {"csrfmiddlewaretoken": found[1]}
        headers = {"Origin": self.site, "Referer": f"{self.site}/jobs/new/"}
        await self.ask("form, preview", "/jobs/preview/", method="POST", data=typed, headers=headers)
        answer = await self.ask("form, sent", "/jobs/new/", method="POST", data=typed, headers=headers)
        place = re.fullmatch(r"/jobs/(\d+)/", answer.headers.get("Location", "")) if answer else None
        if answer is not None and place is None:
            self.notes.trouble(f"the form came back: {re.findall(r'invalid-feedback[^>]*>([^<]+)', answer.text)}")
        return int(place[1]) if place else None

    def _typed(self, kind: str) -> dict[str, str]:
        return {
            "submission": str(uuid.uuid4()), "name": kind, "team": str(self.person["team"]), "image": BUSYBOX,
            "command_kind": "script", "script": KINDS[kind].script, "entrypoint": "", "arguments": "", "gpus": "1",
            "gpu_model": "", "gpu_memory": "", "cpus": "0.1", "memory": "64 MiB", "shm": "16 MiB", "limit": "1h",
            "priority": "1", "grace": "1s", "start_after": "",
        }  # fmt: skip

    async def _by_program(self, kind: str) -> int | None:
        asked = {
            "name": kind, "team": self.person["team_name"], "image": BUSYBOX, "script": KINDS[kind].script,
            "submission": str(uuid.uuid4()), "grace_seconds": 1, **SMALL,
        }  # fmt: skip
        answer = await self.ask("API, sent", "/api/jobs", method="POST", json=asked, program=True)
        return int(answer.json()["id"]) if answer else None

    async def _then(self, job: int, what: str) -> None:
        if what == "cancel":
            await asyncio.sleep(self.chance.uniform(0, 8))
            await self.ask("API, cancel", f"/api/jobs/{job}/cancel", method="POST", program=True)
        elif what == "hold":
            await self.ask("API, hold", f"/api/jobs/{job}/hold", method="POST", program=True)
            await asyncio.sleep(self.chance.uniform(0, 3))
            await self.ask("API, release", f"/api/jobs/{job}/release", method="POST", program=True)
