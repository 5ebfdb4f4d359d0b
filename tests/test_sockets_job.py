"""A job's socket: its state on every change, its log by offset, its GPUs."""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.core.files.storage import storages

from jobs import control, logstore, tail
from jobs.logwindow import PIECE, WINDOW, LogWindow
from jobs.models import Job, Run
from portal import live
from portal.hub import APART
from tests import factories
from tests.rigs.redis import RedisServer
from tests.sockets import in_db, message, open_socket, publishing

pytestmark = pytest.mark.django_db(transaction=True)
HEADER = struct.Struct(">QHQ")


@in_db
def _running(log: bytes = b"") -> dict[str, Any]:
    vision = factories.make_team("vision")
    alice = factories.make_user("alice", teams=(vision,))
    node = factories.make_node("alpha")
    job = factories.make_job(alice, vision, gpus=2)
    run = factories.make_run(job, node)
    if log:
        _print(run, log)
    return {"alice": alice, "job": job, "run": run, "node": node}


def _print(run: Run, data: bytes, *, complete: bool = False) -> None:
    """What shipping does: a segment, its row, the news."""
    start = logstore.stored_end(run.pk, run.log_generation)
    if data:
        logstore.save(run.pk, run.log_generation, start, data).save()
    Run.objects.filter(pk=run.pk).update(log_bytes=start + len(data), log_complete=complete)
    live.publish(live.log_topic(run.pk), {"generation": run.log_generation, "end": start + len(data)})


async def _frames(socket: WebsocketCommunicator, *, ack: bool = True) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """Binary frames as (run, generation, offset, bytes), acknowledged as a browser does after drawing."""
    while True:
        output = await socket.receive_output(timeout=60)
        assert output["type"] == "websocket.send", output
        if output.get("bytes") is None:
            continue
        run, generation, offset = HEADER.unpack_from(output["bytes"])
        data = output["bytes"][HEADER.size :]
        yield run, generation, offset, data
        if ack:
            await socket.send_to(text_data=json.dumps({"ack": offset + len(data)}))


async def _follow(socket: WebsocketCommunicator, run: Run, offset: int = 0, generation: int = 0) -> None:
    asked = {"run": run.pk, "generation": generation, "offset": offset}
    await socket.send_to(text_data=json.dumps({"follow": asked}))


async def _read(socket: WebsocketCommunicator, start: int, end: int) -> bytes:
    """The bytes [start, end), each exactly once and in order."""
    found = b""
    async with asyncio.timeout(120):
        async for _run, _generation, offset, data in _frames(socket):
            assert offset == start + len(found), "a gap or a double"
            found += data
            if start + len(found) >= end:
                return found
    raise AssertionError


def _path(cast: dict[str, Any]) -> str:
    return f"/ws/jobs/{cast['job'].pk}/"


async def test_the_state_is_told_at_once_and_on_every_change() -> None:
    cast = await _running()
    async with open_socket(_path(cast), cast["alice"]) as socket:
        first = await message(socket, lambda found: "job" in found)
        assert first["job"]["state"] == "RUNNING"
        assert first["job"]["actions"]["cancel"]
        await in_db(control.cancel)(cast["job"], cast["alice"])
        later = await message(socket, lambda found: found.get("job", {}).get("wish") == "CANCEL")
        assert later["job"]["version"] != first["job"]["version"]


async def test_a_log_resumes_at_its_offset_without_gap_or_double() -> None:
    """ansible/awx#13059, gliderlabs/logspout#244"""
    text = b"".join(b"n=%d\n" % number for number in range(60_000))
    cast = await _running(text[:200_000])
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        first = await _read(socket, 0, 150_000)
    await in_db(_print)(cast["run"], text[200_000:300_000])
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"], len(first))
        second = await _read(socket, len(first), 300_000)
        await in_db(_print)(cast["run"], text[300_000:])
        third = await _read(socket, 300_000, len(text))
    assert first + second + third == text


async def test_what_is_printed_later_comes_by_itself() -> None:
    cast = await _running(b"first\n")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        assert await _read(socket, 0, 6) == b"first\n"
        for number in range(5):
            await in_db(_print)(cast["run"], b"line %d\n" % number)
        assert await _read(socket, 6, 6 + 35) == b"".join(b"line %d\n" % number for number in range(5))


async def test_bytes_that_are_nowhere_for_a_moment_come_when_they_are_there() -> None:
    """ansible/awx#13059: nobody tells that a segment is readable again, once the log is complete."""
    cast = await _running(b"x" * 1000)
    path = await in_db(_file_of)(cast["run"])
    path.rename(path.with_suffix(".away"))
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        await message(socket, lambda found: "log" in found)
        await asyncio.sleep(0.1)
        path.with_suffix(".away").rename(path)
        assert await _read(socket, 0, 1000) == b"x" * 1000


def _file_of(run: Run) -> Path:
    return Path(storages["logs"].path(run.segments.get().name))


async def test_a_browser_that_does_not_draw_gets_no_more_than_the_window() -> None:
    """purplefish-ai/factory-factory#1873, OpenCTI-Platform/opencti#13908"""
    cast = await _running(b"x" * (3 * WINDOW))
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        got = 0
        async for _run, _generation, _offset, data in _frames(socket, ack=False):
            got += len(data)
            if got >= WINDOW:
                break
        for _ in range(20):
            await in_db(_print)(cast["run"], b"y" * 10_000)
        await asyncio.sleep(0.5)
        while not await socket.receive_nothing(timeout=0.1):
            assert (await socket.receive_output()).get("bytes") is None
        assert got == WINDOW
        await socket.send_to(text_data=json.dumps({"ack": WINDOW}))
        assert len(await _read(socket, WINDOW, 2 * WINDOW)) == WINDOW


async def test_an_acknowledgement_of_bytes_never_sent_opens_nothing() -> None:
    cast = await _running(b"x" * (4 * WINDOW))
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        await socket.send_to(text_data=json.dumps({"ack": 4 * WINDOW}))
        got = 0
        async for _run, _generation, _offset, data in _frames(socket, ack=False):
            got += len(data)
            if got >= WINDOW:
                break
        assert await socket.receive_nothing(timeout=0.5)


async def test_the_log_of_another_job_is_never_sent() -> None:
    """dstackai/dstack#1814"""
    cast = await _running(b"mine\n")
    other = await in_db(lambda: factories.make_run(factories.make_job(cast["alice"]), cast["node"]))()
    await in_db(_print)(other, b"not mine\n")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await message(socket, lambda found: "job" in found)
        await _follow(socket, other)
        await _follow(socket, cast["run"])
        assert await _read(socket, 0, 5) == b"mine\n"


def _reads_of_tail() -> int:
    """How often Redis was asked for bytes of a tail."""
    stats: Any = live.connection().info("commandstats")
    return int(stats.get("cmdstat_xrange", {}).get("calls", 0))


async def test_what_many_watch_is_read_once_for_all_of_them() -> None:
    cast = await _running()
    async with contextlib.AsyncExitStack() as stack:
        watchers = [await stack.enter_async_context(open_socket(_path(cast), cast["alice"])) for _ in range(10)]
        for socket in watchers:
            await _follow(socket, cast["run"])
            await message(socket, lambda found: found.get("log", {}).get("end") == 0)
        before = await in_db(_reads_of_tail)()
        await in_db(tail.push)(cast["run"].pk, 0, 6, b"hello\n", entries=1)
        await in_db(live.publish)(live.log_topic(cast["run"].pk), {"generation": 0, "end": 6})
        assert [await _read(socket, 0, 6) for socket in watchers] == [b"hello\n"] * 10
        assert await in_db(_reads_of_tail)() == before + 1


async def test_a_run_whose_tail_was_flushed_goes_on_from_its_segments(redis_server: RedisServer) -> None:
    cast = await _running(b"first\n")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        await _read(socket, 0, 6)
        await in_db(tail.push)(cast["run"].pk, 0, 12, b"second", entries=1)
        await in_db(live.publish)(live.log_topic(cast["run"].pk), {"generation": 0, "end": 12})
        assert await _read(socket, 6, 12) == b"second"
        redis_server.flush()
        await in_db(_print)(cast["run"], b"second and third\n")
        assert await _read(socket, 12, 23) == b" and third\n"


def _rename(job: Job) -> None:
    """Two hundred times, as n0 to n199."""
    for number in range(200):
        Job.objects.filter(pk=job.pk).update(name=f"n{number}")
        live.publish(live.job_topic(job.pk), {"job": job.pk})


async def test_a_burst_of_changes_costs_few_looks_and_ends_with_the_newest() -> None:
    """django/channels_redis#181"""
    cast = await _running()
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await message(socket, lambda found: "job" in found)
        began = time.monotonic()
        await in_db(_rename)(cast["job"])
        told = []
        while not told or told[-1] != "n199":
            told.append((await message(socket, lambda found: "job" in found))["job"]["name"])
        assert len(told) < 20 + (time.monotonic() - began) / APART["job"]


async def test_a_mended_log_is_told_by_its_generation_and_read_anew() -> None:
    cast = await _running(b"a hole [some bytes not recorded] in it\n")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        await _read(socket, 0, 39)
        await in_db(_mend)(cast["run"], b"a hole no more in it\n")
        told = await message(socket, lambda found: found.get("log", {}).get("generation") == 1)
        assert told["log"]["end"] == 21
        await _follow(socket, cast["run"], generation=1)
        async for _run, generation, offset, data in _frames(socket):
            assert (generation, offset, data) == (1, 0, b"a hole no more in it\n")
            break


def _mend(run: Run, data: bytes) -> None:
    logstore.save(run.pk, 1, 0, data).save()
    Run.objects.filter(pk=run.pk).update(log_generation=1, log_bytes=len(data), log_complete=True)
    live.publish(live.log_topic(run.pk), {"generation": 1, "end": len(data)})


async def test_the_end_of_the_log_is_told() -> None:
    cast = await _running(b"out\n")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await _follow(socket, cast["run"])
        await _read(socket, 0, 4)
        await in_db(_print)(cast["run"], b"", complete=True)
        told = await message(socket, lambda found: found.get("log", {}).get("complete") is True)
        assert told["log"]["end"] == 4


async def test_only_the_jobs_own_gpus_are_told() -> None:
    cast = await _running()
    mine = await in_db(lambda: cast["run"].gpu_uuids)()
    gpus = [{"uuid": uuid, "index": index, "utilisation": 50} for index, uuid in enumerate(["GPU-other", *mine])]
    reading = {"node": "alpha", "at": 1.0, "gpus": gpus, "containers": [{"job": cast["job"].pk}, {"job": 999}]}
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await message(socket, lambda found: "job" in found)
        async with publishing(live.gpus_topic("alpha"), reading):
            told = await message(socket, lambda found: "gpus" in found)
        assert [gpu["uuid"] for gpu in told["gpus"]["gpus"]] == mine
        assert told["gpus"]["containers"] == [{"job": cast["job"].pk}]


async def test_news_that_was_lost_is_made_up_for(settings: Any, redis_server: Any) -> None:
    """django/channels_redis#131: the truth is read again, whatever the carrier lost"""
    settings.SOCKET_RECHECK = 0.3
    cast = await _running(b"")
    async with open_socket(_path(cast), cast["alice"]) as socket:
        await message(socket, lambda found: "job" in found)
        redis_server.stop()
        await in_db(lambda: Job.objects.filter(pk=cast["job"].pk).update(name="renamed"))()
        found = await message(socket, lambda found: found.get("job", {}).get("name") == "renamed")
        assert found["job"]["id"] == cast["job"].pk


def test_the_window_never_opens_wider_than_its_size() -> None:
    window = LogWindow.starting(7, 0, 100)
    sent = 0
    while room := window.piece(10 * WINDOW):
        assert room <= PIECE
        window.frame(b"x" * room)
        sent += room
    assert sent == WINDOW
    window.ack(50)
    window.ack(-1)
    assert window.piece(10 * WINDOW) == 0
    window.ack(100 + 10)
    assert window.piece(10 * WINDOW) == 10
