"""A watcher that stops reading while a job floods costs the web process a bounded amount, and catches up later."""

import hashlib
import json
import struct
from pathlib import Path

from websockets.sync.client import ClientConnection, connect

from portal.models import ApiToken
from tests.way.lab import Lab

HEAD = struct.Struct(">QHQ")  # run, generation, offset
FLOOD = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); head -c 1000000 /dev/zero | tr '\\0' x; echo; sleep 0.1; done"
GROWTH_KIB = 50 * 1024


def test_a_client_that_does_not_read_costs_little_and_resumes_by_offset(lab: Lab) -> None:
    """purplefish-ai/factory-factory#1873, OpenCTI-Platform/opencti#13908: one stalled tab ate the server's memory."""
    job = lab.start(FLOOD, memory_mib=128)
    run = lab.run(job)
    with _watch(lab, job.pk) as socket:
        socket.send(json.dumps({"follow": {"run": run.pk, "generation": 0, "offset": 0}}))
        before = _rss_kib(lab.stack.pid("web"))
        lab.end(job, seconds=90)  # and nothing is read meanwhile
        assert _rss_kib(lab.stack.pid("web")) - before < GROWTH_KIB
        received = _read_all(socket, lab.run(job).log_bytes)
    whole = lab.log(job)
    assert len(whole) == 40 * 1_000_001
    assert hashlib.sha256(received).digest() == hashlib.sha256(whole).digest()


def _watch(lab: Lab, job: int) -> ClientConnection:
    _token, secret = lab.call(lambda: ApiToken.issue(lab.user, name="watch", scope="read", expires_at=None))
    url = f"{lab.stack.url.replace('http', 'ws', 1)}/ws/jobs/{job}/"
    headers = {"Authorization": f"Bearer {secret}"}
    return connect(url, additional_headers=headers, max_size=None, max_queue=4, ping_interval=None, compression=None)


def _read_all(socket: ClientConnection, size: int) -> bytes:
    """Everything from offset 0 on, acknowledged as a page would."""
    received = bytearray()
    while len(received) < size:
        message = socket.recv(timeout=30)
        if isinstance(message, bytes):
            _run, _generation, offset = HEAD.unpack_from(message)
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
            socket.send(json.dumps({"follow": {"run": run.pk, "generation": 0, "offset": 0}}))
            text = _read_all(socket, 200)
        other = {"one": "two", "two": "one"}[name]
        assert f"job-{name}" in text.decode()
        assert other not in text.decode()
        lab.cancel(job)
    for job in jobs:
        lab.end(job)
