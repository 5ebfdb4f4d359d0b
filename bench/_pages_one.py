"""One database's part of the pages' benchmark: fill it, start the web process on it, ask for each page, print JSON.

A program of its own, for Django's settings hold for one database. Arguments: jobs, events, requests a page.
"""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django

django.setup()

import contextlib
import json
import logging
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from statistics import median
from typing import Any

import httpx
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from bench import _pages_data as data
from bench._report import say
from jobs.access import visible_jobs
from jobs.models import JobEvent
from portal.models import User
from tests.rigs.redis import running_redis
from tests.rigs.stack import Stack

# Static files are collected uncompressed: nobody fetches them here.
STATIC = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}
# What the tests shorten, as the product has it.
AS_SHIPPED = {"ORDER_REREAD": "1", "TERMS_REREAD": "1", "PAST_REREAD": "30", "REDIS_REST": "4"}
WARM = 10  # requests a page that are not counted
PROBES = ("resnet", "sweep-unet-lr7", "99173", "user-17", "bert/eval", "zqxj", "lr3e-4-9", "llama")
Pages = dict[str, list[str]]


def pages_of(user: User) -> Pages:
    """Page → the addresses that are asked for in turn."""
    seen = visible_jobs(user)
    newest = seen.latest("pk").pk
    year, since = datetime.now(UTC).timestamp() - data.YEAR, f"{datetime.now(UTC) - timedelta(days=180):%Y-%m-%d}"
    until = f"{datetime.now(UTC) - timedelta(days=150):%Y-%m-%d}"
    ended = [f"/jobs/{pk}/" for pk in seen.filter(state="SUCCEEDED").order_by("-id").values_list("pk", flat=True)[:40]]
    others = [f"/jobs/{pk}/" for state in ("RUNNING", "QUEUED")
              for pk in seen.filter(state=state).values_list("pk", flat=True)[:40]]  # fmt: skip
    deep = [f"after=[{newest * part // 10}]" for part in range(1, 10)]
    return {
        "dashboard": ["/"],
        "list": ["/jobs/", "/jobs/?whose=all", *(f"/jobs/?whose=all&{at}" for at in deep)],
        "filtered list": [
            "/jobs/?whose=all&state=failed", "/jobs/?state=failed&state=cancelled", "/jobs/?whose=all&state=waiting",
            "/jobs/?whose=all&state=active", "/jobs/?whose=1&state=succeeded", "/jobs/?whose=all&sort=name",
            "/jobs/?whose=all&sort=gpus", "/jobs/?sort=name", "/jobs/?whose=all&state=failed&sort=gpus",
            *(f"/jobs/?whose=all&state=failed&{at}" for at in deep),
        ],
        "search": [f"/jobs/?q={text}" for text in PROBES],
        "job": [*ended, *others],
        "queue": ["/queue/", "/queue/?after=500"],
        "GPUs": ["/gpus/"],
        "history": [
            "/history/", "/history/?whose=all", "/history/?whose=all&state=failed", "/history/?q=moe-lr2",
            "/history/?whose=all&reason=TIME_LIMIT", f"/history/?whose=all&since={since}&until={until}",
        ],
        "fair share": ["/fairshare/"],
        "API list": [
            "/api/jobs", "/api/jobs?mine=true", "/api/jobs?state=FAILED", "/api/jobs?state=ENDED",
            "/api/jobs?team=team-3", "/api/jobs?search=resnet", "/api/jobs?search=zqxj", "/api/jobs?limit=200",
            *(f"/api/jobs?before={newest * part // 10}" for part in range(1, 10)),
        ],
        **({"estimates": ["/estimates/"]} if user.is_staff else {}),
        "timeline page": ["/timeline/"],
        "timeline": ["/timeline/data.json", *(
            f"/timeline/data.json?from={year + at * 86400:.0f}&to={year + (at + days) * 86400:.0f}"
            for at, days in ((100, 1), (335, 31), (3, 365))
        )],
    }  # fmt: skip


@contextlib.contextmanager
def hosts_alive(stack: Stack) -> Iterator[None]:
    """The hosts send their readings, as other machines do, for as long as the block runs."""
    command = [sys.executable, "-m", "bench._pages_hosts"]
    with subprocess.Popen(command, env=stack.env, stdin=subprocess.PIPE) as hosts:
        try:
            yield
        finally:
            hosts.communicate()
    if hosts.returncode:
        raise RuntimeError(f"the hosts ended with {hosts.returncode}: pages were measured without them")


def measure(url: str, user: User, requests: int) -> dict[str, dict[str, Any]]:
    """Each page's p50 and p95 in milliseconds over HTTP, and the most queries that it makes."""
    client = Client()
    client.force_login(user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    found = {}
    with httpx.Client(base_url=url, cookies={settings.SESSION_COOKIE_NAME: cookie}, timeout=60) as http:
        for page, addresses in pages_of(user).items():
            asked = _times(http, addresses, requests)
            took = [ms for _address, ms in asked]
            queries, slowest = _queries(client, addresses)
            found[page] = {"p50_ms": _percent(took, 50), "p95_ms": _percent(took, 95), "queries": queries}
            say(f"  {user.username:7} {page:14} {found[page]}  {_worst(asked)}  {slowest}")
    return found


def _times(http: httpx.Client, addresses: list[str], requests: int) -> list[tuple[str, float]]:
    """Each request's address and milliseconds, once the first ones have been."""
    found = []
    for number, address in enumerate(islice(cycle(addresses), WARM + requests)):
        begun = time.perf_counter()
        answer = http.get(address)
        took = (time.perf_counter() - begun) * 1000
        if answer.status_code != 200:
            raise RuntimeError(f"{address}: {answer.status_code}")
        if number >= WARM:
            found.append((address, took))
    return found


def _worst(asked: list[tuple[str, float]]) -> str:
    """The slowest of several addresses, for who mends it."""
    by_address: dict[str, list[float]] = defaultdict(list)
    for address, ms in asked:
        by_address[address].append(ms)
    address = max(by_address, key=lambda address: median(by_address[address]))
    return f"{median(by_address[address]):.0f} ms: {address}" if len(by_address) > 1 else ""


def _queries(client: Client, addresses: list[str]) -> tuple[int, str]:
    """The most that one of the addresses makes, and the slowest of all of them, for who mends it."""
    counts, slowest = [], (0.0, "")
    as_shipped = override_settings(**{name: float(value) for name, value in AS_SHIPPED.items()})
    for address in addresses:
        with as_shipped, CaptureQueriesContext(connection) as captured:
            client.get(address, headers={"host": "127.0.0.1"})
        counts.append(len(captured))
        slowest = max(
            [slowest, *((float(q["time"]) * 1000, f"{address} {q['sql']}") for q in captured.captured_queries)]
        )
    return max(counts), f"{slowest[0]:.0f} ms: {slowest[1][: int(os.environ.get('PAGES_SQL', '0'))]}"


def _percent(took: list[float], percent: int) -> float:
    return round(sorted(took)[max(len(took) * percent // 100 - 1, 0)], 1)


def main(jobs: int, events: int, requests: int) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    size = data.Size(jobs, events)
    port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with running_redis(port=port):
        call_command("migrate", interactive=False, verbosity=0)
        if not data.is_filled(size):
            begun = time.monotonic()
            call_command("flush", interactive=False, verbosity=0)  # what an interrupted filling has left
            data.fill(size)
            took = time.monotonic() - begun
            say(f"{connection.vendor}: {jobs} jobs and {JobEvent.objects.count()} events in {took:.0f} s")
        data.make_ready()
        stack = Stack("unix:///nowhere.sock", {"STORAGES": json.dumps(STATIC)}, periods=AS_SHIPPED)
        try:
            stack.prepare()
            stack.start("web")
            with hosts_alive(stack):
                stack.wait_ready("web")
                people = [User.objects.get(username=name) for name in ("user-8", "admin")]
                print(json.dumps({user.username: measure(stack.url, user, requests) for user in people}))
        finally:
            stack.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
