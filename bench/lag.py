"""A real job that prints 1 MB/s, watched by 50 browsers' sockets: how late each has it, and whether it has it all.

Some more browsers stall in the middle: what they cost the web process, and whether they catch up. Beside it, on the
same container, plain docker-py's attach stream. `SECONDS`, `BROWSERS` and `STALLED` shorten it.
"""

import contextlib
import hashlib
import os
import re
import threading
import time
from typing import Any

from django.test import Client as Tab

from bench._report import report, say
from bench._rig import Client, Product, percentile, product
from bench._web import cookies_of, cpu_seconds_of, hear, helpers, kept, resident_mib, tell
from jobs.models import Job, Membership, Team
from portal.models import User

SECONDS, BROWSERS = int(os.environ.get("SECONDS", "60")), int(os.environ.get("BROWSERS", "50"))
STALLED, USERS = int(os.environ.get("STALLED", "20")), 10
BLOCK, EVERY = 20_000, 0.02  # bytes, seconds: 1 MB/s
LINE = 100
SCRIPT = """
line=$(printf '%099d' 0); block=; i=0
while [ $i -lt {lines} ]; do block="$block$line
"; i=$((i+1)); done
read up rest </proc/uptime; begin=${{up%.*}}${{up#*.}}; n=0
while [ $n -lt {blocks} ]; do
  read up rest </proc/uptime; due=$(( (${{up%.*}}${{up#*.}} - begin) / 2 ))
  while [ $n -lt $due ] && [ $n -lt {blocks} ]; do
    n=$((n+1)); read up rest </proc/uptime; printf '@%-98s\\n%s' "$up $n" "$block"
  done
  usleep 20000
done
"""


class Attach(threading.Thread):
    """The reference: docker-py's attach stream of the same container, read as it comes."""

    def __init__(self, docker_url: str, container: str) -> None:
        super().__init__(daemon=True)
        self.late: list[float] = []
        self._client = Client(docker_url)
        self._stream = self._client.attach(container, stream=True, logs=False)

    def run(self) -> None:
        rest = b""
        for data in self._stream:
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            text = rest + data
            found = list(re.finditer(rb"@([\d.]+) +\d+ ", text))
            self.late += [(now - float(match[1])) * 1000 for match in found]
            rest = text[found[-1].end() :][-64:] if found else text[-64:]
        self._client.close()


def whole_log(running: Product, job: int) -> bytes:
    parts, at, size = [], 0, 1
    while at < size:
        answer = running.http.get(f"/api/jobs/{job}/log", params={"start": at})
        answer.raise_for_status()
        parts.append(answer.content)
        at, size = at + len(answer.content), int(answer.headers["X-Log-Size"])
    return b"".join(parts)


def is_what_was_printed(log: bytes, blocks: int) -> bool:
    """Every block once and in order: nothing between the stamps but what the job prints there."""
    rest = b"0" * (LINE - 1) + b"\n"
    lines = log.splitlines(keepends=True)
    each = BLOCK // LINE
    stamps = [int(line.split()[1]) for line in lines[::each]]
    others = {line for number, line in enumerate(lines) if number % each}
    return len(log) == blocks * BLOCK and stamps == list(range(1, blocks + 1)) and others == {rest}


def people(count: int) -> list[str]:
    users = [User.objects.create_user(f"watcher{number}") for number in range(count)]
    for user in users:
        Membership.objects.create(user=user, team=Team.objects.get(name="bench"))
    return cookies_of(users, Tab)


def measure(running: Product) -> dict[str, Any]:
    web, blocks = running.stack.pid("web"), int(SECONDS / EVERY)
    cookies = people(USERS)
    job = running.post(SCRIPT.format(lines=BLOCK // LINE - 1, blocks=blocks), gpus=1, cpus=1)
    running.when(job, "RUNNING")
    run = Job.objects.get(pk=job).runs.get()
    attach = Attach(running.docker_url, run.container_id)
    attach.start()
    with helpers("bench._lag_browsers") as browsers:
        tell(browsers, {
            "port": running.stack.port, "paths": [f"/ws/jobs/{job}/"] * BROWSERS, "patience": SECONDS + 60,
            "cookies": [cookies[number % USERS] for number in range(BROWSERS)], "cpu": None,
            "follow": {"run": run.pk, "generation": 0, "offset": 0},
        })  # fmt: skip
        say(f"{hear(browsers)['open']} sockets are open")
        time.sleep(3)
        since, before = time.clock_gettime(time.CLOCK_BOOTTIME), cpu_seconds_of(web)
        tell(browsers, {"since": since})
        time.sleep(SECONDS / 6)
        lean = resident_mib(web)
        tell(browsers, {"stalled": STALLED})
        time.sleep(SECONDS / 4)
        fat = resident_mib(web)
        tell(browsers, {"go on": True})
        running.when_ended([job])
        found = hear(browsers)
        spent = cpu_seconds_of(web) - before
    log = whole_log(running, job)
    right = [len(log), hashlib.sha256(log).hexdigest()]
    return {
        "browsers": BROWSERS, "stalled": STALLED, "bytes": len(log), "stamps": len(found["late"]),
        "p50_ms": percentile(found["late"], 50), "p99_ms": percentile(found["late"], 99), "max_ms": max(found["late"]),
        "attach_p50_ms": percentile(attach.late, 50), "attach_p99_ms": percentile(attach.late, 99),
        "log_is_right": is_what_was_printed(log, blocks), "closed": found["closed"],
        "wrong": found["wrong"] + sum(hashed != right for hashed in found["hashes"]),
        "stalled_mib_each": round((fat - lean) / STALLED, 3), "web_cpu_seconds": round(spent, 1),
        "browsers_cpu_seconds": round(found["cpu_seconds"], 1),
    }  # fmt: skip


def main() -> None:
    with product() as running:
        found = measure(running)
    say(str(found))
    bounds = kept({
        "p50 under 120 ms": found["p50_ms"] < 120,
        "p99 under 300 ms": found["p99_ms"] < 300,
        "nothing lost, by every browser's hash": found["log_is_right"] and found["wrong"] == 0,
        "a stalled browser costs under 5 MB, and catches up": found["stalled_mib_each"] < 4.76 and not found["wrong"],
    })  # fmt: skip
    report(
        "lag", figure=found["p99_ms"], reference=found["attach_p99_ms"], ratio=found["p99_ms"] / found["attach_p99_ms"],
        unit="ms from print to socket, p99; reference: docker-py's attach of the same container",
        detail=found | {"bounds": bounds},
    )  # fmt: skip


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
