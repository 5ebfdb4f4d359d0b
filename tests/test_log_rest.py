"""Logs at rest: compressed with their ranges readable, counted for each user, and downloaded whole or in part."""

import gzip
import random
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.storage import storages
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from jobs import logindex, logmarks, logstore, pack, packing, retention, tail
from jobs.models import LogSegment, Run
from jobs.segments import SegmentWriter
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories

TEXT = b"".join(b"%07d some line of a log\n" % number for number in range(40_000))


def ended_run(owner: User, data: bytes, *, hours_ago: float = 1, cuts: tuple[int, ...] = ()) -> Run:
    """A run that ended with this log, in segments cut at `cuts`."""
    node = factories.Node.objects.first() or factories.make_node(gpus=1)
    run = factories.make_run(factories.make_job(owner, gpus=0), node)
    for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True):
        logstore.save(run.pk, 0, start, data[start:stop]).save()
    at = timezone.now() - timedelta(hours=hours_ago)
    assert run.end(RunState.RUNNING, EndReason.COMPLETED, JobState.SUCCEEDED, now=at, log_complete=True,
                   log_bytes=len(data))  # fmt: skip
    return run


def pack_all() -> None:
    while pack.pack_some("alpha", threading.Event()):
        pass


@given(st.binary(min_size=packing.WORTH, max_size=3 * packing.PIECE), st.integers(0, 1 << 20), st.integers(1, 1 << 20))
def test_any_range_of_what_is_packed_is_what_it_was(data: bytes, start: int, length: int) -> None:
    packed, sizes = packing.pack(data)
    start %= len(data)
    stop = min(start + length, len(data))
    if sizes:
        offset, size, skip = packing.place(sizes, start, stop)
        assert packing.unpack(packed[offset : offset + size], skip, stop - start) == data[start:stop]
        assert gzip.decompress(packed) == data


def test_a_download_goes_on_in_a_log_that_is_mended_under_it(alice: User, redis_server: Any) -> None:
    """Its length was promised when the bytes were in the tail of an older generation, which is gone by then."""
    run = factories.make_run(factories.make_job(alice, gpus=0), factories.make_node(gpus=1))
    tail.push(run.pk, 0, 30, TEXT[:30], entries=1)
    whole = logstore.stream(run, 0, logstore.size(run))
    packed = logstore.stream_packed(Run.objects.get(pk=run.pk), 0, logstore.size(run))
    writer = SegmentWriter(run.pk, 1)
    writer.write(TEXT[:90])
    writer.complete(dropped=0, base=0)
    tail.drop(run.pk, 0)
    assert b"".join(whole) == gzip.decompress(b"".join(packed)) == TEXT[:30]


def test_an_ended_log_is_packed_and_read_as_before(alice: User) -> None:
    run = ended_run(alice, TEXT, cuts=(300_000, 1_000_000))
    raw = list(run.segments.values_list("name", flat=True))
    pack_all()
    names = list(run.segments.values_list("name", flat=True))
    sizes = [storages["logs"].size(name) for name in names]
    assert sum(sizes) < len(TEXT) / 4
    assert sizes == [sum(packed) for packed in run.segments.values_list("packed", flat=True)]
    assert not any(storages["logs"].exists(name) for name in raw)
    at = random.Random(7)
    for _ in range(30):
        start = at.randrange(len(TEXT))
        stop = start + at.randrange(400_000)
        assert logstore.read(run, start, stop) == TEXT[start:stop]
    assert b"".join(logstore.stream(run)) == TEXT


def test_the_small_segments_of_a_quiet_log_rest_as_few(alice: User, settings: Any) -> None:
    """A line a second for a week is cut into 20,000 segments while it grows."""
    settings.LOG_SEGMENT_BYTES = 400_000
    run = ended_run(alice, TEXT, cuts=tuple(range(3_000, len(TEXT), 3_000)))
    noted = logmarks.Marks()
    for number, segment in enumerate(run.segments.order_by("offset")):
        noted.note(segment.offset + 7, 1_000 + number, 1 + number % 2)
        marks = logmarks.pack(noted.between(segment.offset, segment.offset + segment.length), segment.offset)
        lines = TEXT[segment.offset : segment.offset + segment.length].count(b"\n")
        run.segments.filter(pk=segment.pk).update(lines=lines, marks=marks)
    raw = list(run.segments.values_list("name", flat=True))
    before = [logindex.notes(run, at, at + 10_000) for at in range(0, len(TEXT), 50_000)]
    pack_all()
    assert run.segments.count() == -(-len(TEXT) // 399_000)
    assert not any(storages["logs"].exists(name) for name in raw)
    assert b"".join(logstore.stream(run)) == TEXT
    assert [logindex.notes(run, at, at + 10_000) for at in range(0, len(TEXT), 50_000)] == before
    assert logindex.offset_of_line(run, 30_000) == TEXT.index(b"0030000")


def test_segments_that_are_forgotten_while_they_are_packed_stay_forgotten(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_run(alice, TEXT, cuts=(1_000, 2_000))
    folder = run.segments.order_by("offset")[0].name.rpartition("/")[0]
    raw = set(run.segments.values_list("name", flat=True))
    before = {f"{folder}/{name}" for name in storages["logs"].listdir(folder)[1]}
    really = packing.pack

    def late(data: bytes) -> tuple[bytes, list[int]]:
        monkeypatch.setattr(packing, "pack", really)
        logstore.forget(run.segments.all())
        return really(data)

    monkeypatch.setattr(packing, "pack", late)
    pack_all()
    assert not run.segments.exists()
    assert {f"{folder}/{name}" for name in storages["logs"].listdir(folder)[1]} == before - raw


def test_what_does_not_shrink_or_is_not_yet_due_stays_raw(alice: User) -> None:
    noise = random.Random(1).randbytes(100_000)
    ended, young = ended_run(alice, noise), ended_run(alice, TEXT, hours_ago=0)
    live = factories.make_run(factories.make_job(alice, gpus=0), factories.Node.objects.get())
    logstore.save(live.pk, 0, 0, TEXT).save()
    pack_all()
    assert [run.segments.get().packed for run in (ended, young, live)] == [[], None, None]
    assert logstore.read(ended, 10, 99_000) == noise[10:99_000]


def test_what_is_due_is_found_from_the_runs_that_ended_lately(alice: User) -> None:
    """Live runs of all hosts have hundreds of thousands of raw segments, and a host has ended runs without end."""
    old, lately = ended_run(alice, TEXT, hours_ago=9), ended_run(alice, TEXT)
    live = factories.make_run(factories.make_job(alice, gpus=0), factories.Node.objects.get())
    logstore.save(live.pk, 0, 0, TEXT).save()
    since = timezone.now() - timedelta(hours=2)
    assert not pack.pack_some("alpha", threading.Event(), since=since)
    assert [bool(run.segments.get().packed) for run in (old, lately, live)] == [False, True, False]
    with CaptureQueriesContext(connection) as looked:
        assert not pack.pack_some("alpha", threading.Event(), since=since)
    assert [query["sql"].startswith('SELECT "jobs_run"."id" AS') for query in looked] == [True]
    pack_all()
    assert [bool(run.segments.get().packed) for run in (old, lately, live)] == [True, True, False]


def test_a_segment_that_is_lost_keeps_no_other_from_being_packed(alice: User) -> None:
    lost, other = ended_run(alice, TEXT, cuts=(300_000,)), ended_run(alice, TEXT)
    logstore.delete_files([lost.segments.get(offset=300_000).name])
    pack_all()
    assert [bool(segment.packed) for segment in lost.segments.order_by("offset")] == [True, False]
    assert logstore.read(lost, 0, len(TEXT)) == TEXT[:300_000]
    assert other.segments.get().packed


def test_a_reader_that_looked_before_the_packing_reads_on_after_it(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_run(alice, TEXT)
    really = logstore._read_segment

    def late(segment: LogSegment, start: int, stop: int) -> bytes:
        monkeypatch.setattr(logstore, "_read_segment", really)
        pack_all()
        return really(segment, start, stop)

    monkeypatch.setattr(logstore, "_read_segment", late)
    assert logstore.read(run, 5, 500_000) == TEXT[5:500_000]
    assert run.segments.get().packed


def test_the_oldest_logs_of_who_has_too_much_go(alice: User, bob: User, settings: Any) -> None:
    runs = [ended_run(alice, b"x" * 100, hours_ago=hours) for hours in (4, 3, 2, 1)]
    others = ended_run(bob, b"x" * 200, hours_ago=9)
    keeper = retention.Retention()
    settings.LOG_USER_BYTES = 250
    keeper.prune(timezone.now())
    for run in (*runs, others):
        run.refresh_from_db()
    assert [logstore.is_expired(run) for run in runs] == [True, True, False, False]
    assert [logstore.read(run, 0, 100) for run in runs] == [b"", b"", b"x" * 100, b"x" * 100]
    assert not logstore.is_expired(others)


async def _download(client: AsyncClient, address: str, **headers: str) -> tuple[Any, bytes]:
    answer: Any = await client.get(address, headers=headers)
    if not answer.streaming:
        return answer, answer.content
    return answer, b"".join([part async for part in answer.streaming_content])


@pytest.fixture
def log(transactional_db: None, settings: Any) -> tuple[Run, AsyncClient]:
    settings.LOG_SEGMENT_BYTES = 1  # nothing is joined
    owner = factories.make_user("alice", teams=(factories.make_team("vision"),))
    run = ended_run(owner, TEXT, cuts=(300_000, 1_000_000))
    pack.pack_some("alpha", threading.Event())
    LogSegment.objects.filter(offset=300_000).update(packed=None)  # of an interrupted packing: see below
    segment = LogSegment.objects.get(offset=300_000)
    fresh = logstore.save(run.pk, 0, 300_000, TEXT[300_000:1_000_000])
    LogSegment.objects.filter(pk=segment.pk).update(name=fresh.name)
    client = AsyncClient()
    client.force_login(owner)
    return run, client


async def test_a_log_downloads_whole_in_part_and_compressed(log: tuple[Run, AsyncClient]) -> None:
    run, client = log
    address = f"/jobs/{run.job_id}/log/download"
    answer, data = await _download(client, address)
    assert (data, answer["Content-Length"]) == (TEXT, str(len(TEXT)))
    _, part = await _download(client, f"{address}?start=299990&end=1000010")
    assert part == TEXT[299_990:1_000_010]
    _, end = await _download(client, f"{address}?start=-50")
    assert end == TEXT[-50:]
    answer, packed = await _download(client, f"{address}?format=gz")
    assert (gzip.decompress(packed), answer["Content-Type"]) == (TEXT, "application/gzip")
    assert answer["Content-Disposition"].endswith('.log.gz"')
    _, packed = await _download(client, f"{address}?format=gz&start=17&end=1000001")
    assert gzip.decompress(packed) == TEXT[17:1_000_001]


async def test_a_download_that_broke_off_goes_on(log: tuple[Run, AsyncClient]) -> None:
    run, client = log
    address = f"/jobs/{run.job_id}/log/download"
    for asked, first, last in (
        ("bytes=500000-", 500_000, len(TEXT)),
        ("bytes=0-9", 0, 10),
        ("bytes=-7", -7, len(TEXT)),
    ):
        answer, data = await _download(client, address, range=asked)
        assert (answer.status_code, data) == (206, TEXT[first:last]), asked
    answer, _ = await _download(client, address, range="bytes=9999999-")
    assert (answer.status_code, answer["Content-Range"]) == (416, f"bytes */{len(TEXT)}")


def test_a_job_without_a_run_has_an_empty_download(alice: User, client: Client) -> None:
    job = factories.make_job(alice, gpus=0)
    client.force_login(alice)
    answer = client.get(f"/jobs/{job.pk}/log/download")
    assert (answer.status_code, answer.content) == (200, b"")
