"""Agents are killed, Redis, the database and engines fail, disks fill: the log is whole, or says what it lacks."""

import collections
import os
import re
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from jobs import logstore, tail
from jobs.finish import end_without_container
from jobs.follow import AnotherAgent, Follower
from jobs.models import LogSegment, Run
from jobs.reconcile import reconcile
from jobs.states import EndReason, JobState, RunState
from tests.rigs import logs
from tests.rigs.engine import Engine, running_engine
from tests.rigs.logs import Container, gate
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)

RECOVERING = b"[output being recovered]"
UNTIL_TERM = 'trap end=1 TERM; while [ -z "$end" ]; do {0}; done; wait; printf END'


# --- the agent ---


def killed_twice(container: Container, agent: logs.AgentProcess, *, at_least: int = 100) -> bytes:
    """Kill the agent twice while the container prints, then end both. Returns what was shown in between.

    `at_least`: so many bytes are shown by the end.
    """
    assert container.attach()
    container.start()
    for _ in range(2):
        more_than(logstore.size(container.run), container)
        time.sleep(0.3)
        agent.restart()
        assert agent.call("adopt", container.run.pk, container.id) == "ok"
    shown = logs.wait_for_log(container.run, RECOVERING)
    more_than(at_least, container)
    container.api.kill(container.id, "TERM")
    container.wait()
    assert agent.call("finish", container.run.pk, container.id, 30) == "ok"
    container.run.refresh_from_db()
    assert container.run.log_holes == []
    assert container.run.log_generation == 1
    return shown


def more_than(size: int, container: Container) -> None:
    """Wait until so many bytes of its log are shown."""
    wait_until(lambda: logstore.size(container.run) > size, f"more than {size} bytes shown")


def test_an_agent_killed_in_mid_log_leaves_no_hole(engine: Engine, spool: Path) -> None:
    """gliderlabs/logspout#244, amir20/dozzle#2783: a restart doubled lines, or lost some."""
    container = Container(engine, "i=0; " + UNTIL_TERM.format("i=$((i+1)); echo n=$i; usleep 1000"))
    with logs.running_agent(engine, TZ="Asia/Kathmandu", LOG_SEGMENT_BYTES="2000") as agent:
        shown = killed_twice(container, agent)
    assert shown.startswith(b"n=1\nn=2\n")
    log = logs.stored(container.run)
    assert log == b"".join(b"n=%d\n" % i for i in range(1, log.count(b"n=") + 1)) + b"END"
    assert set(LogSegment.objects.values_list("generation", flat=True)) == {1}


def test_a_bar_that_redraws_its_line_for_long_is_whole_after_a_kill(engine: Engine, spool: Path) -> None:
    """The engine stamps a line when it ends, which may be long after its first byte came."""
    bar = "for i in $(seq 1 8); do printf '\\rstep %s' $i; sleep 0.5; done"
    container = Container(engine, f"{bar}; echo; {bar}; echo")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"step 2")
        agent.kill()
        container.wait()
        agent.start()
        assert agent.call("finish", container.run.pk, container.id, 10) == "ok"
    line = b"".join(b"\rstep %d" % i for i in range(1, 9)) + b"\n"
    assert logs.stored(container.run) == line * 2
    container.run.refresh_from_db()
    assert container.run.log_holes == []


@pytest.mark.parametrize("stream", [1, 2], ids=["stdout", "stderr"])
def test_binary_output_has_the_same_hash_after_kills(engine: Engine, spool: Path, stream: int) -> None:
    """The witness is the engine's own log."""
    redirect = "" if stream == 1 else "exec >&2; "
    container = Container(engine, redirect + UNTIL_TERM.format("head -c 200000 /dev/urandom; usleep 50000"))
    with logs.running_agent(engine, LOG_SEGMENT_BYTES="100000") as agent:
        killed_twice(container, agent, at_least=1_100_000)
    witness = logs.engine_streams(container.id)[stream]
    assert len(witness) > 1000000
    assert logs.digest(logs.stored(container.run)) == logs.digest(witness)


def test_an_agent_that_is_just_being_started_is_waited_for(engine: Engine, spool: Path) -> None:
    """dstackai/dstack#4285's kind: a job that started while its node was upgraded showed no output until its end."""
    container = Container(engine, "echo early; sleep 1")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(container.attach)
        time.sleep(0.3)
        with logs.running_agent(engine) as agent:
            assert asked.result(60)
            container.start()
            container.wait()
            assert agent.call("finish", container.run.pk, container.id, 20) == "ok"
    container.run.refresh_from_db()
    assert (logs.stored(container.run), container.run.log_generation) == (b"early\n", 0)


def test_two_binary_streams_lose_nothing_over_kills(engine: Engine, spool: Path) -> None:
    """One of them without a single newline."""
    step = "head -c 100000 /dev/urandom & head -c 100000 /dev/urandom | tr -d '\\n' >&2 & usleep 50000"
    container = Container(engine, UNTIL_TERM.format(step))
    with logs.running_agent(engine) as agent:
        killed_twice(container, agent)
    witness = logs.engine_streams(container.id)
    log = logs.stored(container.run)
    assert len(log) == sum(len(data) for data in witness.values())
    assert collections.Counter(log) == collections.Counter(witness[1]) + collections.Counter(witness[2])


def test_a_container_that_ends_while_no_agent_is_there_has_its_log(engine: Engine, spool: Path) -> None:
    """Also its last line, too long for one record, with and without the newline that the engine's reading drops."""
    for ending in ("echo", "true"):
        long_line = f"echo seen; {gate('unheard')}; head -c 40000 /dev/zero | tr '\\0' x; {ending}; printf unseen >&2"
        container = Container(engine, long_line)
        with logs.running_agent(engine) as agent:
            assert container.attach()
            container.start()
            logs.wait_for_log(container.run, b"seen")
            agent.kill()
            container.open("unheard")
            container.wait()
            agent.start()
            assert agent.call("adopt", container.run.pk, container.id) == "ok"
            assert agent.call("finish", container.run.pk, container.id, 10) == "ok"
        log = logs.stored(container.run)
        assert log.replace(b"unseen", b"") == b"seen\n" + b"x" * 40000 + (b"\n" if ending == "echo" else b"")
        assert log.count(b"unseen") == 1
        container.run.refresh_from_db()
        assert container.run.log_generation == 0  # nothing after the hole had been shown


def test_a_container_started_without_an_agent_is_read_from_the_engine(engine: Engine, follower: Follower) -> None:
    container = Container(engine, f"echo early; echo error >&2; {gate('late')}; echo late")
    container.start()  # the acknowledgement never came
    logs.engine_has(container, b"early\n")
    logs.engine_has(container, b"error\n")
    follower.attach(container.run.pk, container.id)
    container.open("late")
    logs.wait_for_log(container.run, b"late")
    assert RECOVERING in logs.stored(container.run)
    container.wait()
    log = container.end(follower)
    assert sorted(log.splitlines()) == [b"early", b"error", b"late"]
    assert container.run.log_generation == 1


def test_a_run_whose_spool_is_missing_is_read_from_the_engine(engine: Engine, follower: Follower) -> None:
    container = Container(engine, "echo one; echo two")
    container.start()
    container.wait()
    assert container.end(follower) == b"one\ntwo\n"
    assert container.run.log_generation == 0


def test_what_nobody_has_is_marked(engine: Engine, spool: Path) -> None:
    container = Container(engine, "echo seen; sleep 60")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"seen")
        agent.restart()
        container.api.remove_container(container.id, force=True)
        assert agent.call("finish", container.run.pk, container.id, 1) == "ok"
    assert logs.stored(container.run) == b"seen\n[some bytes not recorded]\n"
    container.run.refresh_from_db()
    assert container.run.log_holes == [{"stream": None, "offset": 5, "reason": "CONTAINER_GONE"}]


def test_an_engine_log_that_began_anew_is_not_joined(
    engine: Engine, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moby/moby#37646: with its log full the engine throws it away; what repeats would be joined wrongly in silence."""
    small = {"Type": "local", "Config": {"max-size": "100k", "max-file": "1", "compress": "false"}}
    monkeypatch.setattr("jobs.containers_logs.log_config", lambda: small)
    container = Container(engine, f"yes | head -n 3; {gate('more')}; yes | head -n 9000; sleep 1; exit 0")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"y\ny\ny\n")
        agent.kill()
        time.sleep(3.5)  # less would not tell: stamps are of whole seconds, and clocks may differ by two
        container.open("more")
        container.wait()
        agent.start()
        assert agent.call("finish", container.run.pk, container.id, 10) == "ok"
    assert logs.stored(container.run) == b"y\ny\ny\n[some bytes not recorded]\n"
    container.run.refresh_from_db()
    assert [hole["reason"] for hole in container.run.log_holes] == ["ENGINE_LOG_CAPPED"]


def test_a_run_without_container_has_an_empty_log(engine: Engine, follower: Follower) -> None:
    run = logs.make_run()
    follower.finish(run.pk, "", 1)
    run.refresh_from_db()
    assert (run.log_complete, run.log_bytes, run.log_holes) == (True, 0, [])


def test_a_start_that_was_given_up_leaves_nothing_behind(engine: Engine, follower: Follower, spool: Path) -> None:
    """Cancelled, or refused by the engine, once attached to: each left its spool, two files and a thread for good."""
    given_up, going_on = Container(engine, "true"), Container(engine, f"{gate('end')}; echo heard")
    for container in (given_up, going_on):
        assert container.attach()
    given_up.api.remove_container(given_up.id)
    Run.objects.filter(pk=given_up.run.pk).update(state=RunState.STARTING)
    assert end_without_container(given_up.run, EndReason.STOPPED_BY_USER, "")
    follower.forget_ended()
    assert [path.name for path in spool.iterdir() if path.name.isdigit()] == [str(going_on.run.pk)]
    assert follower.active_runs() == {going_on.run.pk}
    going_on.start()
    going_on.open("end")
    going_on.wait()
    assert going_on.end(follower) == b"heard\n"


def test_what_was_captured_of_a_run_that_was_given_up_is_kept_though_its_container_is_gone(
    engine: Engine, spool: Path, settings: Any
) -> None:
    with logs.running_follower():
        container = Container(engine, f"echo heard; {gate('end')}")
        settings.NODE_NAME = container.run.node.name
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"heard\n")
    container.api.remove_container(container.id, force=True)
    container.run.end(RunState.RUNNING, EndReason.HOST_LOST, JobState.LOST, now=timezone.now())
    with logs.running_follower() as follower:
        reconcile(follower, lambda _run: pytest.fail("nothing else has ended"))
    container.run.refresh_from_db()
    assert container.run.log_complete
    assert logs.stored(container.run).startswith(b"heard\n")
    assert [path for path in spool.iterdir() if path.name.isdigit()] == []


def test_only_one_agent_has_the_spool(engine: Engine, follower: Follower) -> None:
    with pytest.raises(AnotherAgent):
        Follower().start()


# --- the engine ---


def test_an_engine_restarted_under_a_running_container_leaves_no_hole(
    redis_server: RedisServer, spool: Path, settings: Any
) -> None:
    """M14: with live-restore the stream ends quietly and the job goes on."""
    with running_engine(live_restore=True) as engine:
        settings.DOCKER_HOST = engine.url
        with logs.running_follower() as follower:
            lines = "for i in $(seq 1 60); do echo line $i; sleep 0.1; done"
            container = Container(engine, f"{lines}; {gate('end')}; exit 7")
            assert container.attach()
            container.start()
            logs.wait_for_log(container.run, b"line 5\n")
            engine.restart()
            wait_until(lambda: container.run.pk in follower.active_runs(), "attached again")
            container.open("end")
            container.wait()
            log = container.end(follower)
    assert log == b"".join(b"line %d\n" % i for i in range(1, 61))
    assert container.run.log_holes == []


def test_an_engine_that_crashed_leaves_a_whole_or_marked_log(
    redis_server: RedisServer, spool: Path, settings: Any
) -> None:
    with running_engine(live_restore=True) as engine:
        settings.DOCKER_HOST = engine.url
        with logs.running_follower() as follower:
            parts = "for i in $(seq 1 60); do printf 'part '; sleep 0.1; echo $i; done"
            container = Container(engine, f"{parts}; {gate('end')}")
            away = Container(engine, f"echo before; {gate('gone')}; echo unheard")
            for one in (container, away):
                assert one.attach()
                one.start()
            logs.wait_for_log(container.run, b"part 5\n")
            logs.wait_for_log(away.run, b"before\n")
            gone = Path(f"/proc/{away.pid}/root/tmp/gone")
            engine.kill()
            gone.touch()
            wait_until(lambda: not gone.exists(), "it ends while no engine is there")
            engine.start()
            wait_until(lambda: container.run.pk in follower.active_runs(), "attached again")
            container.open("end")
            container.wait()
            log, cut = container.end(follower), away.end(follower)
    assert cut == b"before\n[some bytes not recorded]\n"
    assert [hole["reason"] for hole in away.run.log_holes] == ["ENGINE_DIED"]
    expected = b"".join(b"part %d\n" % i for i in range(1, 61))
    assert log == expected or (b"not recorded" in log and container.run.log_holes)
    assert log.startswith(b"part 1\npart 2\npart 3\n")
    assert log.endswith(b"part 60\n")


# --- Redis and the database ---


def test_a_flushed_redis_loses_nothing(engine: Engine, follower: Follower, redis_server: RedisServer) -> None:
    """What the tail held is in a segment at once, and readers go on without a gap."""
    container = Container(engine, "for i in $(seq 1 40); do echo line $i; sleep 0.05; done")
    assert container.attach()
    container.start()
    logs.wait_for_log(container.run, b"line 5\n")
    redis_server.flush()
    seen = logs.wait_for_log(container.run, b"line 12\n")
    assert seen.startswith(b"line 1\nline 2\n")
    container.wait()
    assert container.end(follower) == b"".join(b"line %d\n" % i for i in range(1, 41))


def test_a_redis_that_is_down_stops_no_job_and_loses_nothing(
    engine: Engine, follower: Follower, redis_server: RedisServer
) -> None:
    """moby/moby#22502, docker/compose#6018: an unread attach stream freezes the job."""
    container = Container(
        engine, "for i in $(seq 1 30); do head -c 100000 /dev/zero | tr '\\0' x; echo $i; sleep 0.1; done"
    )
    assert container.attach()
    container.start()
    logs.wait_for_log(container.run, b"x1\n")
    redis_server.stop()
    container.wait()
    took = time.monotonic()
    follower.finish(container.run.pk, container.id, 240)
    assert time.monotonic() - took < 120
    redis_server.start()
    assert container.end(follower) == b"".join(b"x" * 100000 + b"%d\n" % i for i in range(1, 31))


def test_a_locked_database_stops_no_job_and_the_log_catches_up(
    engine: Engine, follower: Follower, settings: Any
) -> None:
    """moby/moby#22502: with the database blocked, a job that prints 1 MB/s goes on at its own pace."""
    if connection.vendor != "sqlite":
        pytest.skip("a lock on the whole database is SQLite's")
    settings.LOG_SEGMENT_BYTES = 100_000
    container = Container(
        engine, "for i in $(seq 1 40); do head -c 100000 /dev/zero | tr '\\0' x; echo $i; sleep 0.1; done"
    )
    assert container.attach()
    container.start()
    logs.wait_for_log(container.run, b"x1\n")
    locker = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    enough = min(spooled(Path(settings.SPOOL_DIR)) + 1_000_000, 4_000_000)  # which is all that it prints
    wait_until(lambda: spooled(Path(settings.SPOOL_DIR)) >= enough, "the job goes on under the lock")
    locker.execute("ROLLBACK")
    container.wait()
    assert re.findall(rb"x(\d+)\n", container.end(follower)) == [b"%d" % i for i in range(1, 41)]


def spooled(folder: Path) -> int:
    """Bytes of output that lie on the host's disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- readers ---


def test_a_reader_sees_the_stored_part_when_redis_is_down(
    engine: Engine, follower: Follower, redis_server: RedisServer, settings: Any
) -> None:
    settings.LOG_SEGMENT_BYTES, settings.LOG_SEGMENT_PERIOD = 10, 3600
    container = Container(engine, f"printf 0123456789; {gate('rest')}; echo; sleep 1")
    assert container.attach()
    container.start()
    wait_until(lambda: logstore.stored_end(container.run.pk, 0) == 10, "the first segment")
    container.open("rest")
    logs.wait_for_log(container.run, b"789\n")
    redis_server.stop()
    assert logstore.read(container.run, 2, 8) == b"234567"
    assert logstore.read(container.run, 0, 100) == b"0123456789"
    container.wait()
    follower.finish(container.run.pk, container.id, 10)


def test_a_stale_tail_is_never_read_over_a_gap(redis_server: RedisServer) -> None:
    run = logs.make_run()
    wait_until(lambda: not tail.is_resting(), "Redis asked again")
    tail.push(run.pk, 0, 10, b"0123456789", entries=1)
    tail.push(run.pk, 0, 30, b"abcdefghij", entries=2)
    assert tail.read(run.pk, 0, 3, 40) == b"3456789"
    assert tail.read(run.pk, 0, 22, 25) == b"cde"
    with pytest.raises(tail.OutOfStep):
        tail.push(run.pk, 0, 30, b"again", entries=3)


def test_a_download_waits_for_bytes_that_a_node_lays_out_anew(redis_server: RedisServer) -> None:
    """They were counted before a node came back; the answer has said how many there will be."""
    run = logs.make_run()
    wait_until(lambda: not tail.is_resting(), "Redis asked again")
    tail.push(run.pk, 0, 10, b"0123456789", entries=1)
    pieces = logstore.stream(run, 0, logstore.size(run))
    tail.drop(run.pk, 0)
    threading.Timer(0.2, tail.push, (run.pk, 0, 10, b"0123456789"), {"entries": 1}).start()
    assert b"".join(pieces) == b"0123456789"


def test_a_segment_cut_while_somebody_reads_is_read_all_the_same(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a segment at the first look, and no more in the tail at the second."""
    run, look = logs.make_run(), tail.read
    wait_until(lambda: not tail.is_resting(), "Redis asked again")
    tail.push(run.pk, 0, 10, b"0123456789", entries=1)

    def cut_before(*place: int) -> bytes:
        if tail.end(run.pk, 0):
            logstore.save(run.pk, 0, 0, b"0123456789").save()
            tail.trim(run.pk, 0, 10)
        return look(*place)

    monkeypatch.setattr(tail, "read", cut_before)
    assert logstore.read(run, 0, 10) == b"0123456789"
    assert logstore.read(run, 10, 20) == b""


def test_killing_the_agent_stops_no_container(engine: Engine, spool: Path) -> None:
    """An attach socket that nobody reads would; a closed one does not."""
    container = Container(engine, "seq 1 300000 > /dev/null; seq 1 300000; echo done > /done")
    with logs.running_agent(engine) as agent:
        assert container.attach()
        os.kill(agent.pid, signal.SIGSTOP)  # reads nothing
        container.start()
        time.sleep(0.5)
        agent.kill()
        assert container.wait() == 0
