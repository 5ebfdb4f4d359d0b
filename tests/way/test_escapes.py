"""A user who may submit anything tries to get at the host, its neighbours and the portal: refused, or contained.

The node runs with small limits, so that each bomb is a small one.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from django.test import Client

from jobs import containers_disk, workspace
from jobs.containerspec import bridge_name
from jobs.models import Cluster, Job
from tests.rigs.engine import BUSYBOX, Engine
from tests.rigs.processes import free_port, wait_until
from tests.rigs.stack import Stack
from tests.way.lab import Lab

HOSTILE = "dockyard-test/hostile:latest"
LIMITS = {"PIDS_LIMIT": "64", "SCRATCH_BYTES": str(24 << 20), "SCRATCH_FILES": "3000", "DISK_PERIOD": "1",
          "WORKSPACE_BYTES": str(24 << 20), "WORKSPACE_FILES": "3000"}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _small(stack: Stack) -> Iterator[None]:
    stack.restart("node", **LIMITS)
    yield
    stack.restart("node")


DOCKERFILE = f"""FROM {BUSYBOX}
USER root
ENV NVIDIA_VISIBLE_DEVICES=all LD_PRELOAD=/evil.so
VOLUME /var/spill
EXPOSE 80
STOPSIGNAL SIGKILL
HEALTHCHECK --interval=1s CMD /bin/false
ENTRYPOINT ["/bin/sh", "-c", "while :; do echo uid=$(id -u) gids=$(id -G); env; sleep 1; done"]
"""


@pytest.fixture
def hostile(engine: Engine) -> str:
    """An image that asks for everything that an image can ask for."""
    with engine.client() as client:
        client.images.build(fileobj=io.BytesIO(DOCKERFILE.encode()), tag=HOSTILE, rm=True)
    return HOSTILE


def said(lab: Lab, script: str, **fields: object) -> dict[str, str]:
    """What a job printed as `name=value` lines."""
    log = lab.log(lab.end(lab.submit(script, **fields))).decode()
    return dict(line.split("=", 1) for line in log.splitlines() if "=" in line)


def test_what_an_image_asks_for_never_wins(lab: Lab, hostile: str) -> None:
    """NVIDIA/nvidia-docker#764, ytsaurus/ytsaurus#269: user, GPUs, ports, signal and health are the record's."""
    job = lab.start("", command_kind="image", image=hostile)
    wait_until(lambda: b"DOCKYARD_JOB_ID" in lab.log(job), "its environment")
    lines = set(lab.log(job).decode().splitlines())
    assert {f"uid={lab.user.run_uid} gids={lab.user.run_gid}", "NVIDIA_VISIBLE_DEVICES=void"} <= lines
    assert "NVIDIA_VISIBLE_DEVICES=all" not in lines
    found = lab.inspect(job)
    assert not any(found["NetworkSettings"]["Ports"].values())
    assert found["HostConfig"]["PublishAllPorts"] is False
    assert ("Health" in found["State"], found["Config"]["StopSignal"]) == (False, "SIGTERM")
    volumes = [mount["Name"] for mount in found["Mounts"] if mount["Type"] == "volume"]
    lab.cancel(job)
    assert lab.end(job).end_reason == "STOPPED_BY_USER"
    wait_until(lambda: _volumes(lab).isdisjoint(volumes), "its volumes go with it")


def _volumes(lab: Lab) -> set[str]:
    with lab.engine.client() as client:
        return {volume.id for volume in client.volumes.list()}


DOORS = """
nodes=$(cd /dev && echo *)
try() { name=$1; shift; "$@" >/dev/null 2>&1 && echo "$name=open" || echo "$name=shut"; }
try kmsg head -c 1 /dev/kmsg
try mem head -c 1 /dev/mem
try disk mknod /tmp/disk b 8 0
try kcore head -c 1 /proc/kcore
try sysrq sh -c 'echo b > /proc/sysrq-trigger'
try core sh -c 'echo "|/evil" > /proc/sys/kernel/core_pattern'
try cgroup sh -c 'mkdir /sys/fs/cgroup/memory/x || mkdir /sys/fs/cgroup/x'
try mount mount -t tmpfs none /tmp
try namespace unshare -U true
try chroot chroot / true
try setuid su -c true root
try shadow sh -c 'echo x >> /etc/shadow'
try socket ls /var/run/docker.sock
try others ls /workspace/..//../workspaces
echo "nodes=$nodes"
echo "processes=$(ps | wc -l)"
echo "caps=$(grep CapEff /proc/self/status | tr -d '[:space:]')"
echo "nnp=$(grep NoNewPrivs /proc/self/status | tr -d '[:space:]')"
env | tr '\\n' ' ' | sed 's/^/env=/'; echo
"""


def test_no_device_privilege_or_setting_of_the_portal_is_in_reach(lab: Lab) -> None:
    """NVIDIA/nvidia-docker#764, #1405; moby's masked paths, as this engine has them."""
    found = said(lab, DOORS)
    doors = ("kmsg", "mem", "disk", "kcore", "sysrq", "core", "cgroup", "mount", "namespace", "chroot", "setuid",
             "shadow", "socket", "others")  # fmt: skip
    assert {name: found[name] for name in doors} == dict.fromkeys(doors, "shut")
    assert set(found["nodes"].split()) <= {"core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random",
                                           "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}  # fmt: skip
    assert int(found["processes"]) < 12, "its own processes alone"
    assert (found["caps"], found["nnp"]) == ("CapEff:" + "0" * 16, "NoNewPrivs:1")
    ours = [lab.stack.env[name] for name in ("SECRET_KEY", "REDIS_URL", "DOCKER_HOST", "DATA_DIR", "PUBLIC_URL")]
    assert [value for value in ours if value in found["env"]] == []
    assert "DJANGO" not in found["env"]


FILL_SHM = (
    'dd if=/dev/zero of=/dev/shm/x bs=1M count=64 2>/dev/null; echo "bytes=$(wc -c < /dev/shm/x)"; exec sleep 600'
)


def test_shared_memory_is_a_job_s_own_and_bounded(lab: Lab) -> None:
    """/dev/shm: 16 MiB were asked for; what one job leaves there no other sees."""
    job = lab.start(FILL_SHM)
    wait_until(lambda: b"bytes=" in lab.log(job), "it is full")
    assert int(lab.log(job).partition(b"bytes=")[2]) <= 16 << 20
    assert said(lab, 'echo "found=$(ls /dev/shm | wc -l)"') == {"found": "0"}
    lab.cancel(job)
    lab.end(job)


def asks(host: str, port: object, name: str = "") -> str:
    """A shell line that says whether a server answers."""
    name = name or f"{host}/{port}"
    return f'nc -w 1 {host} {port} </dev/null && echo "{name}=open" || echo "{name}=shut"'


def test_nothing_of_the_host_or_the_portal_is_reached_by_network(lab: Lab, engine: Engine) -> None:
    """The host by all its addresses; Redis, the web and any other service on it, in a container too; metadata."""
    job = lab.start()
    address = lab.inspect(job)["NetworkSettings"]["Networks"].popitem()[1]
    lab.cancel(job)
    ports = [lab.stack.env["REDIS_URL"].rpartition(":")[2].partition("/")[0], str(lab.stack.port)]
    with socket.create_server(("", free_port())) as listener, _published(engine) as front:
        own = _host_address()
        wait_until(lambda: _answers(own, int(front)), "the other container's server")
        targets = [(host, p) for host in {address["Gateway"], own}
                   for p in (*ports, str(listener.getsockname()[1]), front)]  # fmt: skip
        targets += [("169.254.169.254", "80"), ("127.0.0.1", ports[0])]
        found = said(lab, "\n".join(f"{{ {asks(h, p)}; }} &" for h, p in targets) + "\nwait")
    assert found == {f"{host}/{p}": "shut" for host, p in targets}
    lab.end(job)


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=20):
        return True
    return False


@contextmanager
def _published(engine: Engine) -> Iterator[str]:
    """A port of the host that leads into another container, as that of compose's front does."""
    port = free_port()
    with engine.client() as client:
        network = client.networks.create("front")
        server = client.containers.run(BUSYBOX, ["httpd", "-f", "-p", "80"], network="front", ports={"80/tcp": port},
                                       detach=True)  # fmt: skip
        try:
            yield str(port)
        finally:
            server.remove(force=True)
            network.remove()


@pytest.mark.skipif(not shutil.which("ip6tables"), reason="no ip6tables here")
def test_a_job_has_no_ipv6_and_its_bridge_would_let_none_through(lab: Lab) -> None:
    """moby/moby#22054: rules for IPv4 alone leave open what an engine's setting turns on."""
    job = lab.start()
    found = lab.inspect(job)["NetworkSettings"]["Networks"].popitem()[1]
    assert found["GlobalIPv6Address"] == ""
    assert said(lab, "grep -c eth0 /proc/net/if_inet6 | sed s/^/addresses=/") in ({"addresses": "0"}, {})
    bridge = bridge_name(lab.stack.env["INSTALLATION"], lab.stack.env["NODE_NAME"])
    if subprocess.run(["ip6tables", "-w", "5", "-n", "-L", "INPUT"], capture_output=True).returncode == 0:
        chains = [chain for chain in ("INPUT", "FORWARD", "DOCKER-USER")
                  if not subprocess.run(["ip6tables", "-w", "5", "-C", chain, "-i", bridge, "-j", "DROP"],
                                        capture_output=True).returncode]  # fmt: skip
        assert chains in (["INPUT", "FORWARD"], ["INPUT", "DOCKER-USER"])
    lab.cancel(job)
    lab.end(job)


def _host_address() -> str:
    """The address by which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


STEPS = (
    ("open", "", b"got=open"),
    ("listed", "198.51.100.0/24", b"got=shut"),
    ("listed", "203.0.113.0/24", b"got=open"),
    ("nothing", "", b"got=shut"),
)


@contextmanager
def _outside(address: str) -> Iterator[int]:
    """A web server on a machine of its own, for all that packets can tell; its port."""
    name, port = f"dky{os.getpid()}", free_port()
    near, far = address.rpartition(".")[0] + ".8", address
    commands = [
        f"ip netns add {name}", f"ip link add {name} type veth peer name eth0 netns {name}",
        f"ip address add {near}/24 dev {name}", f"ip link set {name} up",
        f"ip -n {name} address add {far}/24 dev eth0", f"ip -n {name} link set eth0 up",
    ]  # fmt: skip
    server = None
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        server = subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-m", "http.server", str(port)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        yield port
    finally:
        if server is not None:
            server.kill()
            server.wait()
        for command in (("ip", "link", "delete", name), ("ip", "netns", "delete", name)):
            subprocess.run(command, check=False, capture_output=True)


def test_where_jobs_may_go_is_the_admins_to_say_and_holds_for_those_that_run(lab: Lab) -> None:
    """A server on the machine, beyond the bridge: reached, then only while it is listed, then by no job at all."""
    outside = "203.0.113.7"
    with _outside(outside) as port:
        job = lab.start(f"while sleep 0.3; do {asks(outside, port, 'got')}; done")
        try:
            for policy, networks, wanted in STEPS:
                lab.call(lambda p=policy, n=networks: Cluster.objects.update(egress=p, egress_networks=n))
                wait_until(lambda w=wanted: lab.log(job).rstrip().endswith(w), f"{policy} {networks}")
        finally:
            lab.call(lambda: Cluster.objects.update(egress="open", egress_networks=""))
        assert said(lab, "ip addr | grep -c UP | sed s/^/up=/", offline=True) == {"up": "1"}
        lab.cancel(job)
        lab.end(job)


def test_a_fork_bomb_meets_the_limit_of_processes_and_nothing_else(lab: Lab) -> None:
    """The count of its processes is the proof that the bomb went off; a neighbour goes on."""
    neighbour = lab.start("exec sleep 600")
    job = lab.start("bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 600", memory_mib=128, limit_seconds=600)
    pids = _cgroup_number(lab, job, "pids.max")
    assert pids == 64
    wait_until(lambda: (_cgroup_number(lab, job, "pids.current") or 0) > 10, "a bomb")
    assert (_cgroup_number(lab, job, "pids.current") or 0) <= 64
    lab.cancel(job)
    assert lab.end(job).end_reason == "STOPPED_BY_USER"
    assert lab.fresh(neighbour).state == "RUNNING"
    lab.cancel(neighbour)
    lab.end(neighbour)


def _cgroup_number(lab: Lab, job: Job, name: str) -> int | None:
    pid = lab.inspect(job)["State"]["Pid"]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
            file = Path(root + path, name)
            if controllers in ("pids", "") and file.exists():
                return int(file.read_text())
    return None


FILES = "cd /tmp; for d in $(seq 60); do mkdir $d; for f in $(seq 60); do : > $d/$f; done; done; sleep 600"


def test_who_fills_a_container_is_stopped_and_told_so(lab: Lab) -> None:
    """By bytes and by files."""
    jobs = {"bytes": lab.submit("dd if=/dev/zero of=/tmp/big bs=1M count=64; sleep 600", memory_mib=256),
            "files": lab.submit(FILES, memory_mib=256)}  # fmt: skip
    for counts, job in jobs.items():
        ended = lab.end(job)
        assert (ended.state, ended.end_reason) == ("FAILED", "DISK_LIMIT")
        told = [(w["code"], w["what"], w["counts"]) for w in lab.run(job).warnings]
        assert told == [("DISK_LIMIT", "scratch", counts)]


def test_what_a_container_writes_is_known_without_its_layer_too(lab: Lab) -> None:
    """As where containerd keeps the layers: the engine counts the bytes."""
    job = lab.start("dd if=/dev/zero of=/tmp/some bs=1M count=8; echo written; exec sleep 600")
    wait_until(lambda: b"written" in lab.log(job), "its file")
    container = lab.inspect(job)["Id"]
    own = lab.call(containers_disk.own, container)
    assert Path(own.layer, "tmp/some").stat().st_size == 8 << 20
    assert 8 << 20 <= lab.call(containers_disk.layer_bytes, container) < 9 << 20
    assert (lab.call(containers_disk.own, "0" * 64), lab.call(containers_disk.layer_bytes, "0" * 64)) == (None, 0)
    lab.cancel(job)
    lab.end(job)


def test_who_fills_the_workspace_is_stopped_and_may_still_delete(lab: Lab) -> None:
    """One that ignores its signal does not get its grace, in which it would go on."""
    script = "trap '' TERM; dd if=/dev/zero of=big bs=1M count=64; while :; do sleep 1; done"
    job = lab.end(lab.submit(script, memory_mib=256, grace_seconds=600))
    assert (job.state, job.end_reason) == ("FAILED", "DISK_LIMIT")
    assert [(w["what"], w["counts"]) for w in lab.run(job).warnings] == [("workspace", "bytes")]
    assert lab.end(lab.submit("rm ../*/big; sleep 2; echo tidy")).state == "SUCCEEDED"


PLANT = """
ln -s /etc/shadow shadow; ln -s / root; ln -s .. up; mkfifo pipe; mkdir plain; ln -s /etc plain/etc
echo mine > real; ln real hard; nc -l -U sock >/dev/null 2>&1 &
mkdir "$(printf 'a\\nb')"; echo 1 > "$(printf 'a\\nb')/$(printf 'c\\r\\nX-Evil: 1')"
echo 2 > '<img src=x onerror=alert(1)>.html'; echo 3 > '"; filename=evil.exe; x="'
echo 4 > "$(printf 'bad\\377name')"; echo 5 > -rf; echo 6 > "$(printf 'x%.0s' $(seq 250))"
echo 7 > '..%2f..%2fetc%2fpasswd'; chmod 0 real; echo planted=1
"""


def test_what_a_job_plants_in_its_folder_is_a_plain_file_or_nothing(lab: Lab) -> None:
    """ScottG489/conjob#11: links, pipes, names with markup, line ends, quotes, broken bytes, in pages and headers."""
    job = lab.end(lab.submit(PLANT))
    assert job.exit_code == 0, lab.log(job)
    lab.call(_look_at, lab, job)


def _look_at(lab: Lab, job: Job) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(lab.user)
    page = client.get(f"/jobs/{job.pk}/")
    part = client.get(f"/jobs/{job.pk}/?part=files")
    assert (page.status_code, part.status_code) == (200, 200)
    assert "<img src=x" not in page.text + part.text
    listed = client.get(f"/api/jobs/{job.pk}/files")
    assert listed.status_code == 200
    paths = [row["path"] for row in listed.json()["files"]]
    assert {"hard", "real", "-rf", "<img src=x onerror=alert(1)>.html", '"; filename=evil.exe; x="'} <= set(paths)
    assert not {"shadow", "root", "up", "pipe", "sock", "plain/etc"} & set(paths)
    for bad in ("shadow", "root/etc/shadow", "up", "pipe", "sock", "plain/etc/passwd", "../../../etc/passwd", "plain"):
        assert client.get(f"/jobs/{job.pk}/files/{bad}").status_code == 404, bad
        assert client.get(f"/api/jobs/{job.pk}/files/{bad}").status_code == 404, bad
    for entry in workspace.job_files(job):
        answer = client.get(f"/jobs/{job.pk}/files/" + quote(os.fsencode(entry.path)))
        assert "X-Evil" not in answer.headers
        if not entry.path.isprintable():  # no address has line ends or broken bytes
            assert answer.status_code == 404
            continue
        assert answer.status_code == 200, entry.path
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
