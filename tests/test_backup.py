"""What was backed up comes back as it was, and nothing that should not be replaced is."""

import io
import itertools
import json
import os
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone

from gpus.models import Node
from jobs import logstore, secretbox
from jobs.models import Cluster, Job, JobEvent, LogSegment, Run
from portal import backup, live
from portal.archive import Damaged, Reader, Writer
from portal.models import User
from portal.restore import GAP
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _places(settings: Any, tmp_path: Path) -> None:
    """Logs, files and workspaces of this test alone."""
    backend = "django.core.files.storage.FileSystemStorage"
    own = {alias: {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path / alias)}} for alias in ("logs", "default")}
    settings.STORAGES = {**settings.STORAGES, **own}
    settings.WORKSPACE_ROOT = str(tmp_path / "workspaces")


def run_with_log(owner: User, text: bytes) -> Run:
    node = Node.objects.first() or factories.make_node(last_seen=None)
    run = factories.make_run(factories.make_job(owner, name="train ✓"), node)
    segment = logstore.save(run.pk, 0, 0, text)
    segment.save()
    return run


def manage(name: str, *arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, stderr=out, **options)
    return out.getvalue()


def back_up(folder: Path, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    manage("backup", str(folder), *options)
    [made] = folder.iterdir()
    return made


def test_a_backup_comes_back_as_it_was(alice: User, tmp_path: Path, settings: Any, redis_server: Any) -> None:
    text = b"step 1\n" * 5000
    run = run_with_log(alice, text)
    sealed = secretbox.seal("hf_token")
    Job.objects.filter(pk=run.job_id).update(secrets_encrypted={"TOKEN": sealed})
    storages["default"].save("seen/a.txt", ContentFile(b"kept"))
    work = Path(settings.WORKSPACE_ROOT, "1", "jobs")
    work.mkdir(parents=True)
    (work / "model.bin").write_bytes(b"\0weights")
    (work / "model.bin").chmod(0o640)
    (work / "latest").symlink_to("model.bin")
    (work / "again").hardlink_to(work / "model.bin")
    os.mkfifo(work / "pipe")  # no file, and opening it would wait for ever
    made = back_up(tmp_path / "backups", "--workspaces")
    assert made.stat().st_mode & 0o077 == 0

    live.connection().set(f"dockyard.{settings.INSTALLATION}.log.{run.pk}.0", "of later")
    live.connection().set("dockyard.another.log.1.0", "not ours")
    later = factories.make_job(alice, name="of later")
    JobEvent.objects.all().delete()
    Job.objects.filter(pk=run.job_id).update(name="changed")
    logstore.delete_files([LogSegment.objects.get().name])
    (work / "model.bin").write_bytes(b"overwritten")
    storages["default"].delete("seen/a.txt")
    said = manage("restore", str(made), "--force")

    assert "1 × database" in said
    job = Job.objects.get()
    assert (job.pk, job.name, job.owner) == (run.job_id, "train ✓", alice)
    assert secretbox.open_(job.secrets_encrypted["TOKEN"]) == "hf_token"
    assert logstore.read(Run.objects.get(pk=run.pk), 0, len(text)) == text
    assert storages["default"].open("seen/a.txt").read() == b"kept"
    assert (work / "model.bin").read_bytes() == b"\0weights"
    assert (work / "model.bin").stat().st_mode & 0o777 == 0o640
    assert (work / "latest").readlink() == Path("model.bin")
    assert (work / "again").stat().st_ino == (work / "model.bin").stat().st_ino, "one file, as before"
    assert Cluster.get().paused
    assert live.connection().keys("dockyard.*.log.*") == [b"dockyard.another.log.1.0"]
    assert factories.make_job(alice).pk > later.pk + GAP - 10  # a container of job `later` may still run


@pytest.mark.any_database
def test_a_segment_that_was_packed_meanwhile_is_in_it_raw(alice: User, tmp_path: Path) -> None:
    """The row of a moment ago names the raw file; restored, it finds just that."""
    text = b"loss=0.1\n" * 9000
    run = run_with_log(alice, text)
    logstore.save(run.pk, 0, len(text), text).save()
    first, second = LogSegment.objects.order_by("offset")
    logstore.pack([first, second])
    assert not storages["logs"].exists(second.name)
    assert logstore.raw_bytes(run.pk, 0, second.offset, second.length) == text
    writer = Writer(tmp_path / "one.tar")
    assert backup._add_segment(writer, second.name, True, run.pk, 0, second.offset, second.length)
    assert not backup._add_segment(writer, second.name, False, run.pk, 0, second.offset, second.length)
    assert logstore.raw_bytes(run.pk, 0, second.offset, second.length + 1) is None


def test_a_backup_while_jobs_print_holds_whole_logs(alice: User, tmp_path: Path) -> None:
    """Segments are added and packed under its hands; what its database names, it has, byte for byte."""
    runs = [run_with_log(alice, b"") for _ in range(3)]
    LogSegment.objects.all().delete()
    stop, begun = threading.Event(), threading.Event()
    writer = threading.Thread(target=keep_writing, args=([run.pk for run in runs], stop, begun))
    writer.start()
    try:
        assert begun.wait(120)
        made = back_up(tmp_path / "backups")
    finally:
        stop.set()
        writer.join()
    shutil.rmtree(tmp_path / "logs")
    assert "× logs" in manage("restore", str(made), "--force")
    read = 0
    for run in Run.objects.filter(pk__in=[run.pk for run in runs]):
        end = logstore.stored_end(run.pk, 0)
        assert logstore.read(run, 0, end) == line_of(run.pk) * (end // len(line_of(run.pk)))
        read += end
    assert read > 0
    assert Reader(made).manifest["missing_segments"] == 0


def line_of(run: int) -> bytes:
    return f"output of run {run:06d}\n".encode() * 50


def keep_writing(runs: list[int], stop: threading.Event, begun: threading.Event) -> None:
    """As a node does: one segment after another, and now and then all raw ones of a run become one that is packed."""
    for turn in itertools.count():
        if stop.is_set():
            break
        for run in runs:
            logstore.save(run, 0, turn * len(line_of(run)), line_of(run)).save(force_insert=True)
        if turn % 5 == 4:
            run = runs[turn % len(runs)]
            logstore.pack(list(LogSegment.objects.filter(run=run, packed__isnull=True).order_by("offset")))
        if turn == 20:
            begun.set()
    connection.close()


@pytest.mark.any_database
def test_what_is_there_is_not_replaced_unasked(alice: User, tmp_path: Path) -> None:
    made = back_up(tmp_path / "backups")
    with pytest.raises(CommandError, match="--force"):
        manage("restore", str(made))
    factories.make_node("gamma", gpus=0)  # heard of just now
    with pytest.raises(CommandError, match="gamma"):
        manage("restore", str(made), "--force")
    Node.objects.update(last_seen=None)
    Cluster.get()
    Cluster.objects.update(last_pass_at=timezone.now())
    with pytest.raises(CommandError, match="the scheduler"):
        manage("restore", str(made), "--force")
    assert User.objects.filter(pk=alice.pk).exists()


def altered(made: Path, **changes: Any) -> Path:
    """The back-up with another manifest."""
    path = made.with_suffix(".altered.tar")
    with tarfile.open(made) as old, tarfile.open(path, "w") as new:
        for info in old.getmembers():
            file = old.extractfile(info)
            assert file is not None
            data = file.read()
            if info.name == "manifest.json":
                data = json.dumps({**json.loads(data), **changes}).encode()
                info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.any_database
def test_a_backup_that_does_not_fit_is_refused_with_why(alice: User, tmp_path: Path) -> None:
    made = back_up(tmp_path / "backups")
    other = "database.pgdump" if connection.vendor == "sqlite" else "database.sqlite3.gz"
    for changes, why in (
        ({"format": 99}, "newer version"),
        ({"migrations": ["jobs.9999_from_tomorrow"]}, "9999_from_tomorrow"),
        ({"installation": "elsewhere"}, "INSTALLATION=elsewhere"),
        ({"database": other}, "DATABASE_URL"),
    ):
        with pytest.raises(CommandError, match=why):
            manage("restore", str(altered(made, **changes)), "--force")
    assert "another SECRETS_KEY" in manage("restore", str(altered(made, key="0" * 32)), "--force")


@pytest.mark.any_database
@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_damaged_backup_is_refused_before_anything_changes(alice: User, tmp_path: Path, place: str) -> None:
    made = back_up(tmp_path / "backups")
    data = bytearray(made.read_bytes())
    if place == "end":
        del data[-len(data) // 3 :]
    else:
        data[1000] ^= 0xFF  # in the database's bytes
    made.write_bytes(data)
    with pytest.raises(CommandError, match="is damaged"):
        manage("restore", str(made), "--force")
    assert User.objects.filter(pk=alice.pk).exists()
    assert not list(made.parent.glob(".*"))


@pytest.mark.any_database
def test_no_member_leads_outside(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("workspaces/../../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
        manifest = tarfile.TarInfo("manifest.json")
        manifest.size = 2
        tar.addfile(manifest, io.BytesIO(b"{}"))
    reader = Reader(path)
    [member] = reader.members("workspaces/")
    with pytest.raises(Damaged):
        reader.unpack(member, tmp_path / "root", "workspaces/")
    assert not (tmp_path / "outside").exists()
