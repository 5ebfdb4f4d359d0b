"""A watcher that stops reading while a job floods costs the web process a bounded amount, and catches up later."""

import hashlib
import json
import struct
import time
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from portal.models import ApiToken
from tests.rigs.processes import wait_until
from tests.way.lab import Lab, gate

HEAD = struct.Struct(">QHQ")  # run, generation, offset
MEGABYTE = "head -c 1000000 /dev/zero | tr '\\0' x; echo"
FLOOD = f"{gate()}; i=0; while [ $i -lt 40 ]; do i=$((i+1)); {MEGABYTE}; sleep 0.1; done"
GROWTH_KIB = 50 * 1024


def test_a_client_that_does_not_read_costs_little_and_resumes_by_offset(lab: Lab) -> None:
    """purplefish-ai/factory-factory#1873, OpenCTI-Platform/opencti#13908: one stalled tab ate the server's memory."""
    job = lab.start(FLOOD, memory_mib=128)
    run = lab.run(job)
    with _watch(lab, job.pk) as socket:
        _follow(socket, run.pk, 0)
        before = _rss_kib(lab.stack.pid("web"))
        lab.open(job)
        lab.end(job)  # and nothing is read meanwhile
        assert _rss_kib(lab.stack.pid("web")) - before < GROWTH_KIB
        received = _read_all(lab, job.pk, socket, run.pk, lab.run(job).log_bytes)
    whole = lab.log(job)
    assert len(whole) == 40 * 1_000_001
    assert hashlib.sha256(received).digest() == hashlib.sha256(whole).digest()


def _watch(lab: Lab, job: int) -> ClientConnection:
    _token, secret = lab.call(lambda: ApiToken.issue(lab.user, name="watch", scope="read", expires_at=None))
    url = f"{lab.stack.url.replace('http', 'ws', 1)}/ws/jobs/{job}/"
    headers = {"Authorization": f"Bearer {secret}"}
    return connect(url, additional_headers=headers, max_size=None, max_queue=4, ping_interval=None, compression=None)


def _follow(socket: ClientConnection, run: int, generation: int, offset: int = 0) -> None:
    socket.send(json.dumps({"follow": {"run": run, "generation": generation, "offset": offset}}))


def _read_all(lab: Lab, job: int, socket: ClientConnection, run: int, size: int) -> bytes:
    """Everything from offset 0 on, acknowledged as a page would; begun anew where the log was mended meanwhile.

    A server to which nobody answers hangs up after a while: then, as a page does, by another connection.
    """
    received, generation, until = bytearray(), 0, time.monotonic() + 240
    while len(received) < size:
        assert time.monotonic() < until, f"{len(received)} of {size} bytes"
        try:
            message = socket.recv(timeout=120)
        except ConnectionClosed:
            socket = _watch(lab, job)
            _follow(socket, run, generation, len(received))
            continue
        if isinstance(message, str):
            newest = json.loads(message).get("log", {}).get("generation", generation)
            if newest != generation:
                received, generation = bytearray(), newest
                _follow(socket, run, generation)
            continue
        _run, of, offset = HEAD.unpack_from(message)
        if of == generation:
            assert offset == len(received), "no gap, and nothing twice"
            received += message[HEAD.size :]
            socket.send(json.dumps({"ack": len(received)}))
    return bytes(received)


def _rss_kib(pid: int) -> int:
    line = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1])


def test_the_watcher_of_one_job_sees_nothing_of_another(lab: Lab) -> None:
    """dstackai/dstack#1814."""
    jobs = [lab.start(f"while :; do echo job-{name}; sleep 0.05; done") for name in ("one", "two")]
    for job, name in zip(jobs, ("one", "two"), strict=True):
        run = lab.run(job)
        with _watch(lab, job.pk) as socket:
            _follow(socket, run.pk, 0)
            text = _read_all(lab, job.pk, socket, run.pk, 200)
        other = {"one": "two", "two": "one"}[name]
        assert f"job-{name}" in text.decode()
        assert other not in text.decode()
        lab.cancel(job)
    for job in jobs:
        lab.end(job)


def test_an_upgrade_of_the_node_leaves_no_trace_in_a_flooding_log(lab: Lab) -> None:
    """Stopped in mid-flood and started again, then killed with all its children; the witness is the job's own sum."""
    script = (
        "head -c 30000000 /dev/urandom > /tmp/f; n=0; while [ $n -lt 60 ]; do "
        "dd if=/tmp/f bs=500000 skip=$n count=1 2> /dev/null; n=$((n+1)); sleep 0.1; done; "
        "sha256sum < /tmp/f | cut -c1-64"
    )
    job = lab.start(script, memory_mib=256, millicpus=1000)
    lab.stack.restart("node")
    wait_until(lambda: len(lab.log(job)) > 2_000_000, "more of the flood")
    lab.stack.kill_group("node", pump=False)
    lab.stack.start("node")
    lab.end(job)
    log, run = lab.log(job), lab.run(job)
    assert hashlib.sha256(log[:-65]).hexdigest().encode() == log[-65:-1]
    assert (run.log_holes, run.log_generation) == ([], 0), "nothing was mended, so nothing was ever in doubt"
