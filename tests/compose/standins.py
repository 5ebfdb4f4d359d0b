"""Base images without a registry: Debian by debootstrap, under the names that Dockerfile and compose.yaml use.

One root file system serves for all of them. It has the packages of the same release as the real images, and what
those bring besides: the start of PostgreSQL, and accounts and folders of their names.
"""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "trixie"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "ca-certificates", "caddy", "iptables", "postgresql-17", "python-is-python3", "python3", "python3-pip",
    "python3-venv", "redis-server", "wget",
)  # fmt: skip
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

_COMMON = [f"ENV {name}={AUTHORITIES}" for name in ("PIP_CERT", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")]
_PATH = "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
IMAGES = {
    "node:22-trixie-slim": [],
    "python:3.13-slim-trixie": [],
    "redis:8": ["WORKDIR /data"],
    "postgres:17": [
        "ENV PGDATA=/var/lib/postgresql/data", 'ENTRYPOINT ["/usr/local/bin/start-postgres"]', "CMD postgres",
    ],
    "caddy:2": [
        "ENV XDG_CONFIG_HOME=/config", "ENV XDG_DATA_HOME=/data",
        'CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]',
    ],
}  # fmt: skip

_START_POSTGRES = """#!/bin/sh
# As the real image does it: the folders are given to their account, and a cluster is made where there is none.
set -eu
bin=/usr/lib/postgresql/17/bin
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
chown postgres "$PGDATA" /run/postgresql
chmod 0700 "$PGDATA"
chmod 3775 /run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    umask 077
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    chown postgres /tmp/password
    as_postgres $bin/initdb --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile /tmp/password $POSTGRES_INITDB_ARGS
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | as_postgres $bin/postgres --single -D "$PGDATA" postgres
fi
exec setpriv --reuid postgres --regid postgres --clear-groups $bin/postgres -D "$PGDATA" \\
    -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
"""


def can_make() -> str:
    """Empty where stand-ins can be made here; otherwise what is missing."""
    missing = [program for program in ("debootstrap", "docker-compose", "unshare") if not shutil.which(program)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def bring(engine: Engine, cache: Path) -> None:
    """Give the engine an image under each of the names. `cache` keeps the root file system for the next time."""
    tar = cache / f"{RELEASE}.tar"
    if not tar.exists():
        _make(cache / RELEASE, tar)
    with engine.client() as client:
        client.api.timeout = 300
        client.api.import_image_from_file(str(tar), repository="dockyard-test/base", changes=[_PATH, *_COMMON])
    for name, changes in IMAGES.items():
        _derive(engine, name, changes)


def _derive(engine: Engine, name: str, changes: list[str]) -> None:
    """The same layers under another name, with what its image is known for."""
    with engine.client() as client:
        container = client.containers.create("dockyard-test/base", ["true"])
        try:
            container.put_archive("/usr/local/bin", _start_postgres())
            repository, _, tag = name.partition(":")
            container.commit(repository, tag, changes="\n".join(["CMD /bin/sh", *changes]))
        finally:
            container.remove()


def _start_postgres() -> bytes:
    """As an archive; not in the cache, which outlives changes of it."""
    buffer, script = io.BytesIO(), _START_POSTGRES.encode()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        entry = tarfile.TarInfo("start-postgres")
        entry.size, entry.mode = len(script), 0o755
        file.addfile(entry, io.BytesIO(script))
    return buffer.getvalue()


def _make(root: Path, tar: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    include = ",".join(PACKAGES)
    _run("debootstrap", "--variant=minbase", f"--include={include}", RELEASE, str(root), MIRROR)
    _complete(root)
    partial = tar.with_suffix(".partial")
    with tarfile.open(partial, "w") as file:
        file.add(root, ".", filter=lambda entry: None if entry.isdev() else entry)
    partial.replace(tar)
    shutil.rmtree(root)


def _complete(root: Path) -> None:
    """This machine's authorities, Node.js as scripts/bootstrap brings it, and what real images have besides."""
    shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
    shutil.copy(ROOT / "requirements-node.txt", root / "tmp")
    with _resolving(root):
        _run("chroot", str(root), "python3", "-m", "pip", "install", "--break-system-packages", "--no-cache-dir",
             "--require-hashes", "--root-user-action=ignore", "-r", "/tmp/requirements-node.txt")  # fmt: skip
    for folder in ("data", "config", "var/lib/postgresql/data"):
        (root / folder).mkdir(exist_ok=True, parents=True)
        (root / folder).chmod(0o777)  # whose they are differs from image to image
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)


@contextmanager
def _resolving(root: Path) -> Iterator[None]:
    """With this machine's name service and settings of pip."""
    shutil.copy("/etc/resolv.conf", root / "etc")
    os.environ.setdefault("PIP_CERT", str(AUTHORITIES))
    yield
    (root / "etc/resolv.conf").unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout)[-2000:]}")
