"""Starting containers: what they get, what they are refused, and what a failed start leaves behind: nothing."""

from pathlib import Path

import pytest
from django.test import override_settings

from jobs import containers_images, wording
from jobs.models import Mount
from jobs.states import EndReason
from tests.rigs.engine import BUSYBOX, WITH_ENTRYPOINT
from tests.way.lab import Lab, gate


def test_a_gpu_job_runs_and_leaves_its_log_exit_code_and_grant(lab: Lab) -> None:
    job = lab.end(lab.submit("echo hello; echo $NVIDIA_VISIBLE_DEVICES; exit 3", gpus=2))
    run = lab.run(job)
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", "EXIT_CODE", 3)
    uuids = lab.call(lambda: run.gpu_uuids)
    assert lab.log(job) == f"hello\n{','.join(uuids)}\n".encode()
    assert len(uuids) == 2
    assert run.log_complete


def test_a_job_without_gpus_sees_none(lab: Lab) -> None:
    assert lab.log(lab.end(lab.submit('echo "[$NVIDIA_VISIBLE_DEVICES]"'))) == b"[void]\n"


def test_two_jobs_at_once_see_different_gpus(lab: Lab) -> None:
    """codalab/codalab-worksheets#895."""
    jobs = [lab.start(f"echo $NVIDIA_VISIBLE_DEVICES; {gate()}", gpus=1) for _ in range(2)]
    for job in jobs:
        lab.open(job)
    seen = {lab.log(lab.end(job)) for job in jobs}
    assert len(seen) == 2


def test_what_the_container_got_is_read_back(lab: Lab) -> None:
    job = lab.start(gpus=1)
    run = lab.run(job)
    assert run.granted == {"verified": True, "gpus": lab.call(lambda: run.gpu_uuids), "mismatch": False}
    assert run.facts["memory_bytes"] == 64 << 20
    lab.cancel(job)
    lab.end(job)


def test_the_container_is_closed_in(lab: Lab) -> None:
    """NVIDIA/nvidia-docker#764: created host settings are asserted on the engine's own answer."""
    job = lab.start()
    data = lab.inspect(job)
    host = data["HostConfig"]
    assert (host["Privileged"], host["AutoRemove"], host["RestartPolicy"]["Name"]) == (False, False, "no")
    assert set(host["CapDrop"]) == {"MKNOD", "NET_RAW", "AUDIT_WRITE"}
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["PidMode"], host["UTSMode"], host["Devices"] or []) == ("", "", [])
    assert host["Init"] is True
    assert data["Config"]["User"] == f"{lab.user.run_uid}:{lab.user.run_gid}"
    lab.cancel(job)
    lab.end(job)


def test_one_documented_rule_for_the_command_box(lab: Lab) -> None:
    """docker/docker-py#536, #734: a command looked like shell and was none."""
    script = 'echo a && echo "b c" $HOME\nyes | head -1\necho it\\\'s'
    assert lab.log(lab.end(lab.submit(script))) == b"a\nb c /workspace\ny\nit's\n"


def test_the_images_own_entry_point_with_arguments(lab: Lab) -> None:
    job = lab.end(lab.submit("", command_kind="image", image=WITH_ENTRYPOINT, arguments=("one two", "$HOME")))
    assert lab.log(job).startswith(b"entrypoint of the image, with: one two $HOME\n")


def test_variables_arrive_byte_for_byte(lab: Lab) -> None:
    """docker/docker-py#1317, moby/moby#12997."""
    values = {"A": "x=y=z", "B": "two\nlines", "C": "žluťoučký 🎯", "D": "", "E": '"q"', "F": " lead"}
    script = "".join(f'printf "%s\\0" "${name}";' for name in values)
    job = lab.end(lab.submit(script, environment=tuple(values.items()), secret_names=frozenset({"C"})))
    assert lab.log(job) == b"".join(value.encode() + b"\0" for value in values.values())


def test_files_belong_to_the_user_and_stay_in_the_workspace(lab: Lab) -> None:
    """broadinstitute/ml4h#334: outputs belonged to root."""
    job = lab.end(lab.submit("pwd; echo result > out.txt; id -u; echo kept > /workspace/kept"))
    uid = lab.user.run_uid
    assert lab.log(job) == f"/workspace/jobs/{job.pk}\n{uid}\n".encode()
    folder = Path(lab.stack.data) / "workspaces" / str(lab.user.pk)
    assert (folder / "jobs" / str(job.pk) / "out.txt").read_text() == "result\n"
    assert (folder / "kept").stat().st_uid == uid
    assert lab.log(lab.end(lab.submit("cat /workspace/kept"))) == b"kept\n"
    assert Path(lab.stack.data).stat().st_mode & 0o777 == 0o700  # no way in for other accounts, nor needed by jobs


@pytest.fixture
def mountable(lab: Lab) -> Path:
    """A directory below the roots that mounts may come from."""
    folder = Path(lab.stack.data) / "mounts" / "set"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return folder


def test_a_read_only_mount_is_read_only(lab: Lab, mountable: Path) -> None:
    """brigadecore/brigade#1701."""
    (mountable / "set").write_text("data")
    mount = lab.call(lambda: Mount.objects.create(name="set", source=str(mountable)))
    script = f"cat {mount.target}/set; touch {mount.target}/new || echo refused"
    job = lab.end(lab.submit(script, mounts=(mount.pk,)))
    assert b"data" in lab.log(job), "in whatever order the two streams arrive"
    assert b"refused" in lab.log(job)


def test_a_mount_that_leads_elsewhere_is_refused_at_the_start(lab: Lab, mountable: Path) -> None:
    """ScottG489/conjob#11: a link swapped in after the admin had looked."""
    (mountable / "link").symlink_to("/etc")
    mount = lab.call(lambda: Mount.objects.create(name="swapped", source=str(mountable / "link")))
    job = lab.end(lab.submit("cat /mnt/swapped/passwd", mounts=(mount.pk,)))
    assert (job.state, job.end_reason) == ("FAILED", "CREATE_FAILED")
    assert "/etc" not in lab.run(job).engine_message


@pytest.mark.parametrize(
    ("fields", "reason", "code"),
    [
        ({"image": "nope.invalid/none:1"}, {"IMAGE_NOT_FOUND", "PULL_FAILED"}, None),
        ({"command_kind": "image", "entrypoint": ("/bin/doesnotexist",)}, {"COMMAND_NOT_FOUND"}, 127),
        ({"command_kind": "image", "entrypoint": ("/etc/passwd",)}, {"COMMAND_NOT_EXECUTABLE"}, 126),
        ({"command_kind": "image"}, {"COMMAND_NOT_FOUND"}, None),
    ],
)
def test_a_start_that_fails_says_why_and_frees_everything(
    lab: Lab, fields: dict[str, object], reason: set[EndReason], code: int | None
) -> None:
    """codalab/codalab-worksheets#2736, docker/docker-py#2101, lablup/backend.ai#1510."""
    job = lab.end(lab.submit("true", gpus=1, **fields))
    assert job.state == "FAILED"
    assert job.end_reason in reason
    assert job.exit_code == code
    assert lab.run(job).engine_message
    assert lab.held_slots() == 0


def test_a_job_reaches_neither_the_host_nor_its_neighbours(lab: Lab) -> None:
    """A container's own bridge: the host's services and other containers are out of reach."""
    neighbour = lab.start("nc -l -p 7777 -e echo open & ip addr; exec sleep 600")
    address = lab.inspect(neighbour)["NetworkSettings"]["Networks"].popitem()[1]
    gateway, other = address["Gateway"], address["IPAddress"]
    redis = lab.stack.env["REDIS_URL"].rpartition(":")[2].partition("/")[0]
    script = f"""
    for target in "{gateway} {redis}" "{gateway} {lab.stack.port}" "{other} 7777" "169.254.169.254 80"; do
        nc -w 2 $target </dev/null && echo "reached $target" || echo "no $target"
    done
    """
    log = lab.log(lab.end(lab.submit(script)))
    assert b"reached" not in log
    assert log.count(b"no ") == 4
    lab.cancel(neighbour)
    lab.end(neighbour)


def test_a_misspelt_command_is_named(lab: Lab) -> None:
    job = lab.end(lab.submit("echo begun\npyhton train.py\n"))
    assert (job.end_reason, job.exit_code) == ("COMMAND_NOT_FOUND", 127)
    assert lab.call(lambda: wording.end_sentence(job, job.runs.get())) == "The shell did not find the command pyhton."


def test_an_image_without_a_command_of_its_own_is_said_so(lab: Lab) -> None:
    job = lab.end(lab.submit("true", command_kind="image"))
    said = lab.call(lambda: wording.end_sentence(job, job.runs.get()))
    assert said == "The image has no command of its own: give one."


def test_the_images_of_the_host_are_told(lab: Lab) -> None:
    with override_settings(DOCKER_HOST=lab.engine.url):
        assert {BUSYBOX, WITH_ENTRYPOINT} <= set(containers_images.images())
