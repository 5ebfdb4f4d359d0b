"""Floods and full disks: a log ends where it may, with a line that says so, and no job suffers."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from jobs.follow import Follower
from tests.rigs import logs
from tests.rigs.engine import Engine
from tests.rigs.logs import Container, gate
from tests.rigs.processes import wait_until
from tests.rigs.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_flood_ends_at_the_limit_with_a_visible_line(engine: Engine, follower: Follower, settings: Any) -> None:
    """moby/moby#8911, travis-ci/travis-ci#1382: a flood filled the disk. The job goes on."""
    settings.LOG_LIMIT_BYTES = 500_000
    container = Container(engine, "yes | head -c 2500000; echo done > /done; cat /done; exit 5")
    assert container.attach()
    container.start()
    assert container.wait() == 5
    assert sum(path.stat().st_size for path in settings.SPOOL_DIR.rglob("*-whole")) < 1_000_000
    log = container.end(follower)
    mark = b"[log limit reached: 2000005 bytes not kept]\n"
    assert log == b"y\n" * 250_000 + mark
    assert container.run.log_dropped_bytes == 2_000_005


def test_the_limit_holds_over_a_mended_hole(engine: Engine, spool: Path) -> None:
    container = Container(engine, f"seq 1 20000; {gate('more')}; seq 20001 200000")
    expected = b"".join(b"%d\n" % i for i in range(1, 200001))
    with logs.running_agent(engine, LOG_LIMIT_BYTES="600000") as agent:
        assert container.attach()
        container.start()
        logs.wait_for_log(container.run, b"\n20000\n")
        agent.restart()
        assert agent.call("adopt", container.run.pk, container.id) == "ok"
        container.open("more")
        container.wait()
        assert agent.call("finish", container.run.pk, container.id, 60) == "ok"
    log = logs.stored(container.run)
    kept, mark = log[:600000], log[600000:]
    assert kept == expected[:600000]
    assert mark.strip() == b"[log limit reached: %d bytes not kept]" % (len(expected) - 600000)


def test_an_agent_killed_after_the_limit_shows_no_hole(engine: Engine, spool: Path) -> None:
    container = Container(engine, f"seq 1 20000; {gate('more')}; seq 20001 40000")
    with logs.running_agent(engine, LOG_LIMIT_BYTES="50000") as agent:
        assert container.attach()
        container.start()
        wait_until(lambda: len(logs.stored(container.run)) == 50000, "the limit")
        agent.restart()
        assert agent.call("adopt", container.run.pk, container.id) == "ok"
        container.open("more")
        container.wait()
        assert agent.call("finish", container.run.pk, container.id, 60) == "ok"
    log = logs.stored(container.run)
    assert log[:50000] == b"".join(b"%d\n" % i for i in range(1, 20001))[:50000]
    assert re.fullmatch(rb"\n?\[log limit reached: at least \d+ bytes not kept\]\n", log[50000:])


def test_memory_stays_small_in_a_flood_without_newlines(engine: Engine, spool: Path) -> None:
    """dfinity/icp-cli#679: worker memory grew with the line."""
    container = Container(engine, "yes x | tr -d '\\n' | head -c 60000000")
    with logs.running_agent(engine) as agent:
        before = agent.rss_mib
        assert container.attach()
        container.start()
        container.wait()
        assert agent.call("finish", container.run.pk, container.id, 60) == "ok"
        assert agent.rss_mib - before < 50
    container.run.refresh_from_db()
    assert container.run.log_bytes == 60000000


def test_a_full_disk_holds_the_job_and_loses_nothing(
    engine: Engine, redis_server: RedisServer, tmp_path: Path, settings: Any
) -> None:
    """The descriptors are kept, the trouble is told, and all goes on when there is room."""
    settings.SPOOL_DIR = tmp_path / "small"
    settings.SPOOL_DIR.mkdir()
    assert os.system(f"mount -t tmpfs -o size=2m tmpfs {settings.SPOOL_DIR}") == 0
    filler = settings.SPOOL_DIR / "filler"
    try:
        filler.write_bytes(b"x" * 1_500_000)
        with logs.running_follower() as follower:
            container = Container(engine, "seq 1 200000")
            assert container.attach()
            container.start()
            wait_until(lambda: container.run.pk in follower.problems(), "the trouble told")
            assert "No space" in follower.problems()[container.run.pk]
            filler.unlink()
            wait_until(lambda: not follower.problems(), "room again")
            container.wait()
            assert container.end(follower) == b"".join(b"%d\n" % i for i in range(1, 200001))
    finally:
        os.system(f"umount -l {settings.SPOOL_DIR}")
