"""The product's own settings, in an environment that belongs to this test process alone.

Nothing here reaches the machine's own engine, Redis or database. `DATABASE_URL` may choose PostgreSQL.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.rigs.processes import free_port

_root = tempfile.mkdtemp(prefix="dky-test-")
atexit.register(shutil.rmtree, _root, ignore_errors=True)

os.environ.update(
    DOCKYARD_ENV_FILE=os.devnull,
    DATA_DIR=_root,
    MOUNT_ROOTS=f"{_root}/mounts",
    SECRET_KEY="a key for tests, long enough for every check of its length",
    INSTALLATION=f"t{os.getpid()}",
    NODE_NAME="alpha",
    NODE_NAMES="alpha,beta",
    GPU_DRIVER="simulated",
    DOCKER_HOST=f"unix://{_root}/no-engine.sock",  # the `engine` fixture sets the real one
    REDIS_URL=f"redis://:test-password@127.0.0.1:{free_port()}/0",  # where the `redis_server` fixture starts it
    DEBUG="0",
    LOG_REQUESTS="0",
    WRITES_PER_MINUTE="0",  # fuzzers and floods ask as often as they can
    API_READS_PER_MINUTE="0",
    ORDER_REREAD="0.000001",
    TERMS_REREAD="0.000001",
    PAST_REREAD="0.000001",  # a test's own rows count at once
    REDIS_REST="0.001",  # a test that stops Redis leaves none of its caution to the next
)

from portal.settings import *  # noqa: E402, F403
from portal.settings import STORAGES  # noqa: E402

STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}  # nothing collected
PASSWORD_HASHERS = ["tests.rigs.passwords.Quick"]
Path(_root, "staticroot").mkdir()  # WhiteNoise warns without it
