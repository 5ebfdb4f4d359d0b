"""The one door to RQ, which delivers "make run N so" and decides nothing.

RQ imports whatever function name a payload holds. Our workers run only the tasks listed here, read JSON,
never pickle, and refuse callbacks and web hooks: whoever can write to Redis can at most repeat a task.
"""

import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import redis
from django.conf import settings
from django.db import close_old_connections
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import import_attribute

from jobs.hostrights import mark, worker_prefix
from portal import live

log = logging.getLogger(__name__)

SCHEDULE = "jobs.tasks.schedule"
LAUNCH = "jobs.tasks.launch"
STOP = "jobs.tasks.stop"
MAIL = "jobs.tasks.mail_end"
IDLE_MAIL = "jobs.tasks.mail_idle"
LISTED = frozenset({SCHEDULE, LAUNCH, STOP, MAIL, IDLE_MAIL})
DAY = 86400


class NotListed(Exception):
    """A payload named something that is no task of ours."""


class ListedJob(Job):
    """An RQ job that can only be one of our tasks, with a number or nothing as its argument."""

    success_callback = None
    failure_callback = None
    stopped_callback = None

    @property
    def func(self) -> Callable[..., Any]:
        name, arguments = self.func_name, [*self.args, *self.kwargs.values()]
        if name not in LISTED or self.instance is not None or not all(type(a) is int for a in arguments):
            raise NotListed(f"refused to run {str(name)[:100]!r}: not one of this portal's tasks")
        return import_attribute(str(name))

    def send_webhooks(self, *args: Any, **kwargs: Any) -> None:
        """Call nobody."""


class Worker(SimpleWorker):
    """Runs tasks in its own process, without a fork for each: our tasks are short and idempotent."""

    def __init__(self, queues: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["serializer"] = JSONSerializer
        kwargs["job_class"] = ListedJob
        kwargs.setdefault("name", _unique())
        super().__init__(queues, *args, **kwargs)

    def _set_ip_address(self, connection: redis.Redis) -> None:
        """RQ would ask Redis for the list of all clients, which hosts may not have."""
        connection.client_setname(self.name)
        self.ip_address = ""

    def perform_job(self, job: Job, queue: Queue) -> bool:
        close_old_connections()
        try:
            return bool(super().perform_job(job, queue))
        finally:
            close_old_connections()


@cache
def connection() -> redis.Redis:
    """This process's Redis client for RQ, which sets its own time-outs where it blocks."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=None, **live.keepalive())


def queue(name: str, client: redis.Redis | None = None) -> Queue:
    client = client or connection()
    return Queue(name, connection=client, serializer=JSONSerializer, job_class=ListedJob, default_timeout=DAY)


def node_queue(node: str) -> str:
    return f"node.{node}"


def stop_queue(node: str) -> str:
    return f"node.{node}.stop"


def lengths(names: Sequence[str]) -> dict[str, int]:
    """How many tasks wait in each of these queues. Raises RedisError."""
    with live.briefly() as client, client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(queue(name, client).key)
        return dict(zip(names, pipe.execute(), strict=True))


def wake_scheduler(*, urgent: bool = True) -> None:
    """Ask for a scheduling pass soon; several wishes before it begins make one pass.

    One that is not `urgent` may wait a moment for others like it while there was no room for those before.
    """
    if urgent:
        try:
            with live.briefly() as client:
                client.set(_urgent_key(), 1, ex=10)
        except redis.RedisError as error:
            log.warning("cannot reach Redis: %s", error)
    _send("scheduler", SCHEDULE, [], "schedule", coalesce=True)


def send_launch(node: str, run_id: int) -> None:
    """Ask the node to make the run so."""
    _send(node_queue(node), LAUNCH, [run_id], f"{mark(node)}-launch-{run_id}")


def send_stop(node: str, run_id: int) -> None:
    """Ask the node to look at the run's wish."""
    _send(stop_queue(node), STOP, [run_id], f"{mark(node)}-stop-{run_id}")


def send_mail(job_id: int) -> None:
    """Ask the scheduler to tell a job's owner by e-mail that it has ended: nodes know no mail server."""
    _send("scheduler", MAIL, [job_id], f"mail-{job_id}")


def send_idle_mail(run_id: int) -> None:
    """Ask the scheduler to tell a run's owner by e-mail that its GPUs are idle."""
    _send("scheduler", IDLE_MAIL, [run_id], f"mail-idle-{run_id}")


def pass_is_urgent() -> bool:
    """Whether one of the wishes since the last pass began was urgent."""
    try:
        return bool(connection().exists(_urgent_key()))
    except redis.RedisError as error:
        log.warning("cannot reach Redis: %s", error)
        return True


def pass_begins() -> None:
    """From here on a wish makes another pass."""
    try:
        connection().delete(_pending_key(), _urgent_key())
    except redis.RedisError as error:
        log.warning("cannot reach Redis: %s", error)


def _send(name: str, task: str, arguments: list[int], job_id: str, *, coalesce: bool = False) -> None:
    """Enqueue; never raises. What Redis loses, the periodic passes find in the database."""
    try:
        with live.briefly() as client:
            if coalesce and not client.set(_pending_key(), 1, nx=True, ex=10):
                return
            # The id is fresh each time: RQ deletes a finished job's hash, also when the same id is queued again.
            queue(name, client).enqueue_call(
                task, args=arguments, job_id=f"{job_id}-{uuid.uuid4().hex[:8]}", result_ttl=0, failure_ttl=3600
            )
    except redis.RedisError as error:
        log.warning("could not enqueue %s on %s, a periodic pass will make up for it: %s", job_id, name, error)


def _pending_key() -> str:
    return f"dockyard.{settings.INSTALLATION}.pass"


def _urgent_key() -> str:
    return f"dockyard.{settings.INSTALLATION}.pass.urgent"


def work(*names: str, node: str = "") -> None:
    """Be a worker of these queues until told to stop by a signal; reconnects by itself. `node`: whose they are."""
    name = {"name": f"{worker_prefix(node)}{_unique()}"} if node else {}
    worker = Worker([queue(name) for name in names], connection=connection(), **name)
    worker.work(logging_level="WARNING", with_scheduler=False)


def _unique() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
