"""Every byte a container prints is stored, in order of arrival, whatever it is and however it ends."""

import collections
import json
import time
from pathlib import Path
from typing import Any

import pytest
from redis.client import PubSub

from jobs import containers_logs, logstore
from jobs.follow import Follower
from jobs.models import LogSegment
from portal import live
from tests.rigs import logs
from tests.rigs.engine import Engine
from tests.rigs.logs import Container, gate
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)


def test_text_without_a_last_newline_is_kept(engine: Engine, follower: Follower) -> None:
    """moby/moby#43860, docker-java/docker-java#1841: the final error line was missing."""
    for _ in range(20):
        container = Container(engine, "printf 'start\\n'; sleep 0.1; printf FINAL; exit 1")
        assert container.play(follower) == b"start\nFINAL"


def test_a_container_that_ends_at_once_has_its_log(engine: Engine, follower: Follower) -> None:
    """docker/docker-py#3247, alpacaaa/quad-ci#1: an empty log for a job that printed and failed in 50 ms."""
    for _ in range(50):
        container = Container(engine, "echo quick; exit 3")
        assert container.play(follower) == b"quick\n"
        assert container.run.log_bytes == 6
        assert container.run.log_generation == 0


def test_a_character_cut_between_two_writes_stays_whole(engine: Engine, follower: Follower) -> None:
    """mathieu-lemay/pipeline-runner#88, dagster-io/dagster#33362."""
    container = Container(engine, r"printf '\303'; sleep 0.3; printf '\251'")
    assert container.play(follower) == "é".encode()


def test_a_long_line_is_not_cut_at_16_kib(engine: Engine, follower: Follower) -> None:
    """vectordotdev/vector#14644, docker/docker-py#1696."""
    container = Container(engine, "head -c 16383 /dev/zero | tr '\\0' x; echo éEND")
    assert container.play(follower) == b"x" * 16383 + "éEND\n".encode()


def test_each_redraw_of_a_progress_bar_arrives_at_once(engine: Engine, follower: Follower) -> None:
    r"""dagucloud/dagu#462, dstackai/dstack#186: no sign of life for an hour. `\r` without a newline is shown live."""
    steps = "; ".join(f"printf '\\r%s0%%' {step}; {gate(str(step))}" for step in range(1, 6))
    container = Container(engine, f"{steps}; echo")
    assert container.attach()
    container.start()
    for step in range(1, 6):
        seen = logs.wait_for_log(container.run, b"%d0%%" % step)
        assert b"\n" not in seen
        container.open(str(step))
    container.wait()
    assert container.end(follower) == b"\r10%\r20%\r30%\r40%\r50%\n"


def test_a_silent_job_is_not_ended_by_a_client_timeout(engine: Engine, follower: Follower, settings: Any) -> None:
    """docker/docker-py#2166, #931: a job was marked finished after a minute of silence."""
    container = Container(engine, f"{gate('end')}; echo end; exit 4")
    settings.ENGINE_TIMEOUT = 1
    wait_until(container.attach, "attached within that second")
    settings.ENGINE_TIMEOUT = 60
    container.start()
    time.sleep(3)  # three times that long
    container.open("end")
    container.wait()
    assert container.end(follower) == b"end\n"


def test_twenty_thousand_lines_at_full_speed_are_all_there_once(engine: Engine, follower: Follower) -> None:
    """moby/moby#37646, #39235: rotation left holes, and put engine errors into the output."""
    container = Container(engine, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done")
    assert container.play(follower) == b"".join(b"%d\n" % i for i in range(1, 20001))


def test_what_a_handler_prints_on_stop_is_kept(engine: Engine, follower: Follower) -> None:
    """dstackai/dstack#4285: the handler's "checkpoint saved" was missing."""
    container = Container(engine, "trap 'echo BYE; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    assert container.attach()
    container.start()
    logs.wait_for_log(container.run, b"up\n")
    container.api.kill(container.id, "TERM")
    container.wait()
    assert container.end(follower) == b"up\nBYE\n"


def test_binary_output_of_both_streams_is_stored_byte_for_byte(engine: Engine, follower: Follower) -> None:
    """NUL and invalid UTF-8 are bytes like others; the engine's own log is the witness."""
    script = "head -c 3000000 /dev/urandom & head -c 2000000 /dev/urandom >&2 & wait"
    container = Container(engine, script)
    assert container.attach()
    container.start()
    container.wait()
    log = _finished_but_kept(container, follower)
    witness = logs.engine_streams(container.id)
    assert {stream: len(data) for stream, data in witness.items()} == {1: 3000000, 2: 2000000}
    assert len(log) == 5000000
    assert collections.Counter(log) == collections.Counter(witness[1]) + collections.Counter(witness[2])


@pytest.mark.parametrize("redirect", ["", ">&2"], ids=["stdout", "stderr"])
def test_binary_output_has_the_same_hash(engine: Engine, follower: Follower, redirect: str) -> None:
    """One stream alone: SHA-256 of what was stored equals that which the job computed itself."""
    script = f"head -c 5000000 /dev/urandom > /f; cat /f {redirect}; sha256sum /f > /sum; cut -c1-64 /sum"
    log = Container(engine, script).play(follower)
    assert logs.digest(log[:5000000]) == log[5000000:].strip().decode() or (
        logs.digest(log[65:]) == log[:64].decode()  # the two streams may arrive in another order
    )


def test_ten_megabytes_without_a_newline_are_stored(engine: Engine, follower: Follower) -> None:
    """dfinity/icp-cli#679: a cap in lines does not bound bytes."""
    container = Container(engine, "yes x | tr -d '\\n' | head -c 10000000")
    assert container.play(follower) == b"x" * 10000000
    assert max(LogSegment.objects.values_list("length", flat=True)) <= 4 << 20


def test_two_hundred_thousand_lines_are_stored(engine: Engine, follower: Follower) -> None:
    """ansible/awx#9085, ArchiveTeam/ArchiveBot#333: handling each line could not keep up."""
    container = Container(engine, "seq 1 200000")
    assert container.play(follower) == b"".join(b"%d\n" % i for i in range(1, 200001))


def test_an_empty_log_is_complete(engine: Engine, follower: Follower) -> None:
    container = Container(engine, "true")
    assert container.play(follower) == b""
    assert container.run.log_bytes == 0


def test_a_container_that_cannot_start_has_an_empty_log(engine: Engine, follower: Follower) -> None:
    container = Container(engine, "true")
    assert container.attach()
    follower.finish(container.run.pk, container.id, 5)  # as after a start that the engine refused
    container.run.refresh_from_db()
    assert (container.run.log_complete, container.run.log_bytes, container.run.log_holes) == (True, 0, [])


def test_finishing_twice_changes_nothing(engine: Engine, follower: Follower) -> None:
    container = Container(engine, "echo once")
    assert container.play(follower) == b"once\n"
    follower.finish(container.run.pk, container.id, 5)
    assert logs.stored(container.run) == b"once\n"


def test_asking_to_attach_twice_attaches_once(engine: Engine, follower: Follower) -> None:
    container = Container(engine, "echo once")
    assert container.attach()
    assert container.attach()
    container.start()
    container.wait()
    assert container.end(follower) == b"once\n"


def test_nobody_answers_without_an_agent(engine: Engine, settings: Any, tmp_path: Path) -> None:
    settings.SPOOL_DIR = tmp_path
    assert not Container(engine, "true").attach(seconds=1)


def test_history_and_live_part_join_without_a_gap(engine: Engine, follower: Follower, settings: Any) -> None:
    """ansible/awx#13059: a page opened mid-run lacked a block in the middle."""
    settings.LOG_SEGMENT_BYTES = 1000
    container = Container(engine, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo n=$i; usleep 300; done")
    assert container.attach()
    container.start()
    expected = b"".join(b"n=%d\n" % i for i in range(1, 3001))
    at = 0
    while at < len(expected):
        container.run.refresh_from_db()
        data = logstore.read(container.run, at, at + 700)
        assert data == expected[at : at + len(data)]
        at += len(data)
    container.wait()
    assert container.end(follower) == expected


def test_news_tell_of_growth_and_of_the_end(
    engine: Engine, follower: Follower, redis_server: RedisServer, settings: Any
) -> None:
    container = Container(engine, "trap 'echo two; exit' USR1; echo one; while :; do sleep 0.1; done")
    ends: list[dict[str, object]] = []
    with live.connection().pubsub() as heard:
        heard.psubscribe("*")
        assert container.attach()
        container.start()
        wait_until(lambda: _gather(heard, container.run.pk, ends), "the news of the first line")
        container.api.kill(container.id, "SIGUSR1")
        container.wait()
        assert container.end(follower) == b"one\ntwo\n"
        wait_until(lambda: _gather(heard, container.run.pk, ends).get("complete"), "the news of the end")
    assert [news["end"] for news in ends if not news.get("complete")] in ([4], [4, 8])
    assert ends[-1] == {"generation": 0, "end": 8, "complete": True}


def _gather(heard: PubSub, run_id: int, news: list[dict[str, object]]) -> dict[str, object]:
    """Add what is heard of this run's log. The last news so far."""
    message = heard.get_message(timeout=0.2)
    if message and message["type"] == "pmessage" and message["channel"].decode().endswith(live.log_topic(run_id)):
        news.append(json.loads(message["data"]))
    return news[-1] if news else {}


def _finished_but_kept(container: Container, follower: Follower) -> bytes:
    follower.finish(container.run.pk, container.id, 30)
    container.run.refresh_from_db()
    assert containers_logs.status(container.id) == "exited"
    return logs.stored(container.run)
