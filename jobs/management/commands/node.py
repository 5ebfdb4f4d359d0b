"""`manage.py node`: one command per GPU host. A supervisor of RQ workers and the agent, each a process of its own.

With `--join` the host is first given its settings by the portal (`jobs/joinclient.py`), and goes on with these.

A child that dies is started again; when the supervisor dies, even by SIGKILL, the kernel ends the children.
Job containers are touched by neither.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from portal import readiness

log = logging.getLogger(__name__)
PR_SET_PDEATHSIG = 1
RESTART_PAUSE = 1.0


class Command(BaseCommand):
    help = "Run this host's node: RQ workers that start and stop containers, and the agent that follows them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--join", nargs=2, metavar=("URL", "TOKEN"), help="join the portal at this address first")
        parser.add_argument("--name", default="", help="what the host is to be called there; its short host name")
        parser.add_argument("--ca", default="", metavar="FILE", help="the authority that has signed for the portal")
        parser.add_argument("--no-start", action="store_true", help="with --join: write the settings, and end")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["join"]:
            self._join(options)
            return
        self.check(tags=["database"], databases=["default"])  # SQLite, say, with nodes of two hosts
        readiness.await_migrations()
        Supervisor(_roles()).run()

    def _join(self, options: dict[str, Any]) -> None:
        """Join, and begin anew with the settings that the portal gave."""
        from jobs import joinclient

        portal, token = options["join"]
        try:
            secret = sys.stdin.readline().strip() if token == "-" else token
            name = joinclient.join(portal, secret, name=options["name"] or settings.NODE_NAME, authority=options["ca"])
        except joinclient.CannotJoin as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Joined as {name}; the settings are in {joinclient.env_file()}.")
        self.stdout.flush()
        if not options["no_start"]:
            os.execv(sys.executable, [sys.executable, sys.argv[0], "node"])  # noqa: S606


def _roles() -> dict[str, Callable[[], None]]:
    from jobs import queues
    from jobs.agent import Agent

    name = settings.NODE_NAME

    def act_as_agent() -> None:
        agent = Agent()  # in its own process: the supervisor must hold none of its sockets and threads
        signal.signal(signal.SIGTERM, lambda *_: agent.stop())
        signal.signal(signal.SIGINT, lambda *_: agent.stop())
        agent.run()

    roles: dict[str, Callable[[], None]] = {"agent": act_as_agent}
    roles |= {
        f"start-{n}": lambda: queues.work(queues.node_queue(name), node=name) for n in range(settings.START_WORKERS)
    }
    roles["stop"] = lambda: queues.work(queues.stop_queue(name), node=name)
    return roles


class Supervisor:
    """Forks one child per role before it has threads or connections, and keeps them alive."""

    def __init__(self, roles: dict[str, Callable[[], None]]) -> None:
        self.roles = roles
        self.children: dict[int, str] = {}
        self.stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT, which are passed on; returns when all children have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for role in self.roles:
            self._fork(role)
        while self.children:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                return
            role = self.children.pop(pid, "")
            if role and not self.stopping:
                log.warning("%s (pid %d) ended with status %d: starting it again", role, pid, status)
                time.sleep(RESTART_PAUSE)
                if not self.stopping:
                    self._fork(role)

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True
        for pid in self.children:
            os.kill(pid, signal.SIGTERM)

    def _fork(self, role: str) -> None:
        connections.close_all()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be(role, parent)
        self.children[pid] = role

    def _be(self, role: str, parent: int) -> NoReturn:
        """The child: ends with its parent, and never returns."""
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        status = 1
        try:
            self.roles[role]()
            status = 0
        except Exception:
            log.exception("%s failed", role)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
