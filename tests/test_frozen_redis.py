"""A Redis that takes connections and answers nothing costs pages a moment, once, and browsers learn of it."""

import time
from typing import Any

import pytest
import redis
from django.test import Client

from jobs import queues
from jobs.models import AllocationSlot, Job
from portal import live
from tests import factories
from tests.rigs.redis import RedisServer
from tests.sockets import in_db, message, open_socket

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE, REST = 0.5, 300.0


@pytest.fixture(autouse=True)
def patience(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REDIS_PATIENCE, settings.REDIS_REST = PATIENCE, REST
    live._brief_connection.cache_clear()
    monkeypatch.setattr(live, "_rest", {"until": 0.0})


def _job() -> Job:
    team = factories.make_team("vision")
    node = factories.make_node(gpus=2)
    job = factories.make_job(factories.make_user("alice", teams=(team,)), team)
    factories.make_run(job, node)
    return job


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of Redis and waited for in vain, one entry a time."""
    found, read = [], redis.connection.AbstractConnection.read_response

    def reading(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except redis.TimeoutError:
            found.append(args[0])
            raise

    monkeypatch.setattr(redis.connection.AbstractConnection, "read_response", reading)
    return found


def test_pages_wait_for_it_once_and_then_not_at_all(
    client: Client, redis_server: RedisServer, waits: list[Any]
) -> None:
    job = _job()
    client.force_login(job.owner)
    with redis_server.frozen():
        for path in ("/", "/jobs/", f"/jobs/{job.pk}/", "/gpus/", "/queue/", f"/jobs/{job.pk}/log"):
            assert client.get(path).status_code == 200, path
        assert client.post(f"/jobs/{job.pk}/cancel/").status_code == 302
        queues.wake_scheduler()
        assert time.monotonic() < live._rest["until"]
    assert len(waits) == 1


def test_it_is_asked_again_after_the_rest(redis_server: RedisServer) -> None:
    with redis_server.frozen():
        live.publish("jobs", {})
        assert time.monotonic() < live._rest["until"]
    live._rest["until"] = 0.0
    with live.briefly() as connection:
        assert connection.ping()


async def test_browsers_hear_that_news_no_longer_come_and_that_they_come_again(
    redis_server: RedisServer, settings: Any
) -> None:
    settings.NEWS_PING, settings.NEWS_SILENCE = 0.1, 0.4
    job = await in_db(_job)()
    owner = await in_db(lambda: job.owner)()
    async with open_socket("/ws/changes/", owner) as socket:
        await message(socket, lambda found: "jobs" in found)
        with redis_server.frozen():
            assert await message(socket, lambda found: found.get("live") is False)
            async with open_socket("/ws/changes/", owner) as late:
                assert await message(late, lambda found: found.get("live") is False)
        assert await message(socket, lambda found: found.get("live") is True)


def test_who_holds_a_gpu_is_known_without_readings(client: Client, redis_server: RedisServer) -> None:
    job = _job()
    client.force_login(job.owner)
    redis_server.stop()
    gpus = client.get("/gpus/now.json").json()["nodes"][0]["gpus"]
    held = AllocationSlot.objects.get(released_at=None).gpu.uuid
    assert {gpu["uuid"]: gpu["job"] for gpu in gpus}[held] == job.pk
    assert {gpu["uuid"]: gpu["job_name"] for gpu in gpus}[held] == job.name
