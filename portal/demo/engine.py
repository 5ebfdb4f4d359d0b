"""The demo's Docker engine: the one that runs here, or a private one that the demo starts and stops."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from jobs.containerspec import bridge_name
from jobs.egress import chain_of
from portal.busybox import busybox_tar
from portal.demo.children import Children, Failed, tail

IMAGE = "dockyard-demo/busybox"
SYSTEM_ENGINE = "unix:///var/run/docker.sock"
_POOL = "base=10.213.128.0/17,size=24"


def api(host: str, *, timeout: float = 60) -> httpx.Client:
    """A client of the engine's HTTP API at DOCKER_HOST `host`."""
    if host.startswith("unix://"):
        transport = httpx.HTTPTransport(uds=host.removeprefix("unix://"))
        return httpx.Client(transport=transport, base_url="http://engine", timeout=timeout)
    return httpx.Client(base_url=host.replace("tcp://", "http://", 1), timeout=timeout)


def answers(host: str) -> bool:
    """Whether an engine answers there, to us."""
    with contextlib.suppress(httpx.HTTPError, OSError), api(host, timeout=3) as client:
        return client.get("/_ping").status_code == 200
    return False


def find_or_start(data: Path, children: Children) -> str:
    """The DOCKER_HOST of an engine that answers. Raises Failed with what to do where none can be had."""
    wanted = os.environ.get("DOCKER_HOST", "")
    for host in (wanted, "" if wanted else SYSTEM_ENGINE):
        if host and answers(host):
            return host
    if wanted:
        raise Failed(f"No Docker engine answers at DOCKER_HOST={wanted}. Start it, or unset DOCKER_HOST.")
    if os.geteuid() != 0:
        raise Failed(f"No Docker engine answers to you at {SYSTEM_ENGINE}, and only root can start one. Start it and "
                     "add your account to the group docker, or run this as root.")  # fmt: skip
    return _start(data / "engine", children)


def _start(root: Path, children: Children) -> str:
    """A private dockerd. Its run-time folder has a short name, since socket paths are short, and always the same."""
    run = _run_folder(root)
    for folder in (root, run):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (run / "docker.pid").unlink(missing_ok=True)  # the demo's lock says that its owner is gone
    (run / "daemon.json").write_text("{}")  # not the machine's own settings
    host = f"unix://{run}/docker.sock"
    path = _admin_path()
    if shutil.which("dockerd", path=path) is None:
        raise Failed("No Docker engine runs here and none is installed. Install it: apt-get install docker.io iptables")
    command = [
        "dockerd", f"--host={host}", f"--data-root={root}", f"--exec-root={run}/exec", f"--pidfile={run}/docker.pid",
        f"--config-file={run}/daemon.json", "--bridge=none", f"--default-address-pool={_POOL}",
    ]  # fmt: skip
    children.start("engine", command, {**os.environ, "PATH": path})
    _wait(host, children)
    return host


def _run_folder(root: Path) -> Path:
    return Path("/run") / f"dockyard-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def clear_run_folder(data: Path) -> None:
    """Remove the sockets and state of a private engine that has stopped, and the mount of one that was killed."""
    _administer("umount", str(data / "engine"))  # bound to itself by the engine; os.path.ismount sees no such mounts
    shutil.rmtree(_run_folder(data / "engine"), ignore_errors=True)


def _wait(host: str, children: Children) -> None:
    end = time.monotonic() + 60
    while not answers(host):
        children.check()
        if time.monotonic() > end:
            raise Failed(f"The Docker engine does not answer after a minute:\n{tail(children.logs / 'engine.log')}")
        time.sleep(0.1)


def bring_image(host: str) -> None:
    """Build the demo's image from this machine's static busybox, unless the engine has it. No registry is asked."""
    with api(host) as client:
        if client.get(f"/images/{IMAGE}:latest/json").status_code == 200:
            return
        answer = client.post(
            "/images/create", params={"fromSrc": "-", "repo": IMAGE, "tag": "latest", "changes": "ENV PATH=/bin"},
            content=busybox_tar(), headers={"Content-Type": "application/x-tar"},
        )  # fmt: skip
    if answer.status_code != 200 or "error" in answer.text:
        raise Failed(f"The engine did not take the demo's image: {answer.text[:500]}")


def has_gpus() -> bool:
    """Whether this host has the NVIDIA driver and the toolkit's hook, so that jobs can be given real GPUs."""
    return Path("/proc/driver/nvidia/version").exists() and any(
        shutil.which(name) for name in ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
    )


def sweep(host: str, installation: str, node: str) -> None:
    """Remove the containers and the network of this installation, with the firewall rules on its bridge."""
    drop_rules(bridge_name(installation, node))
    label = _label(installation)
    with contextlib.suppress(httpx.HTTPError, OSError), api(host) as client:
        for container in client.get("/containers/json", params={"all": "1", "filters": label}).json():
            client.delete(f"/containers/{container['Id']}", params={"force": "1", "v": "1"})
        for network in client.get("/networks", params={"filters": label}).json():
            client.delete(f"/networks/{network['Id']}")


def runs_something(host: str, installation: str) -> bool:
    """Whether a container of this installation runs."""
    with contextlib.suppress(httpx.HTTPError, OSError), api(host) as client:
        return bool(client.get("/containers/json", params={"filters": _label(installation)}).json())
    return False


def _label(installation: str) -> str:
    return json.dumps({"label": [f"dockyard.installation={installation}"]})


def remove_bridge(installation: str, node: str) -> None:
    """Remove the bridge that a private engine has left when it ended before its network could be removed."""
    bridge = bridge_name(installation, node)
    drop_rules(bridge)
    if Path("/sys/class/net", bridge).exists():
        _administer("ip", "link", "delete", bridge)


def drop_rules(bridge: str) -> None:
    """Remove every firewall rule on packets from or to this bridge."""
    for program in ("iptables", "ip6tables"):
        for rule in _rules_on(program, bridge):
            _administer(program, "-w", "5", *rule)
        for step in ("-F", "-X"):
            _administer(program, "-w", "5", step, chain_of(bridge))


def _rules_on(program: str, bridge: str) -> Iterator[list[str]]:
    for table in ("filter", "nat"):
        for line in _administer(program, "-w", "5", "-t", table, "-S").splitlines():
            words = line.split()
            if words[:1] == ["-A"] and bridge in words:
                yield ["-t", table, "-D", *words[1:]]


def _administer(*command: str) -> str:
    """What a program of the network's administration printed; nothing where it is missing or may not."""
    program = shutil.which(command[0], path=_admin_path())
    if program is None:
        return ""
    done = subprocess.run([program, *command[1:]], check=False, capture_output=True, text=True)
    return done.stdout


def _admin_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
