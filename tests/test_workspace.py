"""A user's files, which the user may have turned into traps: links, pipes, names."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from jobs import workspace
from jobs.models import Job
from tests import factories

pytestmark = pytest.mark.django_db
UID = os.getuid()
GID = os.getgid()


@pytest.fixture
def job(settings: Any, tmp_path: Path) -> Job:
    settings.WORKSPACE_ROOT = tmp_path / "workspaces"
    return factories.make_job(factories.make_user("alice", teams=(factories.make_team(),)))


@pytest.fixture
def folder(job: Job) -> Path:
    """The job's own folder, as a start makes it."""
    workspace.prepare(job, UID, GID)
    return workspace.of_user(job.owner_id) / "jobs" / str(job.pk)


def test_a_start_makes_the_folders_for_the_identity_of_the_user(job: Job) -> None:
    if UID != 0:
        pytest.skip("only root may give files away")
    root = workspace.prepare(job, 20007, 20008)
    for path in (root, root / "jobs", root / "jobs" / str(job.pk)):
        found = path.lstat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (20007, 20008, 0o700)


def test_a_second_start_leaves_the_files_alone(job: Job, folder: Path) -> None:
    (folder / "checkpoint").write_text("kept")
    workspace.prepare(job, UID, GID)
    assert (folder / "checkpoint").read_text() == "kept"


@pytest.mark.parametrize("name", ["jobs", "jobs/{pk}"])
def test_a_planted_link_is_not_followed_and_its_target_keeps_its_owner(job: Job, tmp_path: Path, name: str) -> None:
    """ScottG489/conjob#11"""
    outside = tmp_path / "outside"
    outside.mkdir()
    before = outside.stat()
    link = workspace.of_user(job.owner_id) / name.format(pk=job.pk)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(OSError, match=r"(?i)not a directory|symbolic link"):
        workspace.prepare(job, UID + 1, GID + 1)
    after = outside.stat()
    assert (before.st_uid, before.st_gid, list(outside.iterdir())) == (after.st_uid, after.st_gid, [])


def test_a_file_in_the_way_stops_the_start(job: Job) -> None:
    root = workspace.of_user(job.owner_id)
    root.mkdir(parents=True)
    (root / "jobs").write_text("not a folder")
    with pytest.raises(NotADirectoryError):
        workspace.prepare(job, UID, GID)


def test_what_the_job_left_is_listed_by_path(job: Job, folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "b" / "weights.bin").write_bytes(b"12345")
    (folder / "a.txt").write_text("x")
    assert [(entry.path, entry.size) for entry in workspace.job_files(job)] == [("a.txt", 1), ("b/weights.bin", 5)]


def test_before_its_start_a_job_has_no_files(job: Job) -> None:
    assert workspace.job_files(job) == []


def test_links_pipes_and_sockets_are_not_listed(job: Job, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "secret").write_text("no")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "links").symlink_to(tmp_path / "dir")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # socket paths are short
        listener.bind("sock")
        os.chdir(here)
    assert workspace.job_files(job) == []


def test_the_list_is_bounded_in_number_and_depth(job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_FILES", 5)
    for number in range(8):
        (folder / f"{number}").write_text("")
    assert len(workspace.job_files(job)) == 5
    deep = folder / "/".join(["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("")
    monkeypatch.setattr(workspace, "MOST_FILES", 1000)
    assert len(workspace.job_files(job)) == 8


def test_a_tree_of_a_million_names_is_not_walked_to_its_end(
    job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MOST_LOOKED_AT", 10)
    for number in range(20):
        (folder / f"empty{number}").mkdir()
    assert workspace.job_files(job) == []


def test_a_file_opens(job: Job, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "métrics 1.json").write_bytes(b"{}")
    with workspace.open_file(job, "out/métrics 1.json") as opened:
        assert opened.read() == b"{}"


TRAPS = ["../../../secret", "..", ".", "", "/etc/passwd", "a//b", "./a.txt", "a.txt/", "a\0b", "nothing",
         "link", "dirlink/secret", "pipe", "dir", "jobs", "x" * 5000]  # fmt: skip


@pytest.mark.parametrize("path", TRAPS)
@pytest.mark.timeout(20)
def test_nothing_else_opens_and_a_pipe_does_not_hang(job: Job, folder: Path, tmp_path: Path, path: str) -> None:
    """ScottG489/conjob#11, brigadecore/brigade#1701"""
    (tmp_path / "secret").write_text("no")
    (folder / "a.txt").write_text("yes")
    (folder / "dir").mkdir()
    (folder / "link").symlink_to(folder / "a.txt")
    (folder / "dirlink").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(FileNotFoundError):
        workspace.open_file(job, path)


def test_the_folder_itself_may_not_be_a_link(job: Job, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("no")
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert workspace.job_files(job) == []
    with pytest.raises(FileNotFoundError):
        workspace.open_file(job, "passwd")


def test_no_file_descriptor_stays_open(job: Job, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "b").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        workspace.prepare(job, UID, GID)
        workspace.job_files(job)
        workspace.open_file(job, "a/b").close()
        for trap in ("a", "nothing", "a/b/c"):
            with pytest.raises(FileNotFoundError):
                workspace.open_file(job, trap)
    assert len(os.listdir("/proc/self/fd")) == before
