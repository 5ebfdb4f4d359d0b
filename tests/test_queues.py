"""RQ runs a closed list of tasks with numbers as arguments, reads JSON, and calls nobody back."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from rq import Queue
from rq.job import Callback
from rq.serializers import JSONSerializer

from jobs import queues
from tests.rigs.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)  # a worker closes connections


@pytest.fixture
def queue(redis_server: RedisServer) -> Any:
    queues.connection.cache_clear()
    # As anybody with access to Redis could write to it: RQ's own classes, no list.
    return Queue("scheduler", connection=queues.connection(), serializer=JSONSerializer)


def burst() -> None:
    queues.Worker([queues.queue("scheduler")], connection=queues.connection()).work(burst=True, logging_level="ERROR")


@pytest.mark.parametrize("function", ["os.system", "builtins.exec", "jobs.tasks.os.system", "jobs.launch.launch"])
def test_only_listed_tasks_run(function: str, queue: Any, tmp_path: Path) -> None:
    """RQ imports whatever name a payload holds; rq/rq#2389 for the pickle half of it."""
    made = tmp_path / "made"
    job = queue.enqueue_call(function, args=[f"touch {made}"])
    burst()
    assert not made.exists()
    assert job.get_status(refresh=True) == "failed"


def test_a_listed_task_takes_numbers_only(queue: Any) -> None:
    job = queue.enqueue_call("jobs.tasks.launch", args=["1; rm -rf /"])
    burst()
    assert job.get_status(refresh=True) == "failed"


def test_callbacks_are_refused(queue: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    os.environ["DOCKYARD_TEST_MADE"] = str(made)
    for when in ("on_success", "on_failure", "on_stopped"):
        queue.enqueue_call("jobs.tasks.launch", args=[0], **{when: Callback("tests.test_queues.touch")})
        queue.enqueue_call("os.getpid", **{when: Callback("tests.test_queues.touch")})
    burst()
    assert not made.exists()


def touch(*_args: Any) -> None:
    Path(os.environ["DOCKYARD_TEST_MADE"]).touch()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def test_a_crafted_pickle_is_not_opened(queue: Any, tmp_path: Path) -> None:
    """rq/rq#2389."""
    made = tmp_path / "made"
    job = queue.enqueue_call("jobs.tasks.launch", args=[0])
    queues.connection().hset(job.key, "data", pickle.dumps(("jobs.tasks.launch", None, [Bomb(str(made))], {})))
    burst()
    assert not made.exists()


def test_payloads_hold_a_name_and_a_number(redis_server: RedisServer) -> None:
    queues.connection.cache_clear()
    queues.send_launch("alpha", 7)
    (job,) = queues.queue("node.alpha").jobs
    assert (job.func_name, job.args, job.kwargs) == ("jobs.tasks.launch", [7], {})


def test_wishes_for_a_pass_are_gathered(redis_server: RedisServer) -> None:
    queues.connection.cache_clear()
    for _ in range(5):
        queues.wake_scheduler()
    assert len(queues.queue("scheduler")) == 1
    queues.pass_begins()
    queues.wake_scheduler()
    assert len(queues.queue("scheduler")) == 2


def test_only_wishes_that_may_make_room_are_urgent_until_a_pass_begins(redis_server: RedisServer) -> None:
    queues.connection.cache_clear()
    queues.pass_begins()
    queues.wake_scheduler(urgent=False)
    assert not queues.pass_is_urgent()
    queues.wake_scheduler()
    assert queues.pass_is_urgent()
    queues.pass_begins()
    assert not queues.pass_is_urgent()


def test_a_dead_redis_is_no_error_of_ours(redis_server: RedisServer) -> None:
    """rq/django-rq#562: a submit during an outage must be kept, and started later from the database."""
    queues.connection.cache_clear()
    redis_server.stop()
    try:
        queues.wake_scheduler()
        queues.send_launch("alpha", 1)
        queues.send_stop("alpha", 1)
    finally:
        redis_server.start()
