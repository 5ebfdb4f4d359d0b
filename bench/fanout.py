"""1,000 browsers on the GPUs page at one reading a second, against plain Channels with `group_send` in the same run.

The web process is on one core, the browsers on another, with Redis and who plays the node wherever there is room.
`SOCKETS` and `SECONDS` shorten it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.test import Client

from bench._report import report, say
from bench._rig import percentile
from bench._web import GROUP, ROOT, cookies_of, cpu_seconds_of, hear, helpers, kept, pin, tell
from gpus import simulated
from gpus.attribute import Rules, attribute
from gpus.claims import Claim
from gpus.models import Node
from gpus.readings import HostReading
from gpus.record import Recorder
from tests import factories
from tests.rigs.processes import free_port, tail_of, terminate, wait_until
from tests.rigs.redis import running_redis
from tests.rigs.stack import Stack

SOCKETS, SECONDS = int(os.environ.get("SOCKETS", "1000")), int(os.environ.get("SECONDS", "60"))
TEAMS, USERS_A_TEAM, GPUS = 5, 4, 8
BOUNDS = {"p99_ms": 150.0, "ratio": 0.25}
Publish = Callable[[HostReading], None]


class Host:
    """A node's part: its readings, of which some jobs hold the GPUs."""

    def __init__(self, owners: list[Any]) -> None:
        node = factories.make_node("alpha", gpus=0)
        self.claims: list[Claim] = []
        self.recorder = Recorder("alpha")
        self.recorder.record(self.reading())
        for number, gpu in enumerate(Node.objects.get(name="alpha").gpus.order_by("index")[: GPUS // 2]):
            owner = owners[number % len(owners)]
            run = factories.make_run(factories.make_job(owner), node, gpus=(gpu,))
            container = f"{number:064x}"
            self.claims.append(Claim(
                gpu_uuid=gpu.uuid, container_id=container, job=run.job_id, run=run.pk, owner=owner.username,
            ))  # fmt: skip

    def reading(self) -> HostReading:
        read = simulated.read_host(
            "alpha", self.claims, time.time(), count=GPUS, model="NVIDIA A100-SXM4-40GB", memory_mib=40960
        )
        return attribute(read, self.claims, Rules())


def measure(name: str, web: int, port: int, path: str, cookies: list[str], host: Host, publish: Publish) -> Any:
    """One minute of one way; `web` is the process that serves it."""
    pin(web, 0)
    with helpers("bench._fanout_browsers") as clients:
        several = [cookies[number % len(cookies)] for number in range(SOCKETS)]
        asked = {"port": port, "paths": [path] * SOCKETS, "cookies": several, "cpu": 1, "samples": SECONDS}
        tell(clients, asked)
        say(f"{name}: {hear(clients)['open']} sockets are open")
        time.sleep(2)
        tell(clients, {"since": time.time()})
        before, begun = cpu_seconds_of(web), time.monotonic()
        for number in range(SECONDS):
            time.sleep(max(0.0, begun + number + 0.5 - time.monotonic()))
            publish(host.reading())
        tell(clients, {"over": True})
        found = hear(clients)
        server = cpu_seconds_of(web) - before
    wanted = SOCKETS * SECONDS
    micro = 1e6 / max(1, found["delivered"])
    said = {
        "delivered": found["delivered"], "wanted": wanted, "closed": found["closed"], "bytes": found["bytes"],
        "p50_ms": percentile(found["late"], 50), "p99_ms": percentile(found["late"], 99), "max_ms": max(found["late"]),
        "server_us": round(server * micro, 1), "browsers_us": round(found["cpu_seconds"] * micro, 1),
    }  # fmt: skip
    say(f"{name}: {said}")
    return said


def ours(stack: Stack, host: Host, cookies: list[str]) -> dict[str, Any]:
    stack.start("web")
    stack.wait_ready("web")
    try:
        return measure("ours", stack.pid("web"), stack.port, "/ws/gpus/", cookies, host, host.recorder.record)
    finally:
        stack.stop("web")


def plain(stack: Stack, host: Host, cookies: list[str]) -> dict[str, Any]:
    port, send = free_port(), async_to_sync(get_channel_layer().group_send)
    log = stack.logs / "plain.log"
    command = [sys.executable, "-m", "uvicorn", "bench._plain:application", "--port", str(port), "--no-access-log",
               "--ws-per-message-deflate", "false", "--log-level", "warning", "--lifespan", "off"]  # fmt: skip
    with log.open("ab") as out:
        web = subprocess.Popen(command, cwd=ROOT, env=stack.env, stdout=out, stderr=out)
    try:
        wait_until(lambda: not port_is_free(port), f"plain Channels: {tail_of(log)}")
        return measure(
            "plain Channels", web.pid, port, "/", cookies, host,
            lambda reading: send(GROUP, {"type": "reading", "reading": as_ours(reading)}),
        )  # fmt: skip
    finally:
        terminate(web)


def port_is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def as_ours(reading: HostReading) -> dict[str, Any]:
    """The same bytes for either way: with whose job is on each GPU, and without the containers."""
    plain = reading.as_dict()
    for gpu in plain["gpus"]:
        held = {"job": gpu["job"], "owner": gpu["owner"], "job_name": None}
        gpu |= {"job_name": None, "holders": [held] if gpu["job"] else []}
    return {"nodes": [plain | {"containers": []}]}


def main() -> None:
    port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with running_redis(port=port):
        stack = Stack("unix:///no-engine.sock", periods={})
        try:
            stack.prepare()
            teams = [factories.make_team(f"team{number}") for number in range(TEAMS)]
            users = [
                factories.make_user(f"u{number}", teams=(teams[number % TEAMS],))
                for number in range(TEAMS * USERS_A_TEAM)
            ]
            cookies = cookies_of(users, Client)
            host = Host(users)
            mine = ours(stack, host, cookies)
            theirs = plain(stack, host, cookies)
        finally:
            stack.close()
    ratio = mine["server_us"] / theirs["server_us"]
    bounds = kept({
        "all delivered": mine["delivered"] == mine["wanted"] and not mine["closed"],
        f"p99 under {BOUNDS['p99_ms']:.0f} ms": mine["p99_ms"] < BOUNDS["p99_ms"],
        f"CPU a delivery at most {BOUNDS['ratio']} of plain Channels": ratio <= BOUNDS["ratio"],
    })  # fmt: skip
    report(
        "fanout", figure=mine["p99_ms"], reference=theirs["p99_ms"], ratio=ratio,
        unit="ms from reading to browser, p99; ratio: CPU of the web process a delivery",
        detail={"sockets": SOCKETS, "seconds": SECONDS, "ours": mine, "plain": theirs, "bounds": bounds},
    )  # fmt: skip


if __name__ == "__main__":
    main()
