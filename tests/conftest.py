"""Real parts for the tests, one of each a session, and the check that no test may break."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.conf import settings as django_settings
from django.utils import translation

from gpus.readings import HostReading
from gpus.sampler import Sampler
from jobs.follow import Follower
from jobs.models import Team
from portal.models import User
from tests import factories
from tests.rigs import engine as engine_rig
from tests.rigs import logs as logs_rig
from tests.rigs import nvml as nvml_rig
from tests.rigs import postgres as postgres_rig
from tests.rigs import redis as redis_rig
from tests.rigs import stack as stack_rig

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"}
LIVE_FIXTURES = {"stack", "page", "context", "browser"}
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip


def _uses_database(item: Any) -> bool:
    return item.get_closest_marker("django_db") is not None or bool(DATABASE_FIXTURES & set(item.fixturenames))


def pytest_configure() -> None:
    """A SIGTERM ends the run as Ctrl-C does: the real parts are stopped. Neither is ignored, as in the background."""
    hypothesis.settings.register_profile("dockyard", deadline=None, database=None)  # no time is a fact here
    hypothesis.settings.load_profile("dockyard")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by what a test uses: `e2e` for the running product, `database` for what must hold on both databases."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if LIVE_FIXTURES & names:
            item.add_marker("e2e")
        elif _uses_database(item) and "engine" not in names and item.get_closest_marker("any_database") is None:
            item.add_marker("database")


# --- real parts ---


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis_rig.RedisServer]:
    """The Redis at settings.REDIS_URL. Tests may flush, stop and restart it."""
    port = int(django_settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with redis_rig.running_redis(port=port) as server:
        yield server


@pytest.fixture
def spool(redis_server: redis_rig.RedisServer, tmp_path: Path, settings: Any) -> Path:
    """The folder that output is captured in."""
    settings.SPOOL_DIR = tmp_path
    return tmp_path


@pytest.fixture
def follower(spool: Path, engine: engine_rig.Engine) -> Iterator[Follower]:
    """The agent's follower of logs, in this process."""
    with logs_rig.running_follower() as running:
        yield running


@pytest.fixture(autouse=True)
def _own_language() -> Iterator[None]:
    """A page in another language leaves that language behind in the thread that made it."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def _clean_redis(request: pytest.FixtureRequest) -> None:
    """Whoever touches the database announces changes: let Redis be there, and empty."""
    names = set(request.fixturenames)
    if (_uses_database(request.node) or "redis_server" in names) and not LIVE_FIXTURES & names:
        server: redis_rig.RedisServer = request.getfixturevalue("redis_server")
        if not server.is_running:
            server.start()
        server.flush()


@pytest.fixture(scope="session")
def engine() -> Iterator[engine_rig.Engine]:
    """A private Docker engine with the test images; settings.DOCKER_HOST leads to it."""
    if why_not := engine_rig.can_run():
        pytest.fail(f"cannot start a private Docker engine: {why_not}")
    with engine_rig.running_engine() as running:
        django_settings.DOCKER_HOST = running.url
        yield running


@pytest.fixture(autouse=True)
def _clean_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no container and no failing hook to the next test."""
    yield
    if "engine" in request.fixturenames and not LIVE_FIXTURES & set(request.fixturenames):
        running: engine_rig.Engine = request.getfixturevalue("engine")
        running.hook_works()
        running.remove_containers()


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_rig.Postgres]:
    """A private PostgreSQL, beside whatever database the tests themselves run on."""
    with postgres_rig.running_postgres() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def stack(
    engine: engine_rig.Engine, redis_server: redis_rig.RedisServer, django_db_blocker: Any
) -> Iterator[stack_rig.Stack]:
    """The whole product, running. Its database is settings.DATABASES, so the ORM in a test sees what it sees."""
    with django_db_blocker.unblock(), stack_rig.running_stack(engine.url) as running:
        yield running


# --- the browser ---


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    return {"executable_path": path, "args": CHROMIUM_FLAGS, "headless": True}


@pytest.fixture(scope="session")
def base_url(stack: stack_rig.Stack) -> str:
    return stack.url


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots go."""
    path = Path(__file__).parent / "artifacts"
    path.mkdir(exist_ok=True)
    return path


# --- the check ---


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test: no GPU slot has two live holders, no ended run holds anything."""
    if not _uses_database(request.node):
        yield
        return
    request.getfixturevalue("db")  # so that we look before the database is rolled back
    yield
    assert factories.broken_invariants() == []


# --- the cast ---


@pytest.fixture
def vision(db: None) -> Team:
    """The team of alice and bob."""
    return factories.make_team("vision")


@pytest.fixture
def alice(vision: Team) -> User:
    """A researcher of team vision."""
    return factories.make_user("alice", teams=(vision,))


@pytest.fixture
def bob(vision: Team) -> User:
    """Another researcher of team vision."""
    return factories.make_user("bob", teams=(vision,))


@pytest.fixture
def charlie(db: None) -> User:
    """Somebody of another team, who must see nothing of team vision."""
    return factories.make_user("charlie", teams=(factories.make_team("audio"),))


@pytest.fixture
def root_admin(db: None) -> User:
    return factories.make_admin()


@pytest.fixture
def nvml() -> Iterator[nvml_rig.Nvml]:
    """The stand-in for the driver's library, with as many GPUs as the test adds."""
    if why_not := nvml_rig.can_run():
        pytest.fail(why_not)
    with nvml_rig.standing_in() as standin:
        yield standin


@pytest.fixture
def read(nvml: nvml_rig.Nvml) -> Iterator[Callable[[], HostReading]]:
    """Gives the sampler's next reading of that stand-in."""
    sampler = Sampler("alpha", 1)
    yield lambda: nvml_rig.next_reading(sampler)
    sampler.close()
