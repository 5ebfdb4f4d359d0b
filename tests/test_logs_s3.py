"""Logs in an S3-compatible store, which is real but for its disks: saved, read in part, packed, deleted."""

import gzip
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from jobs import logstore
from jobs.models import LogSegment, Run, Team
from portal.models import User
from tests import factories

pytestmark = pytest.mark.any_database
BUCKET = "dockyard-logs"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of the store, which has an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **keys)
    client.create_bucket(Bucket=BUCKET)
    yield client
    server.stop()


@pytest.fixture
def in_s3(s3: Any, settings: Any) -> Any:
    """Logs lie there, by the setting that the README names."""
    options = {
        "bucket_name": BUCKET, "endpoint_url": s3.meta.endpoint_url, "access_key": "a", "secret_key": "b",
        "region_name": "us-east-1",
    }  # fmt: skip
    logs = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "logs": logs}
    return s3


def names(s3: Any) -> list[str]:
    return [found["Key"] for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


@pytest.fixture
def run(db: None, alice: User, vision: Team) -> Run:
    return factories.make_run(factories.make_job(alice, vision), factories.make_node())


def test_a_log_in_s3_is_saved_read_packed_and_deleted(in_s3: Any, run: Run) -> None:
    text = b"".join(b"line %06d of the log\n" % number for number in range(20_000))
    for offset in range(0, len(text), 150_000):
        part = text[offset : offset + 150_000]
        for _again in range(2):  # a try that failed before its row
            segment = logstore.save(run.pk, 0, offset, part)
        segment.save()
    assert len(names(in_s3)) == 4
    assert logstore.read(run, 149_990, 300_010) == text[149_990:300_010]
    Run.objects.filter(pk=run.pk).update(log_bytes=len(text), log_complete=True)
    run.refresh_from_db()
    logstore.pack(list(LogSegment.objects.filter(run=run).order_by("offset")))
    [name] = names(in_s3)
    assert name.endswith(".gz")
    assert logstore.read(run, 299_999, 300_100) == text[299_999:300_100]
    assert b"".join(logstore.stream(run)) == text
    assert gzip.decompress(b"".join(logstore.stream_packed(run, 0, len(text)))) == text
    logstore.delete_files([name])
    assert names(in_s3) == []
    assert logstore.read(run, 0, 10) == b"", "as where a file is missing"
